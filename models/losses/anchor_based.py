"""Box, objectness and class terms of the anchor-based head, normalised over all processes.

Shapes: B images, A anchors per level, H W cells, C classes, T targets, M candidate matches, P = B * H * W * A
predictions, in the order of models/assign/anchor_ratio.py.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.anchor_ratio import Matches, match_anchors
from models.assign.ignored import ignored_cells
from models.heads.anchor_based import AnchorBasedHead
from models.losses import Loss, LossGains, at_least_float32
from utils.boxes import complete_iou

# Weight of each level's objectness term, finest level first: fine levels have many more cells.
OBJECTNESS_BALANCE_OF_3 = (4.0, 1.0, 0.4)
OBJECTNESS_BALANCE = (4.0, 1.0, 0.25, 0.06, 0.02)

SOFTPLUS_THRESHOLD = 40.0  # above this x, log(1 + exp(x)) equals x even in float64
FOCAL_ALPHA = 0.25  # weight of positives; negatives weigh 0.75


class AnchorBasedLoss(Loss):
    """The loss terms of an anchor-based head.

    box: 1 - CIoU, mean over a level's matches, summed over levels. obj: cross entropy of every cell, whose target is
    the CIoU of its predicted box with its matched box (0 without a match), mean over cells, weighted by level. cls:
    cross entropy per class, mean over a level's matches and classes.

    Raises ValueError for more than 5 levels.

    Source: facts of YOLOv5's behaviour; CIoU arXiv 1911.08287; focal loss arXiv 1708.02002 equation 5.
    """

    terms = ("box", "obj", "cls")
    anchors_px: Tensor

    def __init__(self, anchors_px: Tensor, strides: tuple[int, ...], num_classes: int, gains: LossGains) -> None:
        super().__init__()
        levels = len(strides)
        if levels > len(OBJECTNESS_BALANCE):
            raise ValueError(f"the loss supports 1 to {len(OBJECTNESS_BALANCE)} levels, got {levels}")
        self.register_buffer("anchors_px", at_least_float32(anchors_px.detach().clone()), persistent=False)  # [L, A, 2]
        self.strides, self.num_classes, self.gains = tuple(strides), num_classes, gains
        finest_first = OBJECTNESS_BALANCE_OF_3 if levels == 3 else OBJECTNESS_BALANCE
        order = sorted(range(levels), key=strides.__getitem__)
        self.balance = [finest_first[order.index(level)] for level in range(levels)]
        self.box_gain = gains.box * 3 / levels
        self.cls_gain = gains.cls * num_classes / 80 * 3 / levels
        self.obj_gain = gains.obj * 3 / levels
        self.positive, self.negative = 1 - gains.label_smoothing / 2, gains.label_smoothing / 2

    @classmethod
    def from_head(cls, head: AnchorBasedHead, gains: LossGains) -> "AnchorBasedLoss":
        """Return the loss for `head`. It copies the anchors, so they must already be fitted."""
        return cls(head.anchors_px, head.strides, head.num_classes, gains)

    def forward(
        self, maps: list[Tensor], targets: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return this process's share of each term: the sum over all processes is the term of the whole batch.

        maps: raw predictions [B, A, H, W, 5 + C] per level, cx, cy, w, h, objectness, classes. targets: [T, 6] image,
        class, x1, y1, x2, y2 in pixels of the batch's images; class -1 is an ignore region. total: sums a tensor over
        all processes (World.all_reduce_sum); None for a single process. The terms are scalars in float32, or in float64
        for float64 maps.
        """
        grids = [(raw.shape[2], raw.shape[3]) for raw in maps]
        matches = [
            match_anchors(targets, anchors, stride, len(maps[0]), grid, self.gains.ratio_limit)
            for anchors, stride, grid in zip(self.anchors_px, self.strides, grids, strict=True)
        ]
        images = torch.full((), len(maps[0]), device=targets.device)
        counts = torch.stack([*(found.valid.sum() for found in matches), images])  # [L + 1], int64
        if total is not None:
            counts = total(counts)
        counts = counts.clamp(min=1)

        ignored = ignored_cells(targets, len(maps[0]), self.strides, grids)
        box, obj, cls = (self.anchors_px.new_zeros(()) for _ in range(3))
        for level, (raw, found) in enumerate(zip(maps, matches, strict=True)):
            # split() instead of slices: backward then writes the gradient once, without adding maps of mostly zeros.
            boxes, objectness, classes = raw.permute(0, 2, 3, 1, 4).flatten(0, 3).split([4, 1, self.num_classes], 1)
            iou = _predicted_iou(at_least_float32(boxes[found.prediction]), found)
            box = box + ((1 - iou) * found.valid).sum() / counts[level]
            cls = cls + self._class_sum(classes, found) / (counts[level] * self.num_classes)
            logits = at_least_float32(objectness).view(*ignored[level].shape, raw.shape[1])
            obj = obj + self._objectness_sum(logits, iou, found, ignored[level]) * self.balance[level] / counts[-1]

        area = grids[0][0] * grids[0][1] * self.strides[0] ** 2 / 640**2  # (image side / 640)^2
        return {"box": box * self.box_gain, "obj": obj * self.obj_gain * area, "cls": cls * self.cls_gain}

    def _objectness_sum(self, logits: Tensor, iou: Tensor, found: Matches, ignored: Tensor) -> Tensor:
        """Return the mean over a level's cells, summed over images. logits: [B, H, W, A]. ignored: [B, H, W]."""
        quality = _best_of_each(iou.detach().clamp(0, 1), found, logits.numel()).view_as(logits)
        matched = quality >= 0
        loss = self._cross_entropy(logits, quality.clamp(min=0), self.gains.obj_pos_weight)
        return (loss * (matched | ~ignored[..., None])).mean((1, 2, 3)).sum()

    def _class_sum(self, logits: Tensor, found: Matches) -> Tensor:
        """Return the sum over matches and classes; 0 for a single class, which objectness covers. logits: [P, C].

        Every class is first counted as negative; a second sum then corrects the class of each match. In crowded
        batches, where few predictions are unmatched, the first sum runs over predictions, each weighted by its number
        of matches, instead of over matches.
        """
        if self.num_classes == 1:
            return at_least_float32(logits.new_zeros(()))
        row, count = found.prediction, found.valid.long()
        if 2 * len(count) < len(logits):
            logits, row = logits[row], torch.arange(len(count), device=logits.device)
        else:
            count = count.new_zeros(len(logits)).scatter_add(0, row, count)
        rows = at_least_float32(logits)
        right = rows.flatten()[row * self.num_classes + found.class_id]  # [M]
        wrong = self._cross_entropy(rows, self.negative, self.gains.cls_pos_weight).sum(1)
        as_right, as_wrong = (
            self._cross_entropy(right, wanted, self.gains.cls_pos_weight) for wanted in (self.positive, self.negative)
        )
        return (wrong * count).sum() + ((as_right - as_wrong) * found.valid).sum()

    def _cross_entropy(self, logits: Tensor, target: Tensor | float, pos_weight: float) -> Tensor:
        """Return the elementwise binary cross entropy, as focal loss if focal_gamma > 0."""
        loss = F.softplus(logits, threshold=SOFTPLUS_THRESHOLD)
        if torch.is_tensor(target) or target > 0:
            loss = (1 - target) * loss + target * pos_weight * F.softplus(-logits, threshold=SOFTPLUS_THRESHOLD)
        if self.gains.focal_gamma == 0:
            return loss
        wrong = target * (-logits).sigmoid() + (1 - target) * logits.sigmoid()  # 1 - p_t
        alpha = target * FOCAL_ALPHA + (1 - target) * (1 - FOCAL_ALPHA)
        return (
            loss * alpha * wrong.clamp(min=1e-9) ** self.gains.focal_gamma
        )  # gradient of a power below 1 is infinite at 0


def _predicted_iou(raw: Tensor, found: Matches) -> Tensor:
    """Return the complete IoU [M] of the boxes decoded from raw x, y, w, h [M, 4] with their matched boxes."""
    doubled = raw.sigmoid() * 2
    predicted = torch.cat([doubled[:, :2] - 0.5, doubled[:, 2:].square() * found.anchor_size], -1)
    return complete_iou(predicted, found.boxes.to(raw.dtype))


def _best_of_each(quality: Tensor, found: Matches, predictions: int) -> Tensor:
    """Return [P]: the best quality [M] among the matches of each prediction, -1 if it has none.

    The maximum, unlike the last write, does not depend on the order of the targets.
    """
    unmatched = quality.new_full((predictions,), -1)
    return unmatched.scatter_reduce(0, found.prediction, torch.where(found.valid, quality, -1), "amax")
