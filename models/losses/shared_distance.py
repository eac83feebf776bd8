"""Box and class terms of the head with shared convolutions, normalized over all processes.

B images, N predictions per image over all levels, C classes, M slots.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.assign.dynamic_soft_label import background_focal, dynamic_soft_label, quality_focal
from models.assign.task_aligned import ScoredAssignment
from models.heads.cells import cells_and_strides
from models.heads.point_distance import boxes_around
from models.heads.shared_distance import SharedDistanceHead, bounded_distances
from models.losses.base import LossGains, class_weight_table
from models.losses.point_distance import DistancePredictions, Grids, PointDistanceLoss
from utils.boxes import generalized_iou

AUTHORS_GAINS = {"box": 2.0, "cls": 1.0}


class SharedDistanceLoss(PointDistanceLoss):
    """The loss terms of a `SharedDistanceHead`, each divided by the batch's sum of target scores.

    box: target score times 1 - GIoU of assigned predictions. cls: quality focal loss of every class
    of every prediction, outside ignore regions or assigned; the target is the target score. The
    middle of a prediction's cell decides whether it is in an ignore region, as for other heads.

    Args:
        strides: pixels per cell of each level.
        exponential: of the head.
        gains: of the terms; those of its authors by default.
        class_weights: see `PointDistanceLoss`.

    Source: RTMDet, arXiv 2212.07784; GFL, arXiv 2006.04388, equation 2; GIoU, arXiv
    1902.09630; gains: facts of its authors' code.
    """

    terms = ("box", "cls")

    def __init__(
        self,
        strides: tuple[int, ...],
        exponential: bool,
        gains: Mapping[str, float] = AUTHORS_GAINS,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__(strides, SharedDistanceHead.side_values, gains, class_weights)
        self.exponential = exponential

    @classmethod
    def from_head(cls, head: SharedDistanceHead, gains: LossGains) -> "SharedDistanceLoss":
        """Return the loss for `head`: authors' gains, times `gains` relative to their defaults."""
        own = {
            "box": AUTHORS_GAINS["box"] * gains.box / LossGains.box,
            "cls": AUTHORS_GAINS["cls"] * gains.cls / LossGains.cls,
        }
        return cls(head.strides, head.exponential, own, class_weight_table(gains, head))

    def assigned_slots(
        self, sides: Tensor, classes: Tensor, grids: Grids, targets: Tensor
    ) -> ScoredAssignment:
        """Return the dynamic soft label assignment of predictions to targets."""
        cells, strides = cells_and_strides(grids, self.strides, sides)
        boxes = self._boxes(sides, cells, strides)
        return dynamic_soft_label(boxes, classes, grids, self.strides, targets)

    def terms_of(
        self, predictions: DistancePredictions, targets: Tensor, count: Tensor, ignored: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term.

        count: the normalizer. ignored: bool [B, N], predictions in ignore regions.
        """
        slots = self.predictions_of_slots(predictions, targets)
        boxes = self._boxes(slots.sides, slots.cell, slots.stride)
        target_boxes = slots.target_boxes * slots.stride
        box = ((1 - generalized_iou(boxes, target_boxes)) * slots.weight).sum()

        # All classes of a prediction are first counted as wrong; then its own class is corrected.
        background = background_focal(predictions.values[..., self.side_values :]).sum(2)
        as_right = quality_focal(slots.class_logit, slots.weight)
        correction = as_right - background_focal(slots.class_logit)
        correction = torch.where(predictions.slots.valid, correction, 0)
        cls = self.class_sum(background, correction, predictions.slots, slots.class_id, ignored)

        sums = {"box": box, "cls": cls}
        return {name: value / count * self.gains[name] for name, value in sums.items()}

    def _boxes(self, sides: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
        """Return boxes_xyxy [..., 4] in pixels, of raw values [..., 4] in `cells` [..., 2]."""
        distances = bounded_distances(sides, self.exponential)
        return boxes_around(distances, cells, SharedDistanceHead.offset) * strides
