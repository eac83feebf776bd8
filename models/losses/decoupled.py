"""Box, objectness and class terms of YOLOX's decoupled head, normalized over all processes.

B images, L levels, H W cells of a level, N predictions per image over all levels, C classes, T
targets, M slots.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.base import Assignment, assigned_predictions
from models.assign.simota import simota
from models.assign.targets import ignored_predictions
from models.heads.cells import cells_and_strides
from models.heads.decoupled import DecoupledHead, boxes_at
from models.losses.base import Loss, LossGains, at_least_float32, class_weight_table
from utils.boxes import iou_of_pairs, to_cxcywh

AUTHORS_GAINS = {"box": 5.0, "obj": 1.0, "cls": 1.0, "l1": 1.0}
# Their learning rate is for the mean over a batch of 64 images, Kestrel's for the sum: their gains
# are divided by it.
AUTHORS_BATCH = 64


class DecoupledPredictions(NamedTuple):
    """Raw predictions of all levels, what they were assigned, and the cells they come from.

    values: [B, N, 5 + C]. boxes: x1, y1, x2, y2 in pixels, [B, N, 4]. cells: [N, 2], column and
    row. strides: pixels per cell, [N, 1]. grids: rows and columns of each level. slots: the
    assignment.
    """

    values: Tensor
    boxes: Tensor
    cells: Tensor
    strides: Tensor
    grids: list[tuple[int, int]]
    slots: Assignment


class DecoupledLoss(Loss):
    """The loss terms of YOLOX's head, divided by the batch's number of assigned predictions.

    box: 1 - IoU^2 of assigned predictions, times 5. obj: cross entropy of every prediction, outside
    ignore regions or assigned. cls: cross entropy of the classes of assigned predictions, whose
    target is the IoU. l1: absolute differences of the raw box values of assigned predictions;
    `weighted_sum` adds it in the epochs without mosaic.

    Source: YOLOX, arXiv 2107.08430, section 2.1; facts of its authors' code (L1, IoU as the class
    target).
    """

    terms = tuple(AUTHORS_GAINS)
    uses = ("box", "obj", "cls", "class_weights")
    class_weights: Tensor | None

    def __init__(
        self,
        strides: tuple[int, ...],
        gains: Mapping[str, float] = AUTHORS_GAINS,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("class_weights", class_weights, persistent=False)  # [C]
        self.strides = strides
        self.gains = gains
        self.box_weight = gains["box"]
        self.adds_l1 = False

    @classmethod
    def from_head(cls, head: DecoupledHead, gains: LossGains) -> "DecoupledLoss":
        """Return the loss for `head`: authors' gains, times `gains` relative to their defaults."""
        relative = {
            "box": gains.box / LossGains.box,
            "obj": gains.obj / LossGains.obj,
            "cls": gains.cls / LossGains.cls,
            "l1": gains.box / LossGains.box,
        }
        own = {name: AUTHORS_GAINS[name] / AUTHORS_BATCH * relative[name] for name in relative}
        return cls(head.strides, own, class_weight_table(gains, head))

    def start_epoch(self, epoch: int, epochs: int, *, without_mosaic: bool) -> None:
        """Add L1 in the epochs without mosaic, as its authors do."""
        self.adds_l1 = without_mosaic

    def weighted_sum(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of the terms, of l1 in the epochs without mosaic only."""
        if self.adds_l1:
            return super().weighted_sum(terms)
        return super().weighted_sum({name: terms[name] for name in terms if name != "l1"})

    def assign(self, raw: list[Tensor], targets: Tensor) -> tuple[DecoupledPredictions, Tensor]:
        """Return all predictions with their assignment, and the number [1] of assigned ones.

        raw: maps [B, H, W, 5 + C] per level.
        """
        levels = [at_least_float32(values) for values in raw]
        grids = [(level.shape[1], level.shape[2]) for level in levels]
        values = torch.cat([level.flatten(1, 2) for level in levels], 1)

        # The predicted boxes in pixels.  [B, N, 4]
        cells, strides = cells_and_strides(grids, self.strides, values)
        boxes = boxes_at(values, cells) * strides

        detached = values.detach()
        slots = simota(
            boxes_xyxy=boxes.detach(),
            objectness=detached[..., 4],
            classes=detached[..., 5:],
            grids=grids,
            strides=self.strides,
            targets=targets,
        )

        predictions = DecoupledPredictions(values, boxes, cells, strides, grids, slots)
        return predictions, slots.valid.sum()[None]

    def compute_terms(
        self, raw: list[Tensor], targets: Tensor, assignment: DecoupledPredictions, counts: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term.

        assignment: the predictions with theirs. counts: of `assign`, summed over all processes.
        """
        values = assignment.values
        slots = assignment.slots
        num_assigned = counts.clamp(min=1)[0]

        # The predictions of the slots, and what they were assigned.
        # index_select is used instead of indexing, whose gradient sorts the places on a GPU. It
        # adds gradients in any order, which does not matter here: a prediction is in at most one
        # valid slot, and the gradient of the other slots is 0.
        rows = values.flatten(0, 1).index_select(0, slots.prediction)  # [M, 5 + C]
        boxes = assignment.boxes.flatten(0, 1).index_select(0, slots.prediction)  # [M, 4]
        target = targets[slots.target]  # [M, 6]
        target_boxes = target[:, 2:].to(rows.dtype)

        iou = iou_of_pairs(boxes, target_boxes)  # [M]
        box = ((1 - iou.square()) * slots.valid).sum() / num_assigned
        class_sum = self._class_sum(rows[:, 5:], target[:, 1], iou.detach(), slots.valid)
        cls = class_sum / num_assigned
        objectness_sum = self._objectness_sum(values[..., 4], assignment.grids, targets, slots)
        obj = objectness_sum / num_assigned

        # l1: the raw values, against those that give exactly the target's box.
        cell_number = slots.prediction % len(assignment.cells)
        cells = assignment.cells[cell_number]
        strides = assignment.strides[cell_number]
        raw_targets = _raw_values(target_boxes, cells, strides)
        l1 = ((rows[:, :4] - raw_targets).abs().sum(1) * slots.valid).sum() / num_assigned

        terms = {"box": box, "obj": obj, "cls": cls, "l1": l1}
        return {name: term * self.gains[name] for name, term in terms.items()}

    def _class_sum(self, logits: Tensor, classes: Tensor, iou: Tensor, valid: Tensor) -> Tensor:
        """Return the sum of the cross entropies of assigned predictions and classes.

        The target is the IoU for the target's class, and 0 for the others. logits: [M, C]. classes,
        iou, valid: [M].
        """
        class_ids = torch.arange(logits.shape[1], device=classes.device)
        wanted = (classes[:, None] == class_ids) * iou[:, None]  # [M, C]
        entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)
        if self.class_weights is not None:
            entropy = entropy * self.class_weights[classes.long().clamp(min=0)]
        return (entropy * valid).sum()

    def _objectness_sum(
        self, logits: Tensor, grids: list[tuple[int, int]], targets: Tensor, slots: Assignment
    ) -> Tensor:
        """Return the sum of the cross entropies of objectness.

        Over the predictions that are assigned or outside ignore regions. logits: [B, N].
        """
        assigned = assigned_predictions(slots.prediction, slots.valid, logits)
        ignored = ignored_predictions(targets, len(logits), self.strides, grids)
        is_counted = (assigned > 0) | ~ignored
        entropy = F.binary_cross_entropy_with_logits(logits, assigned, reduction="none")
        return (entropy * is_counted).sum()


def _raw_values(boxes_xyxy: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Return the raw x, y, w, h [M, 4] that `boxes_at` decodes to boxes_xyxy [M, 4] in pixels.

    cells: [M, 2]. strides: [M, 1].
    """
    center, size = to_cxcywh(boxes_xyxy).split(2, 1)
    return torch.cat([center / strides - cells, (size / strides + 1e-8).log()], 1)
