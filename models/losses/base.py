"""The base class of all losses: raw predictions and targets -> named, weighted terms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.heads import Head


@dataclass(frozen=True)
class LossGains:
    """The weights and settings of the loss terms, named as in hyper-parameter files and flags.

    A loss uses those that it names in `uses`.

    Args:
        box, obj, cls: weights of the terms.
        obj_pw, cls_pw: weight of positive against negative examples.
        anchor_t: a box and an anchor match if their widths and their heights differ by less than
            this factor.
        fl_gamma: gamma of the focal loss; 0 for plain cross entropy.
        label_smoothing: epsilon.
        class_weights: of each class; () for 1. A predicted box that is assigned to an object of the
            class has this weight in the classification term, in the entropies of all classes.
        ignore_old: boxes of older classes with a score above it are ignore regions for added ones;
            1 for none.
    """

    box: float = 0.05
    obj: float = 1.0
    cls: float = 0.5
    obj_pw: float = 1.0
    cls_pw: float = 1.0
    anchor_t: float = 4.0
    fl_gamma: float = 0.0
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()
    ignore_old: float = 1.0

    def changed(self) -> list[str]:
        """Return the names of the settings that differ from the defaults."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]


class Loss(nn.Module, ABC):
    """Base class of losses, each for one kind of head.

    terms: keys of `forward`'s result, in results.csv's order. uses: the fields of `LossGains` that
    have an effect.
    """

    terms: tuple[str, ...]
    uses: ClassVar[tuple[str, ...]]
    # of the mean of 1 - IoU of assigned predictions in the total: losses differ in their scale
    box_weight: float = 1.0
    # `assign` and `compute_terms`, compiled; set by compile_loss
    compiled: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    @classmethod
    @abstractmethod
    def from_head(cls, head: Any, gains: LossGains) -> "Loss":
        """Return the loss for `head`. Raises ValueError if this loss cannot train it."""

    @classmethod
    def used_settings(cls, head: Any) -> tuple[str, ...]:
        """Return the fields of `LossGains` that have an effect for this head: those of `uses`."""
        return cls.uses

    @property
    def validation_terms(self) -> tuple[str, ...]:
        """The terms that a validation computes: all, unless some need what only training has."""
        return self.terms

    def start_epoch(self, epoch: int, epochs: int, *, without_mosaic: bool) -> None:
        """Choose how `weighted_sum` weights the terms in an epoch, 0 to `epochs` - 1.

        The weights depend on the arguments only, so that a resumed run continues with the same
        loss. The terms must not depend on the epoch: they are compared between epochs.
        without_mosaic: the epoch is one of the last ones, of --close-mosaic.
        """

    def begin_batch(self, images: Tensor) -> None:
        """Receive the images whose raw predictions `forward` gets next.

        images: [B, 3, H, W] in [0, 1]. Most losses do not need them.
        """

    def forward(
        self, raw: Any, targets: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return this process's share of each term.

        The sum of the shares over all processes is the term of the whole batch. Shapes depend only
        on the shapes of raw and targets, and no value is read on the host, so that host and device
        never wait for each other.

        Args:
            raw: what the head's forward pass returned.
            targets: [T, 6] image, class, x1, y1, x2, y2 in pixels of the batch's images; class -1
                is an ignore region, -2 a padding row.
            total: sums counts, int64 [K], over all processes (all-reduce); it is called once. None
                for a single process.

        Returns:
            Scalars in float32, or in float64 for float64 maps.
        """
        assign = self.assign
        compute_terms = self.compute_terms
        # not in validation, whose batches have many shapes
        if self.compiled is not None and torch.is_grad_enabled():
            assign, compute_terms = self.compiled

        assignment, counts = assign(raw, targets)
        if total is not None:
            counts = total(counts)
        return compute_terms(raw, targets, assignment, counts)

    @abstractmethod
    def assign(self, raw: Any, targets: Tensor) -> tuple[Any, Tensor]:
        """Return the assignment of predictions to targets, and the counts that normalize the terms.

        The counts, int64 [K], are of this process; they are summed over all processes before
        `compute_terms` gets them. raw, targets: see `forward`.
        """

    @abstractmethod
    def compute_terms(
        self, raw: Any, targets: Tensor, assignment: Any, counts: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term. counts: those of the whole batch."""

    def weighted_sum(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the scalar that training minimizes: the sum of `forward`'s terms.

        A loss may weight them.
        """
        first, *others = terms.values()
        return sum(others, first)


def class_weight_table(gains: LossGains, head: Head) -> Tensor | None:
    """Return the weight of each class of `head`, [C] on its device; None if all are 1.

    Raises ValueError for another number of weights.
    """
    weights = gains.class_weights
    if not weights:
        return None
    if len(weights) != head.num_classes:
        raise ValueError(f"{len(weights)} class weights for {head.num_classes} classes")
    device = next(head.parameters()).device
    return torch.tensor(weights, dtype=torch.float32, device=device)


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 if it already is: for sums over a batch.

    These need more than 16 bits.

    >>> dtypes = (torch.bfloat16, torch.float64)
    >>> [at_least_float32(torch.zeros(1, dtype=dtype)).dtype for dtype in dtypes]
    [torch.float32, torch.float64]
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))
