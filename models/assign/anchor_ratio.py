"""Assignment by the ratio of sides between a box and an anchor.

Pure functions of the targets: no prediction is looked at, no gradient flows.

Shapes: B images, T targets, A anchors per level, M = T * A * 3 candidate matches, H W cells of one level, of which
B * H * W * A predictions are made, numbered in this order, which is that of a channels_last tensor.
All candidates are kept, with a mask, so that shapes depend on T alone and the device never waits for a count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from utils.boxes import to_cxcywh


@dataclass(frozen=True)
class Matches:
    """Candidate matches of one level, each array [M]; where `valid` is False the entry must not count."""

    prediction: Tensor  # int64, its number; where not valid, that of any one
    class_id: Tensor  # int64
    boxes: Tensor  # as the targets, float32 [M, 4], centre relative to the cell's corner and size, in cells
    anchor_size: Tensor  # as the targets, float32 [M, 2], in cells
    valid: Tensor  # bool


def match_anchors(
    targets: Tensor, anchors_px: Tensor, stride: float, images: int, grid: tuple[int, int], ratio_limit: float
) -> Matches:
    """Candidate matches of `targets` with one level's anchors.

    targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; a negative class or an empty box never matches. anchors_px:
    [A, 2]. images: B. grid: (H, W) cells. A target matches every anchor whose width and height both differ from its own
    by a factor below `ratio_limit`, and claims for it its centre's cell, the nearer neighbour across and the nearer one
    up or down, as far as they lie inside the grid. Decided in the targets' precision, so that a model in float64
    matches as it does in float32.

    Source: facts of YOLOv5's behaviour; the neighbour cells follow from the decode range (-0.5, 1.5) of a centre.
    """
    boxes = to_cxcywh(targets[:, 2:]) / stride  # [T, 4] in cells
    anchors = anchors_px.to(targets.dtype) / stride  # [A, 2]

    ratio = boxes[:, None, 2:] / anchors  # [T, A, 2]
    fits = torch.minimum(ratio, 1 / ratio).amin(-1) > 1 / ratio_limit  # [T, A], False for a size that is not positive
    fits &= (targets[:, 1] >= 0)[:, None]

    cells, inside = _claimed_cells(boxes[:, :2], grid)  # [T, 3, 2], [T, 3]

    def spread(values: Tensor, dims: tuple[int, ...] = ()) -> Tensor:
        """What broadcasts to [T, A, 3, ...] as [M, ...]."""
        return values.expand(len(targets), len(anchors), 3, *dims).reshape(-1, *dims)

    valid = spread(fits[:, :, None] & inside[:, None])
    height, width = grid
    columns, rows = cells.long().unbind(-1)
    cell = (targets[:, :1].long() * height + rows) * width + columns  # [T, 3]
    number = spread(cell[:, None] * len(anchors) + torch.arange(len(anchors), device=targets.device)[:, None])
    # A GPU adds gradients of one prediction one after the other: those that do not count go to different ones.
    others = torch.arange(len(number), device=targets.device) % max(images * height * width * len(anchors), 1)
    centers = spread((boxes[:, None, :2] - cells)[:, None], (2,))
    sizes = spread(boxes[:, None, None, 2:], (2,))
    return Matches(
        prediction=torch.where(valid, number, others),
        class_id=spread(targets[:, None, None, 1].long().clamp(min=0)),
        boxes=torch.cat([centers, sizes], -1),
        anchor_size=spread(anchors[None, :, None], (2,)),
        valid=valid,
    )


def _claimed_cells(centers: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The own cell, the nearer one across, the nearer one up or down: ([T, 3, 2] column, row; [T, 3] inside the grid).

    Cells outside the grid are moved to its border, so that they can be looked up. Halfway, the nearer one is the next.
    """
    height, width = grid
    x, y = centers.unbind(-1)
    column, row = x.floor(), y.floor()
    across = torch.where(x - column < 0.5, column - 1, column + 1)
    along = torch.where(y - row < 0.5, row - 1, row + 1)
    columns = torch.stack([column, across, column], 1)  # [T, 3]
    rows = torch.stack([row, row, along], 1)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    return torch.stack([columns.clamp(0, width - 1), rows.clamp(0, height - 1)], -1), inside
