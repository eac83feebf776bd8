"""What the losses of the heads of distances share: assignments with target scores, class terms.

B images, L levels, H W cells of a level, N predictions per image over all levels, C classes, S raw
values of the sides, T targets, M slots.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.assign.base import assigned_predictions
from models.assign.targets import ignored_predictions
from models.assign.task_aligned import ScoredAssignment
from models.heads.cells import cells_and_strides
from models.heads.point_distance import Levels
from models.losses.base import Loss, at_least_float32
from models.losses.fixed_point import fixed_point_sum, normalizers

Grids = list[tuple[int, int]]  # rows and columns of each level


class DistancePredictions(NamedTuple):
    """Raw predictions of all levels, what they were assigned, and the cells they come from.

    values: [B, N, S + C]. cells: [N, 2], column and row. strides: pixels per cell, [N, 1]. grids:
    rows and columns of each level. size: width and height of the images in pixels. slots: the
    assignment.
    """

    values: Tensor
    cells: Tensor
    strides: Tensor
    grids: Grids
    size: tuple[int, int]
    slots: ScoredAssignment


class SlotPredictions(NamedTuple):
    """The predictions of the slots, and what they were assigned.

    cell: column and row, [M, 2]. stride: [M, 1]. sides: raw values, [M, S]. class_id: of the
    targets, [M]. class_logit: of this class, [M]. target_boxes: in cells of the prediction's level,
    [M, 4]. weight: the target score, 0 where not valid, [M].
    """

    cell: Tensor
    stride: Tensor
    sides: Tensor
    class_id: Tensor
    class_logit: Tensor
    target_boxes: Tensor
    weight: Tensor


class PointDistanceLoss(Loss):
    """The base of the losses of `PointDistanceHead`, divided by the batch's sum of target scores.

    A subclass assigns predictions (`assigned_slots`), and computes the terms (`terms_of`).

    Args:
        strides: pixels per cell of each level.
        side_values: S of the head.
        gains: of each term.
        class_weights: of each class, [C]; None for 1. An assigned prediction has that of its
            target's class in the term cls, the others 1.
    """

    class_weights: Tensor | None
    uses = ("box", "cls", "class_weights")

    def __init__(
        self,
        strides: tuple[int, ...],
        side_values: int,
        gains: Mapping[str, float],
        class_weights: Tensor | None,
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.strides = strides
        self.side_values = side_values
        self.gains = dict(gains)
        self.box_weight = self.gains["box"]

    @abstractmethod
    def assigned_slots(
        self, sides: Tensor, classes: Tensor, grids: Grids, targets: Tensor
    ) -> ScoredAssignment:
        """Return the assignment of predictions to targets.

        Args:
            sides: raw values without gradient, [B, N, S].
            classes: logits without gradient, [B, N, C].
            grids: rows and columns of each level.
            targets: [T, 6].
        """

    @abstractmethod
    def terms_of(
        self, predictions: DistancePredictions, targets: Tensor, count: Tensor, ignored: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term.

        count: the normalizer. ignored: bool [B, N], predictions in ignore regions.
        """

    def assign(self, raw: Levels, targets: Tensor) -> tuple[DistancePredictions, Tensor]:
        """Return all predictions with their assignment, and the sum [1] of its target scores.

        raw: maps [B, H, W, S + C] per level.
        """
        predictions = self.assigned(raw, targets)
        return predictions, target_score_sums([predictions.slots])

    def compute_terms(
        self, raw: Levels, targets: Tensor, assignment: DistancePredictions, counts: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term."""
        values = assignment.values
        (count,) = normalizers(counts, values.dtype)
        ignored = ignored_predictions(targets, len(values), self.strides, assignment.grids)
        return self.terms_of(assignment, targets, count, ignored)

    def assigned(self, raw: Levels, targets: Tensor) -> DistancePredictions:
        """Return the predictions of all levels with their assignment."""
        levels = [at_least_float32(values) for values in raw]
        grids = [(level.shape[1], level.shape[2]) for level in levels]
        values = torch.cat([level.flatten(1, 2) for level in levels], 1)
        cells, strides = cells_and_strides(grids, self.strides, values)

        detached = values.detach()
        sides = detached[..., : self.side_values]
        classes = detached[..., self.side_values :]
        slots = self.assigned_slots(sides, classes, grids, targets)

        rows, columns = grids[0]
        size = (columns * self.strides[0], rows * self.strides[0])
        return DistancePredictions(
            values=values, cells=cells, strides=strides, grids=grids, size=size, slots=slots
        )

    def predictions_of_slots(
        self, predictions: DistancePredictions, targets: Tensor
    ) -> SlotPredictions:
        """Return the predictions of the slots, and what they were assigned."""
        values = predictions.values
        slots = predictions.slots
        cell_number = slots.prediction % len(predictions.cells)
        stride = predictions.strides[cell_number]
        target = targets[slots.target]  # [M, 6]

        # Their raw values of the sides, [M, S], and of the target's class, [M].
        # index_select and gather are used instead of indexing, whose gradient sorts the places on a
        # GPU. They add gradients in any order, which does not matter here: a prediction is in at
        # most one valid slot, and the gradient of the other slots is 0.
        sides = values.flatten(0, 1)[:, : self.side_values].index_select(0, slots.prediction)
        class_id = target[:, 1].long().clamp(min=0)
        class_place = slots.prediction * values.shape[2] + self.side_values + class_id
        class_logit = values.flatten().gather(0, class_place)
        return SlotPredictions(
            cell=predictions.cells[cell_number],
            stride=stride,
            sides=sides,
            class_id=class_id,
            class_logit=class_logit,
            target_boxes=target[:, 2:].to(values.dtype) / stride,
            weight=slots.target_score.to(values.dtype),
        )

    def class_sum(
        self,
        background: Tensor,
        correction: Tensor,
        slots: ScoredAssignment,
        class_id: Tensor,
        ignored: Tensor,
    ) -> Tensor:
        """Return the sum of the class losses of predictions outside ignore regions or assigned.

        Args:
            background: of each prediction, the sum over all classes as wrong ones, [B, N].
            correction: what the target's class changes in it, [M]; 0 where not valid.
            slots: the assignment.
            class_id: of its targets, [M].
            ignored: bool [B, N], predictions in ignore regions.
        """
        assigned = assigned_predictions(slots.prediction, slots.valid, background)
        is_counted = (assigned > 0) | ~ignored
        summed = (background * is_counted).sum() + correction.sum()
        if self.class_weights is None:
            return summed

        # What the weights add: each assigned prediction once more, times its weight minus 1.
        of_slots = background.flatten().index_select(0, slots.prediction) * slots.valid
        added = (of_slots + correction) * (self.class_weights[class_id] - 1)
        return summed + added.sum()


def target_score_sums(assignments: Sequence[ScoredAssignment]) -> Tensor:
    """Return the sum of the target scores of each assignment, as `fixed_point_sum`, int64 [K]."""
    return torch.stack([fixed_point_sum(each.target_score) for each in assignments])
