"""Assignment by the ratio of sides between a box and an anchor.

Pure functions of the targets: they use no prediction, and no gradient flows through them.

Shapes: B images, T targets, A anchors per level, M = T * A * 3 candidate matches, H W cells of one level. The level's
B * H * W * A predictions are numbered in this order, which is the memory order of a channels_last tensor.
All candidates are kept, with a mask, so that shapes depend only on T and the host need not wait for a count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.assign.invalid import distribute_invalid
from utils.boxes import to_cxcywh


@dataclass(frozen=True)
class Matches:
    """Candidate matches of one level, each array [M]; entries where `valid` is False must not count."""

    prediction: Tensor  # int64, number of the matched prediction; arbitrary where not valid
    class_id: Tensor  # int64
    boxes: Tensor  # [M, 4] in the targets' dtype (float32): centre relative to the cell's corner, size; in cells
    anchor_size: Tensor  # [M, 2] in the targets' dtype (float32), in cells
    valid: Tensor  # bool


def match_anchors(
    targets: Tensor, anchors_px: Tensor, stride: float, images: int, grid: tuple[int, int], ratio_limit: float
) -> Matches:
    """Return the candidate matches of `targets` with one level's anchors.

    targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; a negative class or an empty box never matches. anchors_px:
    [A, 2]. images: B. grid: (H, W) cells. A target matches every anchor whose width and height both differ from its own
    by a factor below `ratio_limit`. For each such anchor it is assigned to the cell of its centre, the nearer cell to
    the left or right, and the nearer cell above or below, if they are inside the grid. Computed in the targets'
    precision, so that a model in float64 gets the same matches as in float32.

    Source: facts of YOLOv5's behaviour; the neighbour cells follow from the decode range (-0.5, 1.5) of a centre.
    """
    boxes = to_cxcywh(targets[:, 2:]) / stride  # [T, 4] in cells
    anchors = anchors_px.to(targets.dtype) / stride  # [A, 2]

    ratio = boxes[:, None, 2:] / anchors  # [T, A, 2]
    fits = torch.minimum(ratio, 1 / ratio).amin(-1) > 1 / ratio_limit  # [T, A], False for a size that is not positive
    fits &= (targets[:, 1] >= 0)[:, None]

    cells, inside = _claimed_cells(boxes[:, :2], grid)  # [T, 3, 2], [T, 3]

    def spread(values: Tensor, dims: tuple[int, ...] = ()) -> Tensor:
        """Broadcast to [T, A, 3, *dims], as [M, *dims]."""
        return values.expand(len(targets), len(anchors), 3, *dims).reshape(-1, *dims)

    valid = spread(fits[:, :, None] & inside[:, None])
    height, width = grid
    columns, rows = cells.long().unbind(-1)
    cell = (targets[:, :1].long() * height + rows) * width + columns  # [T, 3]
    number = spread(cell[:, None] * len(anchors) + torch.arange(len(anchors), device=targets.device)[:, None])
    centers = spread((boxes[:, None, :2] - cells)[:, None], (2,))
    sizes = spread(boxes[:, None, None, 2:], (2,))
    return Matches(
        prediction=distribute_invalid(number, valid, images * height * width * len(anchors)),
        class_id=spread(targets[:, None, None, 1].long().clamp(min=0)),
        boxes=torch.cat([centers, sizes], -1),
        anchor_size=spread(anchors[None, :, None], (2,)),
        valid=valid,
    )


def _claimed_cells(centers: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the cell of each centre, its nearer horizontal neighbour and its nearer vertical neighbour.

    They are [T, 3, 2] (column, row), with a mask [T, 3] of those inside the grid. Cells outside are moved to the border
    so that their indices are valid. A centre in the middle of a cell counts as nearer to the next column or row.
    """
    height, width = grid
    x, y = centers.unbind(-1)
    column, row = x.floor(), y.floor()
    near_column = torch.where(x - column < 0.5, column - 1, column + 1)
    near_row = torch.where(y - row < 0.5, row - 1, row + 1)
    columns = torch.stack([column, near_column, column], 1)  # [T, 3]
    rows = torch.stack([row, row, near_row], 1)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    return torch.stack([columns.clamp(0, width - 1), rows.clamp(0, height - 1)], -1), inside
