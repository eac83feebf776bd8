"""The loss of a model that learns from a teacher: its own, and two terms of distillation.

B images, L levels that both models have, H W cells of a level, A predictions of a cell, N
predictions per image over these levels, K classes that both models know, by name.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.assign.dynamic_soft_label import quality_focal
from models.heads import CellPredictions, Head, WithAuxiliary, WithProjections
from models.losses.base import Loss, LossGains, at_least_float32
from models.losses.fixed_point import fixed_point_sum, normalizers
from utils.boxes import generalized_iou


class Taught(NamedTuple):
    """What a teacher finds in a batch.

    maps: those that its head reads, [B, channels, H, W] of each of the L levels. cells: its
    predictions on them, with the logits of the K classes.
    """

    maps: list[Tensor]
    cells: list[CellPredictions]


class WithTeacher(NamedTuple):
    """The raw predictions of a model, its projected maps, and what its teacher finds."""

    raw: Any
    projections: list[Tensor]
    taught: Taught


class Shared(NamedTuple):
    """What a model has in common with its teacher.

    levels: indices of the model's levels [L]. classes: indices of its classes [K]. same_head: their
    heads are of one class, so that prediction k of a cell is of the same kind in both, as anchor k.
    """

    levels: Sequence[int]
    classes: Sequence[int]
    same_head: bool


class PredictionPairs(NamedTuple):
    """Predictions of model and teacher in pairs.

    boxes, teacher_boxes: x1, y1, x2, y2 in pixels, [B, N, 4]. logits, teacher_logits: [B, N, K].
    """

    boxes: Tensor
    logits: Tensor
    teacher_boxes: Tensor
    teacher_logits: Tensor


class WithPairs(NamedTuple):
    """The assignments of the main loss, and its number of counts. pairs: None in validation."""

    main: Any
    counts: int
    pairs: PredictionPairs | None


class DistillationLoss(Loss):
    """The terms of the main loss as they are, and `feature` and `output`, which a teacher gives.

    feature: the Kullback-Leibler divergence of the model's projected map from the teacher's, of the
    softmax of each channel over its cells; mean over channels and levels.

    output: of predictions in pairs, of the same cell. 1 - GIoU of the boxes, plus the quality focal
    loss of the scores, whose targets are the teacher's; both times the teacher's confidence, its
    highest score, and divided by the sum of the confidences. So a teacher says nothing of cells
    where it finds nothing: a model of another family may have to find an object there. Scores of
    classes that the teacher does not know do not count. Ignore regions count: the teacher knows
    what is in them.

    Both are weighted as the main loss weights 1 - IoU of an assigned box, so that they mean the
    same for every head. In validation there is no teacher, and neither of the two terms.

    Args:
        main: the loss without a teacher.
        head: of the model.
        teach: returns what the teacher finds in images [B, 3, H, W].
        shared: levels and classes.
        gain: of both terms.

    Source: channel-wise distillation, arXiv 2011.13256, equations 3 to 5; quality focal loss, GFL,
    arXiv 2006.04388, equation 2, of the teacher's scores as in CrossKD, arXiv 2306.11369; GIoU,
    arXiv 1902.09630. Pairs of different heads, weights of scores, normalizer: our own.
    """

    uses = ()
    classes: Tensor | None

    def __init__(
        self,
        main: Loss,
        head: Head,
        teach: Callable[[Tensor], Taught],
        shared: Shared,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.main = main
        self.terms = (*main.terms, "feature", "output")
        self.box_weight = main.box_weight
        self.shared = shared
        self.gain = gain * self.box_weight

        # Methods, so that the weights of model and teacher are no part of this module.
        self.predict_cells = head.predict_cells
        self.teach = teach
        self.taught: Taught | None = None

        device = next(head.parameters()).device
        classes = indices_of_some(shared.classes, head.num_classes, device)
        self.register_buffer("classes", classes, persistent=False)  # [K]

    @classmethod
    def from_head(cls, head: Any, gains: LossGains) -> "DistillationLoss":
        """Raise ValueError: this loss needs a teacher, too."""
        raise ValueError("the loss of distillation needs a teacher")

    @property
    def validation_terms(self) -> tuple[str, ...]:
        """Those of the main loss: in validation there is no teacher."""
        return self.main.validation_terms

    def start_epoch(self, epoch: int, epochs: int, *, without_mosaic: bool) -> None:
        """Pass the epoch on to the main loss."""
        self.main.start_epoch(epoch, epochs, without_mosaic=without_mosaic)

    def begin_batch(self, images: Tensor) -> None:
        """Ask the teacher what is in the images."""
        self.taught = None  # the maps of a batch whose step failed: they may fill the memory
        self.taught = self.teach(images)

    def forward(
        self, raw: Any, targets: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return this process's share of each term. `begin_batch` must have got the images.

        Args: see `Loss.forward`. raw: `WithProjections` in training, else of the head alone.
        """
        if isinstance(raw, WithProjections):
            taught, self.taught = self.taught, None
            if taught is None:
                raise ValueError("begin_batch must be called with the images of each batch")
            raw = WithTeacher(raw.raw, raw.projections, taught)
        return super().forward(raw, targets, total)

    def assign(self, raw: Any, targets: Tensor) -> tuple[WithPairs, Tensor]:
        """Return the assignment of the main loss and the pairs, and the counts.

        The counts are those of the main loss, then in training the teacher's confidence and the
        number of images.
        """
        if not isinstance(raw, WithTeacher):
            main, counts = self.main.assign(raw, targets)
            return WithPairs(main, len(counts), None), counts

        main, counts = self.main.assign(raw.raw, targets)
        pairs = self._pairs(raw)
        confidences = confidence(pairs.teacher_logits)
        confidence_sum = fixed_point_sum(confidences)
        image_count = torch.full_like(confidence_sum, len(confidences))
        all_counts = torch.cat([counts, torch.stack([confidence_sum, image_count])])
        return WithPairs(main, len(counts), pairs), all_counts

    def _pairs(self, raw: WithTeacher) -> PredictionPairs:
        """Return the predictions of model and teacher in pairs, of all levels."""
        of_heads = raw.raw.main if isinstance(raw.raw, WithAuxiliary) else raw.raw
        all_levels = self.predict_cells(of_heads)
        boxes = []
        logits = []
        teacher_boxes = []
        teacher_logits = []
        for level, theirs in zip(self.shared.levels, raw.taught.cells, strict=True):
            ours = of_classes(all_levels[level], self.classes)
            own, teachers = paired(ours, theirs, same_head=self.shared.same_head)
            boxes.append(own.boxes_xyxy.flatten(1, 3))
            logits.append(own.logits.flatten(1, 3))
            teacher_boxes.append(teachers.boxes_xyxy.flatten(1, 3))
            teacher_logits.append(teachers.logits.flatten(1, 3))
        return PredictionPairs(
            torch.cat(boxes, 1),
            torch.cat(logits, 1),
            torch.cat(teacher_boxes, 1),
            torch.cat(teacher_logits, 1),
        )

    def compute_terms(
        self, raw: Any, targets: Tensor, assignment: WithPairs, counts: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term, in validation of those of the main loss."""
        main_counts = counts[: assignment.counts]
        if assignment.pairs is None:
            return self.main.compute_terms(raw, targets, assignment.main, main_counts)

        terms = self.main.compute_terms(raw.raw, targets, assignment.main, main_counts)
        confidence_sum, image_count = counts[assignment.counts :].unbind()

        features = []
        for own, taught in zip(raw.projections, raw.taught.maps, strict=True):
            features.append(channel_divergence(own, taught).sum())
        feature = torch.stack(features).mean() / image_count

        output = output_sum(assignment.pairs) / normalizers(confidence_sum, feature.dtype)
        terms["feature"] = feature * self.gain
        terms["output"] = output * self.gain
        return terms

    def weighted_sum(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Return the sum of the terms, those of the main loss weighted as it does."""
        of_main = {name: terms[name] for name in self.main.terms}
        return self.main.weighted_sum(of_main) + terms["feature"] + terms["output"]


def indices_of_some(
    classes: Sequence[int], num_classes: int, device: torch.device
) -> Tensor | None:
    """Return classes [K] as a tensor, for `of_classes`; None if they are all, in their order."""
    if list(classes) == list(range(num_classes)):
        return None
    return torch.tensor(classes, device=device)


def of_classes(cells: CellPredictions, classes: Tensor | None) -> CellPredictions:
    """Return predictions with the logits of some classes, as `indices_of_some` returns them."""
    if classes is None:
        return cells
    return cells._replace(logits=cells.logits.index_select(-1, classes))


def channel_divergence(own: Tensor, taught: Tensor) -> Tensor:
    """Return KL(teacher, model) of the softmax over the cells, mean over the channels, [B].

    own, taught: maps [B, channels, H, W].

    Source: arXiv 2011.13256, equations 3 to 5, with a temperature of 1.

    >>> own, taught = torch.zeros(1, 1, 1, 2), torch.tensor([[[[0.0, 0.0]]]])
    >>> channel_divergence(own, taught).tolist()
    [0.0]
    """
    own_log = at_least_float32(own).flatten(2).log_softmax(2)
    taught_log = at_least_float32(taught).flatten(2).log_softmax(2)
    divergence = taught_log.exp() * (taught_log - own_log)
    return divergence.sum(2).mean(1)


def confidence(logits: Tensor) -> Tensor:
    """Return the highest score of each prediction [B, N], without a gradient.

    logits: [B, N, K].
    """
    return logits.detach().amax(-1).sigmoid()


def output_sum(pairs: PredictionPairs) -> Tensor:
    """Return the sum over all pairs of the box loss and the score loss, times the confidence."""
    weight = confidence(pairs.teacher_logits).flatten()
    overlap = generalized_iou(pairs.boxes.flatten(0, 1), pairs.teacher_boxes.flatten(0, 1))
    scores = quality_focal(pairs.logits, pairs.teacher_logits.sigmoid()).sum(2).flatten()
    return ((1 - overlap + scores) * weight).sum()


def paired(
    own: CellPredictions, taught: CellPredictions, *, same_head: bool
) -> tuple[CellPredictions, CellPredictions]:
    """Return the predictions of a level in pairs, as many of each cell from both.

    One to one if both heads are of one class and have as many in a cell. Otherwise the best of
    each: the one with the highest score.
    """
    if same_head and own.logits.shape[3] == taught.logits.shape[3]:
        return own, taught
    return best_of_cell(own), best_of_cell(taught)


def best_of_cell(cells: CellPredictions) -> CellPredictions:
    """Return the prediction of each cell that has the highest score, A = 1."""
    if cells.logits.shape[3] == 1:
        return cells
    best = cells.logits.detach().amax(4).argmax(3)[..., None, None]  # [B, H, W, 1, 1]
    boxes = cells.boxes_xyxy.take_along_dim(best, 3)
    logits = cells.logits.take_along_dim(best, 3)
    return CellPredictions(boxes, logits)
