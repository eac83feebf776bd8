"""Box, class and distance terms of the distance heads, normalized over all processes.

B images, L levels, H W cells of a level, N predictions per image over all levels, C classes, D
bins, T targets, M slots.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.targets import ignored_predictions
from models.assign.task_aligned import ScoredAssignment, task_aligned
from models.heads.cells import cells_and_strides
from models.heads.distance import DistanceHead, DualDistanceHead, sides_of
from models.heads.point_distance import Levels, boxes_around
from models.losses.base import Loss, LossGains, class_weight_table
from models.losses.fixed_point import normalizers
from models.losses.point_distance import (
    DistancePredictions,
    Grids,
    PointDistanceLoss,
    target_score_sums,
)
from utils.boxes import complete_iou, to_cxcywh

AUTHORS_GAINS = {"box": 7.5, "cls": 0.5, "dfl": 1.5}
GAIN_WITHOUT_BINS = 6.0  # of the term dfl
BELOW_LAST_BIN = 0.01  # distances end this much below the last bin
CANDIDATES = 10  # per target
CANDIDATES_ONE_TO_ONE = 7
# of the one-to-many terms (o2m) in the total, in the first and in the last epoch
FIRST_WEIGHT = 0.8
LAST_WEIGHT = 0.1


class DistanceLoss(PointDistanceLoss):
    """The loss terms of a `DistanceHead`, each divided by the batch's sum of target scores.

    Each assigned prediction counts with its target score, w. box: w * (1 - CIoU). cls: cross
    entropy of every class of every prediction, outside ignore regions or assigned; the target is w.
    dfl: w times the cross entropy of the two bins next to each distance, mean of the four sides;
    without bins, w times the absolute difference of the distances as fractions of the image, mean
    of the four sides.

    Args:
        strides: pixels per cell of each level.
        bins: D of the head; 1 for a head without bins.
        gains: factors of the authors' gains; None for 1.
        candidates: how many predictions are candidates for a target.
        kept: how many of them are assigned to it; None: all.
        class_weights: of each class, [C]; None for 1. An assigned prediction has that of its
            target's class in the term cls, the others 1.

    Source: TOOD, arXiv 2108.07755, equations 5 to 8 (with cross entropy); GFL, arXiv 2006.04388,
    equation 6; YOLO26, arXiv 2606.03748, for the term without bins and for lengthening small boxes
    to the second stride.
    """

    terms = ("box", "cls", "dfl")
    within_reach: ClassVar[bool] = False  # see `_reach`

    def __init__(
        self,
        strides: tuple[int, ...],
        bins: int,
        gains: Mapping[str, float] | None = None,
        *,
        candidates: int = CANDIDATES,
        kept: int | None = None,
        class_weights: Tensor | None = None,
    ) -> None:
        own_gains = dict(AUTHORS_GAINS)
        smallest = 0.0
        if bins == 1:
            own_gains["dfl"] = GAIN_WITHOUT_BINS
            smallest = float(sorted(strides)[:2][-1])  # the second stride, if there is one
        if gains is not None:
            own_gains = {name: gain * gains[name] for name, gain in own_gains.items()}

        super().__init__(strides, 4 * bins, own_gains, class_weights)
        self.bins = bins
        self.candidates = candidates
        self.kept = kept
        self.smallest = smallest  # side of a box, see `task_aligned`

    @classmethod
    def from_head(cls, head: DistanceHead, gains: LossGains) -> "DistanceLoss":
        """Return the loss for `head`: authors' gains, times `gains` relative to their defaults."""
        weights = class_weight_table(gains, head)
        return cls(head.strides, head.bins, relative_gains(gains), class_weights=weights)

    def assigned_slots(
        self, sides: Tensor, classes: Tensor, grids: Grids, targets: Tensor
    ) -> ScoredAssignment:
        """Return the task-aligned assignment of predictions to targets."""
        cells, strides = cells_and_strides(grids, self.strides, sides)
        distances = sides_of(sides, self.bins)
        return task_aligned(
            boxes_xyxy=boxes_around(distances, cells, DistanceHead.offset) * strides,
            classes=classes,
            points=(cells + DistanceHead.offset) * strides,
            targets=targets,
            candidates=self.candidates,
            kept=self.kept,
            smallest=self.smallest,
            reach=self._reach(strides),
        )

    def _reach(self, strides: Tensor) -> Tensor | None:
        """Return the longest distance of each prediction in pixels, [N]; None for no limit.

        strides: of each prediction, [N, 1].
        """
        if not self.within_reach:
            return None
        return strides[:, 0] * (self.bins - 1 - BELOW_LAST_BIN)

    def terms_of(
        self, predictions: DistancePredictions, targets: Tensor, count: Tensor, ignored: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term.

        count: the normalizer. ignored: bool [B, N], predictions in ignore regions.
        """
        values = predictions.values
        slots = self.predictions_of_slots(predictions, targets)
        cell = slots.cell
        weight = slots.weight

        # box: 1 - CIoU, with no side of a box below 0.
        sides = sides_of(slots.sides, self.bins)
        boxes = to_cxcywh(boxes_around(sides, cell, DistanceHead.offset))
        boxes = torch.cat([boxes[:, :2], boxes[:, 2:].clamp(min=0)], 1)
        box = ((1 - complete_iou(boxes, to_cxcywh(slots.target_boxes))) * weight).sum()

        # dfl: the difference of each side's distance in strides.  [M, 4]
        low_distances = cell + 0.5 - slots.target_boxes[:, :2]
        high_distances = slots.target_boxes[:, 2:] - cell - 0.5
        distances = torch.cat([low_distances, high_distances], 1)
        if self.bins > 1:
            difference = bin_entropy(slots.sides.unflatten(1, (4, self.bins)), distances)
        else:
            width, height = predictions.size
            pixels = (sides - distances).abs() * slots.stride  # left, top, right, bottom
            difference = torch.cat([pixels[:, 0::2] / width, pixels[:, 1::2] / height], 1)
        dfl = (difference.mean(1) * weight).sum()

        # cls: cross entropy, which is linear in its target: softplus(x) for a target of 0, minus
        # x times the target.
        background = F.softplus(values[..., 4 * self.bins :]).sum(2)
        correction = -slots.class_logit * weight
        cls = self.class_sum(background, correction, predictions.slots, slots.class_id, ignored)

        sums = {"box": box, "cls": cls, "dfl": dfl}
        return {name: value / count * self.gains[name] for name, value in sums.items()}


class GroupedDistanceLoss(DistanceLoss):
    """The loss terms of a `GroupedDistanceHead`: those of a distance head, assigned by other rules.

    The candidates of a target are the points inside or on its box from which the bins reach all of
    its sides; a target without any gets its best prediction.

    Source: facts of YOLOv9's assignment.
    """

    within_reach = True


class DualDistanceLoss(Loss):
    """The loss terms of a `DualDistanceHead`: those of o2m and, named o2o_*, those of o2o.

    o2m is one-to-many: each box is assigned several predictions. o2o is one-to-one.

    `weighted_sum` weights the terms of o2m with 0.8, falling to 0.1 over the epochs, and those of
    o2o with the rest to 1. The terms themselves are not weighted, so that they can be compared
    between epochs.

    Source: YOLOv10, arXiv 2405.14458, section 3.1; the weights YOLO26, arXiv 2606.03748.
    """

    terms = (*DistanceLoss.terms, *(f"o2o_{term}" for term in DistanceLoss.terms))
    uses = DistanceLoss.uses

    def __init__(self, many: DistanceLoss, one: DistanceLoss) -> None:
        super().__init__()
        self.many = many
        self.one = one
        self.box_weight = many.box_weight
        self.o2m_weight = FIRST_WEIGHT

    @classmethod
    def from_head(cls, head: DualDistanceHead, gains: LossGains) -> "DualDistanceLoss":
        """Return the loss for `head`.

        Raises: ValueError if `fuse` has removed one of its two outputs.
        """
        if head.fused:
            raise ValueError("a fused head cannot be trained: it has one of its two outputs only")

        relative = relative_gains(gains)
        weights = class_weight_table(gains, head)
        many = DistanceLoss(head.strides, head.bins, relative, class_weights=weights)
        one = DistanceLoss(
            head.strides,
            head.bins,
            relative,
            candidates=CANDIDATES_ONE_TO_ONE,
            kept=1,
            class_weights=weights,
        )
        return cls(many, one)

    def start_epoch(self, epoch: int, epochs: int, *, without_mosaic: bool) -> None:
        """Move the weight from o2m to o2o."""
        progress = epoch / max(epochs - 1, 1)
        remaining = max(0.0, 1 - progress)
        self.o2m_weight = LAST_WEIGHT + (FIRST_WEIGHT - LAST_WEIGHT) * remaining

    def assign(
        self, raw: Sequence[Levels], targets: Tensor
    ) -> tuple[tuple[DistancePredictions, DistancePredictions], Tensor]:
        """Return what o2m and o2o were assigned, and the sums [2] of their target scores.

        raw: the maps of o2m and of o2o.
        """
        levels_of_many, levels_of_one = raw
        many = self.many.assigned(levels_of_many, targets)
        one = self.one.assigned(levels_of_one, targets)
        return (many, one), target_score_sums([many.slots, one.slots])

    def compute_terms(
        self,
        raw: Sequence[Levels],
        targets: Tensor,
        assignment: tuple[DistancePredictions, DistancePredictions],
        counts: Tensor,
    ) -> dict[str, Tensor]:
        """Return this process's share of each term."""
        of_many, of_one = assignment
        values = of_many.values
        count_of_many, count_of_one = normalizers(counts, values.dtype)
        ignored = ignored_predictions(targets, len(values), self.many.strides, of_many.grids)

        many = self.many.terms_of(of_many, targets, count_of_many, ignored)
        one = self.one.terms_of(of_one, targets, count_of_one, ignored)
        return many | {f"o2o_{name}": value for name, value in one.items()}

    def weighted_sum(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of the terms of o2m times their weight, and of o2o times the rest."""
        weighted = {}
        for name, term in terms.items():
            weight = 1 - self.o2m_weight if name.startswith("o2o_") else self.o2m_weight
            weighted[name] = term * weight
        return super().weighted_sum(weighted)


def relative_gains(gains: LossGains) -> dict[str, float]:
    """Return `gains` relative to their defaults, for the terms of DistanceLoss."""
    box = gains.box / LossGains.box
    cls = gains.cls / LossGains.cls
    return {"box": box, "cls": cls, "dfl": box}


def bin_entropy(logits: Tensor, distances: Tensor) -> Tensor:
    """Return the cross entropy of the two bins next to each distance, by how near they are, [M, 4].

    -((y_(i+1) - y) log S_i + (y - y_i) log S_(i+1)) for a distance y between bins i and i + 1.

    logits: [M, 4, D]. distances: [M, 4] in strides; outside 0 to D - 1 they count as the nearest
    value inside.

    Source: GFL, arXiv 2006.04388, equation 6.

    >>> uniform = torch.zeros(1, 4, 2)
    >>> bin_entropy(uniform, torch.tensor([[0.0, 0.3, 1.0, 9.0]])) / torch.log(torch.tensor(2.0))
    tensor([[1., 1., 1., 1.]])
    """
    distances = distances.clamp(0, logits.shape[2] - 1 - BELOW_LAST_BIN)
    low = distances.floor().long()
    upper_weight = distances - low

    log_probabilities = logits.log_softmax(2)
    two_bins = torch.stack([low, low + 1], 2)  # [M, 4, 2]
    log_low, log_upper = log_probabilities.gather(2, two_bins).unbind(2)
    return -(log_low * (1 - upper_weight) + log_upper * upper_weight)
