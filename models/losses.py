"""Named, weighted loss terms, normalised over all processes.

Shapes: B images, A anchors per level, H W cells, C classes, T targets, M candidate matches (models/assign.py).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.assign import Matches, ignored_cells, match_anchors
from utils.boxes import complete_iou

# How much a level's objectness counts, finest level first: fine levels have many more cells.
OBJECTNESS_BALANCE_OF_3 = (4.0, 1.0, 0.4)
OBJECTNESS_BALANCE = (4.0, 1.0, 0.25, 0.06, 0.02)

FOCAL_ALPHA = 0.25  # weight of positives; negatives weigh 0.75


class AnchorLoss(nn.Module):
    """Box, objectness and class terms of an anchor-based head.

    box: 1 - CIoU, mean over a level's matches, summed over levels. obj: cross entropy of every cell with the CIoU of
    the box it predicts as its target (0 where it answers for none), mean over cells, weighted by level. cls: cross
    entropy per class, mean over a level's matches and classes.

    Raises ValueError for more than 5 levels.

    Source: facts of YOLOv5's behaviour; CIoU arXiv 1911.08287; focal loss arXiv 1708.02002 equation 5.
    """

    terms = ("box", "obj", "cls")
    anchors_px: Tensor

    def __init__(
        self,
        anchors_px: Tensor,
        strides: tuple[int, ...],
        num_classes: int,
        *,
        box_gain: float = 0.05,
        obj_gain: float = 1.0,
        cls_gain: float = 0.5,
        obj_pos_weight: float = 1.0,
        cls_pos_weight: float = 1.0,
        ratio_limit: float = 4.0,
        label_smoothing: float = 0.0,
        focal_gamma: float = 0.0,
    ) -> None:
        super().__init__()
        levels = len(strides)
        if levels > len(OBJECTNESS_BALANCE):
            raise ValueError(f"the loss weighs 1 to {len(OBJECTNESS_BALANCE)} levels, got {levels}")
        self.register_buffer("anchors_px", at_least_float32(anchors_px.detach().clone()), persistent=False)  # [L, A, 2]
        self.strides, self.num_classes, self.ratio_limit = tuple(strides), num_classes, ratio_limit
        self.balance = OBJECTNESS_BALANCE_OF_3 if levels == 3 else OBJECTNESS_BALANCE[:levels]
        self.box_gain = box_gain * 3 / levels
        self.cls_gain = cls_gain * num_classes / 80 * 3 / levels
        self.obj_gain = obj_gain * 3 / levels
        self.obj_pos_weight, self.cls_pos_weight = obj_pos_weight, cls_pos_weight
        self.positive, self.negative = 1 - label_smoothing / 2, label_smoothing / 2
        self.focal_gamma = focal_gamma

    def forward(
        self, maps: list[Tensor], targets: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """This process's share of each term: their sum over processes is the term of the whole batch.

        maps: raw predictions [B, A, H, W, 5 + C] per level, cx, cy, w, h, objectness, classes. targets: [T, 6] image,
        class, x1, y1, x2, y2 in pixels of the batch's images; class -1 is an ignore region. total: sums a tensor over
        all processes (World.sum); None for one process. The terms are scalars in float32, in float64 for float64 maps.
        """
        grids = [(raw.shape[2], raw.shape[3]) for raw in maps]
        levels = zip(self.anchors_px, self.strides, grids, strict=True)
        matches = [match_anchors(targets, anchors, stride, grid, self.ratio_limit) for anchors, stride, grid in levels]
        images = torch.full((), len(maps[0]), device=targets.device)
        counts = torch.stack([*(found.valid.sum() for found in matches), images])  # [L + 1], int64
        if total is not None:
            counts = total(counts)
        counts = counts.clamp(min=1)

        box, obj, cls = (self.anchors_px.new_zeros(()) for _ in range(3))
        for level, (raw, found) in enumerate(zip(maps, matches, strict=True)):
            chosen = at_least_float32(raw[found.image, found.anchor, found.row, found.column])  # [M, 5 + C]
            iou = _predicted_iou(chosen[:, :4], found)
            box = box + ((1 - iou) * found.valid).sum() / counts[level]
            cls = cls + self._class_sum(chosen[:, 5:], found) / (counts[level] * self.num_classes)
            ignored = ignored_cells(targets, len(raw), self.strides[level], grids[level])
            objectness = self._objectness_sum(at_least_float32(raw[..., 4]), iou, found, ignored)
            obj = obj + objectness * self.balance[level] / counts[-1]

        area = grids[0][0] * grids[0][1] * self.strides[0] ** 2 / 640**2  # (image side / 640)^2
        return {"box": box * self.box_gain, "obj": obj * self.obj_gain * area, "cls": cls * self.cls_gain}

    def _objectness_sum(self, logits: Tensor, iou: Tensor, found: Matches, ignored: Tensor) -> Tensor:
        """The mean over a level's cells, summed over images. logits: [B, A, H, W]. ignored: [B, H, W]."""
        quality = _best_per_cell(iou.detach().clamp(0, 1), found, logits.shape)
        matched = quality >= 0
        loss = self._cross_entropy(logits, quality.clamp(min=0), self.obj_pos_weight)
        return (loss * (matched | ~ignored[:, None])).mean((1, 2, 3)).sum()

    def _class_sum(self, logits: Tensor, found: Matches) -> Tensor:
        """The sum over matches and classes; 0 for a single class, of which objectness says it all. logits: [M, C]."""
        if self.num_classes == 1:
            return logits.new_zeros(())
        classes = torch.arange(self.num_classes, device=logits.device)
        wanted = (found.class_id[:, None] == classes).to(logits.dtype)  # torch's one_hot looks at the values first
        wanted = wanted * (self.positive - self.negative) + self.negative
        return (self._cross_entropy(logits, wanted, self.cls_pos_weight) * found.valid[:, None]).sum()

    def _cross_entropy(self, logits: Tensor, target: Tensor, pos_weight: float) -> Tensor:
        """Elementwise binary cross entropy, focal where focal_gamma > 0."""
        weight = logits.new_full((), pos_weight)
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none", pos_weight=weight)
        if self.focal_gamma == 0:
            return loss
        wrong = target * (-logits).sigmoid() + (1 - target) * logits.sigmoid()  # 1 - p_t
        alpha = target * FOCAL_ALPHA + (1 - target) * (1 - FOCAL_ALPHA)
        return loss * alpha * wrong.clamp(min=1e-9) ** self.focal_gamma  # a power below 1 is infinitely steep at 0


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 where it is: sums over a batch need more than 16 bits.

    >>> [at_least_float32(torch.zeros(1, dtype=dtype)).dtype for dtype in (torch.bfloat16, torch.float64)]
    [torch.float32, torch.float64]
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _predicted_iou(raw: Tensor, found: Matches) -> Tensor:
    """Complete IoU [M] of the boxes that raw x, y, w, h [M, 4] stand for with those they answer for, in cells."""
    doubled = raw.sigmoid() * 2
    predicted = torch.cat([doubled[:, :2] - 0.5, doubled[:, 2:].square() * found.anchor_size], -1)
    return complete_iou(predicted, found.boxes.to(raw.dtype))


def _best_per_cell(quality: Tensor, found: Matches, shape: torch.Size) -> Tensor:
    """[B, A, H, W]: the best quality [M] of the matches that claim a cell, -1 where none does.

    The maximum, unlike the last write, does not depend on the order of the targets.
    """
    _, anchors, height, width = shape
    cell = ((found.image * anchors + found.anchor) * height + found.row) * width + found.column
    unclaimed = quality.new_full((shape.numel(),), -1)
    return unclaimed.scatter_reduce(0, cell, torch.where(found.valid, quality, -1), "amax").view(shape)
