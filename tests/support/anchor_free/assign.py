"""Assignment of targets: a cell is assigned to the smallest box whose center region contains it."""

import torch
from torch import Tensor

from models.assign.targets import PADDING_CLASS
from tests.support.anchor_free.head import centers
from utils.boxes import to_cxcywh

RADIUS = 1.5  # cells


def assign_cells(
    targets: Tensor, stride: int, images: int, grid: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """For each cell of a level: whether it has a box [B, H * W], the box_xyxy in cells, and its
    class.

    targets: [T, 6] image, class, x1, y1, x2, y2 in pixels. A cell can be assigned to a box if the
    cell's center is in the box and less than RADIUS cells from the box's center in x and in y.
    """
    targets = torch.cat([targets, targets.new_full((1, 6), PADDING_CLASS)])  # so that T > 0
    boxes = targets[:, 2:] / stride
    middle, size = to_cxcywh(boxes).split(2, -1)
    center = centers(*grid, boxes)[:, None]  # [H * W, 1, 2]
    inside = (
        (center > boxes[:, :2]) & (center < boxes[:, 2:]) & ((center - middle).abs() < RADIUS)
    ).all(-1)  # [HW, T]
    owner = (
        torch.arange(images, device=targets.device)[:, None, None] == targets[:, 0].long()
    )  # [B, 1, T]
    area = torch.where(
        inside & owner & (targets[:, 1] >= 0), size.prod(-1), torch.inf
    )  # [B, H * W, T]
    smallest, row = area.min(-1)
    return smallest.isfinite(), boxes[row], targets[row, 1].long().clamp(min=0)
