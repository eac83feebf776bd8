"""The loss: complete IoU of the cells with a box, and cross entropy of all cells."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from models.assign.targets import ignored_cells
from models.losses.base import Loss, LossGains, at_least_float32
from tests.support.anchor_free.assign import assign_cells
from tests.support.anchor_free.head import AnchorFreeHead, corners
from utils.boxes import complete_iou, to_cxcywh


class CellAssignment(NamedTuple):
    """What each cell of a level has: whether a box, which, and its class. [B, H * W], boxes with 4
    sides.
    """

    positive: Tensor
    boxes: Tensor
    classes: Tensor


class AnchorFreeLoss(Loss):
    """box: 1 - CIoU; cls: cross entropy, summed over classes and over all cells outside ignore
    regions.

    Both are divided by the number of cells with a box in the whole batch.
    """

    terms = ("box", "cls")
    uses = ("box", "cls")

    def __init__(
        self, strides: tuple[int, ...], *, box_gain: float = 1.0, cls_gain: float = 1.0
    ) -> None:
        super().__init__()
        self.strides, self.box_gain, self.cls_gain = strides, box_gain, cls_gain

    @classmethod
    def from_head(cls, head: AnchorFreeHead, gains: LossGains) -> "AnchorFreeLoss":
        return cls(head.strides, box_gain=gains.box, cls_gain=gains.cls)

    def assign(
        self, raw: list[tuple[Tensor, Tensor]], targets: Tensor
    ) -> tuple[list[CellAssignment], Tensor]:
        """Return what the cells of each level have, and the number of cells with a box, [L]."""
        assignment = []
        for (distances, _), stride in zip(raw, self.strides, strict=True):
            grid = tuple(distances.shape[2:])
            assignment.append(CellAssignment(*assign_cells(targets, stride, len(distances), grid)))
        return assignment, torch.stack([of_level.positive.sum() for of_level in assignment])

    def compute_terms(
        self,
        raw: list[tuple[Tensor, Tensor]],
        targets: Tensor,
        assignment: list[CellAssignment],
        counts: Tensor,
    ) -> dict[str, Tensor]:
        """Return this process's share of each term."""
        cells = counts.sum().clamp(min=1)
        box, cls = [], []
        for (distances, logits), stride, of_level in zip(
            raw, self.strides, assignment, strict=True
        ):
            positive, boxes, classes = of_level
            grid = tuple(distances.shape[2:])
            distances = at_least_float32(distances)
            logits = at_least_float32(logits).flatten(2).mT  # [B, H * W, C]

            predicted = corners(distances)
            boxes = torch.where(positive[..., None], boxes.to(predicted.dtype), predicted.detach())
            iou = complete_iou(to_cxcywh(predicted), to_cxcywh(boxes))
            box.append(((1 - iou) * positive).sum())

            number = torch.arange(logits.shape[2], device=logits.device)
            wanted = ((classes[..., None] == number) & positive[..., None]).to(logits.dtype)
            entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            (ignored,) = ignored_cells(targets, len(logits), [stride], [grid])
            cls.append((entropy.sum(-1) * (positive | ~ignored.flatten(1))).sum())
        return {"box": sum(box) / cells * self.box_gain, "cls": sum(cls) / cells * self.cls_gain}
