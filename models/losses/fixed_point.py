"""Sums of scores in fixed point: they are exact, so that the order of processes does not matter."""

import torch
from torch import Tensor

STEPS = 1 << 24  # scores are summed as multiples of 1 / this


def fixed_point_sum(scores: Tensor) -> Tensor:
    """Return the sum of scores in [0, 1] as a whole number, int64 []."""
    return (scores * STEPS).round().long().sum()


def normalizers(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sums of `fixed_point_sum`, of any shape, as numbers, at least 1.

    >>> normalizers(fixed_point_sum(torch.tensor([0.5, 0.75, 1.0])), torch.float32)
    tensor(2.2500)
    """
    return (sums.to(dtype) / STEPS).clamp(min=1)
