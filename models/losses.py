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
OBJECTNESS_BALANCE = {3: (4.0, 1.0, 0.4)}
OBJECTNESS_BALANCE_DEEP = (4.0, 1.0, 0.25, 0.06, 0.02)


class AnchorLoss(nn.Module):
    """Box, objectness and class terms of an anchor-based head.

    box: 1 - CIoU, mean over a level's matches, summed over levels. obj: cross entropy of every cell with the CIoU of the
    box it predicts as its target, weighted by level. cls: cross entropy per class, mean over a level's matches.

    Source: facts of YOLOv5's behaviour; CIoU arXiv 1911.08287; focal loss arXiv 1708.02002 equation 5.
    """

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
        self.register_buffer("anchors_px", anchors_px.detach().clone().float(), persistent=False)  # [L, A, 2]
        self.strides, self.num_classes, self.ratio_limit = tuple(strides), num_classes, ratio_limit
        self.balance = OBJECTNESS_BALANCE.get(levels, OBJECTNESS_BALANCE_DEEP[:levels])
        self.box_gain = box_gain * 3 / levels
        self.cls_gain = cls_gain * num_classes / 80 * 3 / levels
        self.obj_gain = obj_gain * 3 / levels
        self.obj_pos_weight, self.cls_pos_weight = obj_pos_weight, cls_pos_weight
        self.positive, self.negative = 1 - label_smoothing / 2, label_smoothing / 2
        self.focal_gamma = focal_gamma

    def forward(
        self, maps: list[Tensor], targets: Tensor, total: Callable[[Tensor], Tensor] | None = None
    ) -> dict[str, Tensor]:
        """This process's share of each term, float32 scalars: their sum over processes is the term of the whole batch.

        maps: raw predictions [B, A, H, W, 5 + C] per level, cx, cy, w, h, objectness, classes. targets: [T, 6] image,
        class, x1, y1, x2, y2 in pixels of the batch's images; class -1 is an ignore region. total: sums a tensor over
        all processes (World.sum); None for one process.
        """
        grids = [(m.shape[2], m.shape[3]) for m in maps]
        levels = zip(self.anchors_px, self.strides, grids, strict=True)
        matches = [match_anchors(targets, a, s, g, self.ratio_limit) for a, s, g in levels]
        counts = torch.stack([m.valid.sum() for m in matches] + [targets.new_tensor(len(maps[0])).long()])
        counts = (total(counts) if total else counts).clamp(min=1).float()  # [L matches..., images]

        terms = {"box": counts.new_zeros(()), "obj": counts.new_zeros(()), "cls": counts.new_zeros(())}
        for level, (predicted, found) in enumerate(zip(maps, matches, strict=True)):
            box, obj, cls = self._level(predicted, found, targets, self.strides[level])
            terms["box"] = terms["box"] + box / counts[level]
            terms["cls"] = terms["cls"] + cls / (counts[level] * self.num_classes)
            terms["obj"] = terms["obj"] + obj * self.balance[level] / counts[-1]

        size = grids[0][0] * grids[0][1] * self.strides[0] ** 2 / 640**2  # (image side / 640)^2
        return {
            "box": terms["box"] * self.box_gain,
            "obj": terms["obj"] * self.obj_gain * size,
            "cls": terms["cls"] * self.cls_gain,
        }

    def _level(self, maps: Tensor, found: Matches, targets: Tensor, stride: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over one level: of box and class terms over matches, of objectness over images (mean over cells)."""
        images, _, height, width, _ = maps.shape
        chosen = maps[found.image, found.anchor, found.row, found.column].float()  # [M, 5 + C]
        xy = chosen[:, :2].sigmoid() * 2 - 0.5
        wh = (chosen[:, 2:4].sigmoid() * 2).square() * found.anchor_size
        iou = complete_iou(torch.cat([xy, wh], -1), found.boxes)  # [M]
        box = ((1 - iou) * found.valid).sum()

        objectness = maps[..., 4].float()
        quality = torch.where(found.valid, iou.detach().clamp(min=0), 0)
        target = _highest_per_cell(quality, found, objectness.shape)
        weight = ~ignored_cells(targets, images, stride, (height, width))[:, None] | (target > 0)
        obj = (self._cross_entropy(objectness, target, self.obj_pos_weight) * weight).mean((1, 2, 3)).sum()

        if self.num_classes == 1:  # objectness says it all
            return box, obj, box.new_zeros(())
        wanted = F.one_hot(found.class_id, self.num_classes) * (self.positive - self.negative) + self.negative
        cls = self._cross_entropy(chosen[:, 5:], wanted, self.cls_pos_weight).sum(-1)
        return box, obj, (cls * found.valid).sum()

    def _cross_entropy(self, logits: Tensor, target: Tensor, pos_weight: float) -> Tensor:
        """Elementwise binary cross entropy, focal where focal_gamma > 0."""
        weight = None if pos_weight == 1 else logits.new_tensor(pos_weight)
        loss = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none", pos_weight=weight)
        if self.focal_gamma == 0:
            return loss
        probability = logits.sigmoid()
        right = target * probability + (1 - target) * (1 - probability)
        alpha = target * 0.25 + (1 - target) * 0.75
        return loss * alpha * (1 - right) ** self.focal_gamma


def _highest_per_cell(quality: Tensor, found: Matches, shape: torch.Size) -> Tensor:
    """[B, A, H, W]: the best quality of the matches that claim a cell, 0 where none does.

    The maximum, unlike the last write, does not depend on the order of the targets.
    """
    _, anchors, height, width = shape
    cell = ((found.image * anchors + found.anchor) * height + found.row) * width + found.column
    flat = quality.new_zeros(shape.numel())
    return flat.scatter_reduce(0, cell, quality, "amax").view(shape)
