"""Which prediction answers for which box. Pure functions of the targets: no prediction is looked at, no gradient flows.

Shapes: T targets, A anchors per level, M = T * A * 3 candidate matches, H W cells of one level.
All candidates are kept, with a mask, so that shapes depend on T alone and the device never waits for a count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from utils.boxes import to_cxcywh


@dataclass(frozen=True)
class Matches:
    """Candidate matches of one level, each array [M]; where `valid` is False the entry must not count."""

    image: Tensor  # int64, index in the batch
    anchor: Tensor  # int64
    row: Tensor  # int64, cell
    column: Tensor  # int64, cell
    class_id: Tensor  # int64
    boxes: Tensor  # float32 [M, 4], centre relative to the cell's corner and size, in cells
    anchor_size: Tensor  # float32 [M, 2], in cells
    valid: Tensor  # bool


def match_anchors(
    targets: Tensor, anchors_px: Tensor, stride: float, grid: tuple[int, int], ratio_limit: float
) -> Matches:
    """Candidate matches of `targets` with one level's anchors.

    targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; a negative class never matches. anchors_px: [A, 2].
    grid: (H, W) cells. A target matches every anchor whose width and height both differ from its own by a factor below
    `ratio_limit`, and claims for it its centre's cell and the nearer neighbour across and the nearer one up or down,
    where they lie inside the grid.

    Source: facts of YOLOv5's behaviour; the neighbour cells follow from the decode range (-0.5, 1.5) of a centre.
    """
    height, width = grid
    boxes = to_cxcywh(targets[:, 2:]) / stride  # [T, 4] in cells
    anchors = anchors_px / stride  # [A, 2]

    ratio = boxes[:, None, 2:] / anchors[None]  # [T, A, 2]
    fits = torch.maximum(ratio, 1 / ratio).amax(-1) < ratio_limit  # [T, A]
    fits &= (targets[:, 1] >= 0)[:, None]

    cells, inside = _claimed_cells(boxes[:, :2], height, width)  # [T, 3, 2], [T, 3]

    def spread(values: Tensor, dims: tuple[int, ...]) -> Tensor:  # -> [T, A, 3, ...] -> [M, ...]
        return values.expand(len(targets), len(anchors), 3, *dims).reshape(-1, *dims)

    columns_rows = spread(cells[:, None], (2,))
    centers = spread(boxes[:, None, None, :2], (2,)) - columns_rows
    sizes = spread(boxes[:, None, None, 2:], (2,))
    return Matches(
        image=spread(targets[:, None, None, 0].long(), ()),
        anchor=spread(torch.arange(len(anchors), device=targets.device)[None, :, None], ()),
        row=columns_rows[:, 1].long(),
        column=columns_rows[:, 0].long(),
        class_id=spread(targets[:, None, None, 1].long().clamp(min=0), ()),
        boxes=torch.cat([centers, sizes], -1),
        anchor_size=spread(anchors[None, :, None], (2,)),
        valid=spread(fits[:, :, None] & inside[:, None], ()),
    )


def _claimed_cells(centers: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(cells [T, 3, 2] as column, row; inside [T, 3] bool): own cell, nearer one across, nearer one up or down."""
    limit = centers.new_tensor([width, height])
    own = centers.floor()
    step = torch.where(centers - own < 0.5, -1.0, 1.0)  # [T, 2]
    moves = torch.stack([torch.zeros_like(step), step * step.new_tensor([1, 0]), step * step.new_tensor([0, 1])], 1)
    cells = own[:, None] + moves
    inside = ((cells >= 0) & (cells < limit)).all(-1)
    return torch.minimum(cells.clamp(min=0), limit - 1), inside


def ignored_cells(targets: Tensor, images: int, stride: float, grid: tuple[int, int]) -> Tensor:
    """bool [B, H, W]: cells whose centre lies in an ignore region, a target of class -1.

    Targets of other classes do not count. Memory is T * H * W booleans of the ignore regions alone.
    """
    height, width = grid
    regions = targets[targets[:, 1] == -1]
    ignored = torch.zeros(images, height, width, dtype=torch.bool, device=targets.device)
    if len(regions) == 0:
        return ignored
    x = (torch.arange(width, device=targets.device) + 0.5) * stride
    y = (torch.arange(height, device=targets.device) + 0.5) * stride
    left, top, right, bottom = regions[:, 2:].T[..., None]  # each [R, 1]
    across, down = (x > left) & (x < right), (y > top) & (y < bottom)  # [R, W], [R, H]
    count = torch.zeros(images, height, width, device=targets.device)
    count.index_add_(0, regions[:, 0].long(), (down[:, :, None] & across[:, None]).float())
    return count > 0
