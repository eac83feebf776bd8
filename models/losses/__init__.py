"""What every loss has in common: raw predictions and targets -> named, weighted terms."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LossGains:
    """The weights and settings of the loss terms; a loss takes those that it needs.

    box, obj, cls: the terms' weights. obj_pos_weight, cls_pos_weight: of what is there against what is not.
    ratio_limit: factor between the sides of a box and an anchor, below which they match. label_smoothing: epsilon.
    focal_gamma: 0 for plain cross entropy.
    """

    box: float = 0.05
    obj: float = 1.0
    cls: float = 0.5
    obj_pos_weight: float = 1.0
    cls_pos_weight: float = 1.0
    ratio_limit: float = 4.0
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0


class Loss(nn.Module, ABC):
    """The loss of one kind of head. terms: the names of what `forward` returns, in the order of results.csv."""

    terms: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def from_head(cls, head: Any, gains: LossGains) -> "Loss":
        """The loss for one head. Raises ValueError if it cannot train that head."""

    @abstractmethod
    def forward(self, raw: Any, targets: Tensor, total: Callable[[Tensor], Tensor] | None = None) -> dict[str, Tensor]:
        """This process's share of each term: their sum over processes is the term of the whole batch.

        raw: what the head's forward pass returned. targets: [T, 6] image, class, x1, y1, x2, y2 in pixels of the
        batch's images; class -1 is an ignore region, -2 a padding row. total: sums counts, int64 [K], over all
        processes, and is called once in a forward pass; None for one process. The terms are scalars in float32, in
        float64 for float64 maps. Shapes depend on the shapes of raw and targets alone, and no value is looked at, so
        that the device never waits.
        """


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 where it is: sums over a batch need more than 16 bits.

    >>> [at_least_float32(torch.zeros(1, dtype=dtype)).dtype for dtype in (torch.bfloat16, torch.float64)]
    [torch.float32, torch.float64]
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))
