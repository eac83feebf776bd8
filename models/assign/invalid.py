"""Entries of fixed-size arrays that hold no assignment: they are masked, but must name some prediction."""

import torch
from torch import Tensor


def spread_invalid(prediction: Tensor, valid: Tensor, predictions: int) -> Tensor:
    """Return `prediction` [M] with its invalid entries spread evenly over all predictions, 0 to `predictions` - 1.

    A GPU adds the gradients of one prediction one by one, so they must not all name the same one.

    >>> spread_invalid(torch.tensor([7, 7, 7, 7]), torch.tensor([True, False, False, False]), 2).tolist()
    [7, 1, 0, 1]
    """
    anything = torch.arange(len(prediction), device=prediction.device) % max(predictions, 1)
    return torch.where(valid, prediction, anything)
