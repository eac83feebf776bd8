"""Box, objectness and class terms of the anchor-based head, normalized over all processes.

Shapes: B images, L levels, A anchors per level, H W cells of a level, C classes, T targets, M
candidate matches of a level, P = B * H * W * A predictions of a level, in the order of
models/assign/anchor_ratio.py.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.anchor_ratio import AnchorMatches, match_anchors
from models.assign.targets import ignored_cells
from models.device_constants import device_constant
from models.heads.anchor_based import AnchorBasedHead
from models.losses.base import Loss, LossGains, at_least_float32, class_weight_table
from utils.boxes import complete_iou

# Weight of each level's objectness term, finest level first: fine levels have many more cells.
OBJECTNESS_BALANCE_OF_3 = (4.0, 1.0, 0.4)
OBJECTNESS_BALANCE = (4.0, 1.0, 0.25, 0.06, 0.02)

SOFTPLUS_THRESHOLD = 40.0  # above this x, log(1 + exp(x)) equals x even in float64
# Class weights are summed as multiples of 1 / this.
FIXED_POINT = 1 << 20
FOCAL_ALPHA = 0.25  # weight of positives; negatives weigh 0.75


class AnchorBasedLoss(Loss):
    """The loss terms of an anchor-based head.

    box: 1 - CIoU, mean over a level's matches, summed over levels. obj: cross entropy of every
    cell, whose target is the CIoU of its predicted box with its matched box (0 without a match),
    mean over cells, weighted by level. cls: cross entropy per class, mean over a level's matches
    and classes.

    Raises ValueError for more than 5 levels.

    Source: facts of YOLOv5's behavior; CIoU arXiv 1911.08287; focal loss arXiv 1708.02002 equation
    5.
    """

    terms = ("box", "obj", "cls")
    uses = (
        "box",
        "obj",
        "cls",
        "obj_pw",
        "cls_pw",
        "anchor_t",
        "fl_gamma",
        "label_smoothing",
        "class_weights",
    )
    anchors_px: Tensor
    class_weights: Tensor | None

    def __init__(
        self,
        anchors_px: Tensor,
        strides: tuple[int, ...],
        num_classes: int,
        gains: LossGains,
        class_weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        levels = len(strides)
        if levels > len(OBJECTNESS_BALANCE):
            raise ValueError(
                f"the loss supports 1 to {len(OBJECTNESS_BALANCE)} levels, got {levels}"
            )
        anchors = at_least_float32(anchors_px.detach().clone())  # [L, A, 2]
        self.register_buffer("anchors_px", anchors, persistent=False)
        self.register_buffer("class_weights", class_weights, persistent=False)  # [C]
        self.strides = tuple(strides)
        self.num_classes = num_classes
        self.gains = gains

        # The levels may be in any order of strides.
        finest_first = OBJECTNESS_BALANCE_OF_3 if levels == 3 else OBJECTNESS_BALANCE
        levels_finest_first = sorted(range(levels), key=lambda level: strides[level])
        self.balance = [0.0] * levels
        for level, weight in zip(levels_finest_first, finest_first, strict=False):
            self.balance[level] = weight

        self.box_weight = gains.box * 3
        self.box_gain = self.box_weight / levels
        self.cls_gain = gains.cls * num_classes / 80 * 3 / levels
        self.obj_gain = gains.obj * 3 / levels

        # The target of the right class, and that of all other classes.
        self.positive = 1 - gains.label_smoothing / 2
        self.negative = gains.label_smoothing / 2

    @classmethod
    def from_head(cls, head: AnchorBasedHead, gains: LossGains) -> "AnchorBasedLoss":
        """Return the loss for `head`. It copies the anchors, so they must already be fitted."""
        weights = class_weight_table(gains, head)
        return cls(head.anchors_px, head.strides, head.num_classes, gains, weights)

    @classmethod
    def used_settings(cls, head: AnchorBasedHead) -> tuple[str, ...]:
        """Return `uses`, without the class weights for a single class, which has no class term."""
        if head.num_classes > 1:
            return cls.uses
        return tuple(name for name in cls.uses if name != "class_weights")

    def assign(self, raw: list[Tensor], targets: Tensor) -> tuple[AnchorMatches, Tensor]:
        """Return the matches of targets and anchors, and the counts [L + 1].

        The counts are the number of matches of each level, and the number of images. raw: see
        `compute_terms`.
        """
        images = len(raw[0])
        grids = [(level.shape[2], level.shape[3]) for level in raw]
        matches = match_anchors(
            targets,
            self.anchors_px,
            strides=self.strides,
            images=images,
            grids=grids,
            anchor_t=self.gains.anchor_t,
        )

        match_counts = matches.valid.sum(1)
        image_count = torch.full((1,), images, device=targets.device)
        return matches, torch.cat([match_counts, image_count])

    def compute_terms(
        self, raw: list[Tensor], targets: Tensor, assignment: AnchorMatches, counts: Tensor
    ) -> dict[str, Tensor]:
        """Return this process's share of each term.

        raw: predictions [B, A, H, W, 5 + C] per level, cx, cy, w, h, objectness, classes.
        assignment: the matches. counts: of `assign`, summed over all processes.
        """
        matches = assignment
        images, anchors = raw[0].shape[:2]
        grids = [(level.shape[2], level.shape[3]) for level in raw]
        match_counts, image_count = counts.clamp(min=1).split([len(raw), 1])

        # The predictions of each level, in the order of their numbers.  [P, 4], [P, 1], [P, C]
        # split() instead of slices: backward then writes the gradient once, without adding maps of
        # mostly zeros.
        boxes = []
        objectness = []
        classes = []
        for level in raw:
            rows = level.permute(0, 2, 3, 1, 4).flatten(0, 3)
            level_boxes, level_objectness, level_classes = rows.split([4, 1, self.num_classes], 1)
            boxes.append(level_boxes)
            objectness.append(level_objectness)
            classes.append(level_classes)

        # The predictions of all levels are numbered one level after another, so that the terms of
        # all levels are computed together.
        cells_per_image = [height * width for height, width in grids]
        cells_before = [sum(cells_per_image[:level]) for level in range(len(raw))]
        first_of_level = device_constant(cells_before, targets, torch.int64) * (images * anchors)
        prediction = matches.prediction + first_of_level[:, None]  # [L, M]

        # Boxes: 1 - CIoU, mean over the matches of a level.
        raw_boxes = at_least_float32(_rows_at(torch.cat(boxes), prediction))
        iou = _predicted_iou(raw_boxes, matches)  # [L, M]
        box_sums = ((1 - iou) * matches.valid).sum(1)
        box = (box_sums / match_counts).sum()

        # Objectness: cross entropy of all cells, whose target is the CIoU of their match.
        # [cells of all levels, A]
        logits = at_least_float32(torch.cat(objectness)).view(-1, anchors)
        match_quality = iou.detach().clamp(0, 1)
        quality = _best_of_each(match_quality, prediction, matches.valid, logits.numel())
        quality = quality.view_as(logits)
        ignored_levels = ignored_cells(targets, images, self.strides, grids)
        ignored = torch.cat([cells.flatten() for cells in ignored_levels])
        entropies = self._objectness_entropies(logits, quality, ignored)

        # The mean over the cells of an image, summed over images; weighted by level.
        image_sums = []
        levels = entropies.split([images * cells for cells in cells_per_image])
        for of_level, cells in zip(levels, cells_per_image, strict=True):
            image_means = of_level.view(images, cells, anchors).mean((1, 2))
            image_sums.append(image_means.sum())
        balance = device_constant(self.balance, entropies)
        obj = (torch.stack(image_sums) * balance / image_count).sum()

        # Classes: cross entropy, mean over the matches of a level and classes.
        class_sums = self._class_sums(classes, matches)
        cls = (class_sums / (match_counts * self.num_classes)).sum()

        # The gain of objectness is for images of 640 px: times (image side / 640)^2.
        height, width = grids[0]
        relative_area = height * width * self.strides[0] ** 2 / 640**2
        return {
            "box": box * self.box_gain,
            "obj": obj * self.obj_gain * relative_area,
            "cls": cls * self.cls_gain,
        }

    def _objectness_entropies(self, logits: Tensor, quality: Tensor, ignored: Tensor) -> Tensor:
        """Return the cross entropy of each prediction, 0 for those that do not count; [cells, A].

        Those in ignore regions count only if they have a match.

        logits: [cells, A]. quality: [cells, A], -1 for predictions without a match. ignored:
        [cells], whether the cell is in an ignore region.
        """
        matched = quality >= 0
        loss = self._cross_entropy(logits, quality.clamp(min=0), self.gains.obj_pw)
        return loss * (matched | ~ignored[:, None])

    def _class_sums(self, classes: Sequence[Tensor], matches: AnchorMatches) -> Tensor:
        """Return the sum of the cross entropies of each level's matches and classes, [L].

        It is 0 for a single class, which objectness covers. classes: logits [P, C] of each level.

        All classes of a match are first counted as wrong; a second sum then corrects its own class.
        """
        if self.num_classes == 1:
            return at_least_float32(classes[0].new_zeros(len(classes)))

        # How much each match counts: 1, or the weight of its class; 0 for one that is not valid.
        counts = matches.valid.long()  # [L, M]
        match_weights = matches.valid
        if self.class_weights is not None:
            match_weights = self.class_weights[matches.class_id] * matches.valid
            counts = (match_weights * FIXED_POINT).round().long()

        right_logits = []
        sums_as_wrong = []
        for level, logits in enumerate(classes):
            right_logit, sum_as_wrong = self._all_as_wrong(
                logits,
                matches.prediction[level],
                matches.class_id[level],
                counts[level],
            )
            right_logits.append(right_logit)
            sums_as_wrong.append(sum_as_wrong)

        right_logit = torch.stack(right_logits)  # [L, M]: of each match's class
        as_right = self._cross_entropy(right_logit, self.positive, self.gains.cls_pw)
        as_wrong = self._cross_entropy(right_logit, self.negative, self.gains.cls_pw)
        corrections = (as_right - as_wrong) * match_weights
        wrong = torch.stack(sums_as_wrong)
        if self.class_weights is not None:
            wrong = wrong / FIXED_POINT
        return wrong + corrections.sum(1)

    def _all_as_wrong(
        self, logits: Tensor, prediction: Tensor, class_id: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the logit of each match's class, [M], and a sum with all classes as wrong.

        That is the sum of the cross entropies of all classes of all matches of a level, with the
        target of a wrong class. It runs over the matches; or in crowded batches, where few
        predictions are unmatched, over the predictions, each times its number of matches.

        logits: [P, C]. prediction, class_id, count: [M]; count is a whole number, 1 for a valid
        match, else 0, or a multiple of its weight. Sums of whole numbers have the same bits in any
        order.
        """
        if 2 * len(count) < len(logits):
            rows = at_least_float32(_rows_at(logits, prediction))  # [M, C]
            right_logit = rows.gather(1, class_id[:, None])[:, 0]
        else:
            rows = at_least_float32(logits)  # [P, C]
            place = prediction * self.num_classes + class_id
            right_logit = _rows_at(rows.reshape(-1, 1), place)[:, 0]
            count = count.new_zeros(len(rows)).scatter_add(0, prediction, count)

        entropies = self._cross_entropy(rows, self.negative, self.gains.cls_pw).sum(1)
        return right_logit, (entropies * count).sum()

    def _cross_entropy(self, logits: Tensor, target: Tensor | float, pos_weight: float) -> Tensor:
        """Return the elementwise binary cross entropy, as focal loss if fl_gamma > 0."""
        # -log(1 - p) = softplus(x), -log p = softplus(-x)
        loss = F.softplus(logits, threshold=SOFTPLUS_THRESHOLD)
        if torch.is_tensor(target) or target > 0:
            of_positive = F.softplus(-logits, threshold=SOFTPLUS_THRESHOLD)
            loss = (1 - target) * loss + target * pos_weight * of_positive
        if self.gains.fl_gamma == 0:
            return loss

        # Focal loss: times alpha * (1 - p_t)^gamma. A power below 1 has an infinite gradient at 0.
        one_minus_p_t = target * (-logits).sigmoid() + (1 - target) * logits.sigmoid()
        alpha = target * FOCAL_ALPHA + (1 - target) * (1 - FOCAL_ALPHA)
        return loss * alpha * one_minus_p_t.clamp(min=1e-9) ** self.gains.fl_gamma


