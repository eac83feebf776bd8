"""The loss: complete IoU of the cells with a box, and cross entropy of all cells."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.ignored import ignored_cells
from models.losses import Loss, LossGains, at_least_float32
from tests.support.anchor_free.assign import assign_cells
from tests.support.anchor_free.head import AnchorFreeHead, corners
from utils.boxes import complete_iou, to_cxcywh


class AnchorFreeLoss(Loss):
    """box: 1 - CIoU; cls: cross entropy, summed over classes and over all cells outside ignore regions.

    Both are divided by the number of cells with a box in the whole batch.
    """

    terms = ("box", "cls")

    def __init__(self, strides: tuple[int, ...], *, box_gain: float = 1.0, cls_gain: float = 1.0) -> None:
        super().__init__()
        self.strides, self.box_gain, self.cls_gain = strides, box_gain, cls_gain

    @classmethod
    def from_head(cls, head: AnchorFreeHead, gains: LossGains) -> "AnchorFreeLoss":
        return cls(head.strides, box_gain=gains.box, cls_gain=gains.cls)

    def forward(
        self,
        raw: list[tuple[Tensor, Tensor]],
        targets: Tensor,
        total: Callable[[Tensor], Tensor] | None = None,
    ) -> dict[str, Tensor]:
        box, cls, count = [], [], []
        for (distances, logits), stride in zip(raw, self.strides, strict=True):
            distances, logits = at_least_float32(distances), at_least_float32(logits).flatten(2).mT  # [B, H * W, C]
            images, grid = len(logits), tuple(distances.shape[2:])
            positive, boxes, classes = assign_cells(targets, stride, images, grid)
            predicted = corners(distances)
            boxes = torch.where(positive[..., None], boxes.to(predicted.dtype), predicted.detach())
            iou = complete_iou(to_cxcywh(predicted), to_cxcywh(boxes))
            box.append(((1 - iou) * positive).sum())
            wanted = (classes[..., None] == torch.arange(logits.shape[2], device=logits.device)) & positive[..., None]
            (ignored,) = ignored_cells(targets, images, [stride], [grid])
            counts = positive | ~ignored.flatten(1)
            entropy = F.binary_cross_entropy_with_logits(logits, wanted.to(logits.dtype), reduction="none")
            cls.append((entropy.sum(-1) * counts).sum())
            count.append(positive.sum())
        counted = torch.stack(count)  # [L]
        cells = (counted if total is None else total(counted)).sum().clamp(min=1)
        return {"box": sum(box) / cells * self.box_gain, "cls": sum(cls) / cells * self.cls_gain}