def _rows_at(values: Tensor, index: Tensor) -> Tensor:
    """Return `values[index]`, with a gradient that has the same bits in every run.

    A row that is read several times gets the sum of several gradients, and their order decides the
    last bits. On a CPU the order is fixed for `gather`, but not for indexing, whose threads come in
    any order; on a GPU it is the other way round. values: [P, K]. index: of any shape.
    """
    if values.device.type != "cpu":
        return values[index]
    places = index.reshape(-1, 1).expand(-1, values.shape[1])
    return values.gather(0, places).view(*index.shape, values.shape[1])


def _predicted_iou(raw: Tensor, matches: AnchorMatches) -> Tensor:
    """Return the complete IoU [L, M] of the predicted boxes with their matched boxes.

    raw: x, y, w, h [L, M, 4]. Both boxes are relative to the cell's corner.
    """
    doubled = raw.sigmoid() * 2
    centers, sizes = doubled.split(2, -1)
    predicted = torch.cat([centers - 0.5, sizes.square() * matches.anchor_size], -1)
    return complete_iou(predicted, matches.boxes.to(raw.dtype))


def _best_of_each(quality: Tensor, prediction: Tensor, valid: Tensor, predictions: int) -> Tensor:
    """Return for each of the predictions the best quality among its matches, -1 if it has none.

    quality, prediction, valid: of the same shape. The maximum, unlike the last write, does not
    depend on the order of the targets.
    """
    unmatched = quality.new_full((predictions,), -1)
    of_valid = torch.where(valid, quality, -1)
    return unmatched.scatter_reduce(0, prediction.flatten(), of_valid.flatten(), "amax")
