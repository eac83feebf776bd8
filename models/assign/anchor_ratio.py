"""Assignment by the ratio of sides between a box and an anchor.

Pure functions of the targets: they use no prediction, and no gradient flows through them.

Shapes: B images, L levels, T targets, A anchors per level, M = T * A * 3 candidate matches of a
level, H W cells of a level. A level's B * H * W * A predictions are numbered in this order, which
is the memory order of a channels_last tensor. All candidates are kept, with a mask, so that shapes
depend only on T and the host need not wait for a count. All levels are matched together, because a
GPU is bound by the number of kernels here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.assign.invalid import distribute_invalid
from models.assign.levels import per_level
from utils.boxes import to_cxcywh


@dataclass(frozen=True)
class Matches:
    """Candidate matches of all levels, each array [L, M]; entries where `valid` is False must not
    count.
    """

    # int64, number of the matched prediction within its level; arbitrary where not valid
    prediction: Tensor
    class_id: Tensor  # int64
    # [L, M, 4] in the targets' dtype (float32): centre relative to the cell's corner, size; in
    # cells
    boxes: Tensor
    anchor_size: Tensor  # [L, M, 2] in the targets' dtype (float32), in cells
    valid: Tensor  # bool


def match_anchors(
    targets: Tensor,
    anchors_px: Tensor,
    strides: Sequence[float],
    images: int,
    grids: Sequence[tuple[int, int]],
    ratio_limit: float,
) -> Matches:
    """Return the candidate matches of `targets` with the anchors of all levels.

    A target matches every anchor whose width and height both differ from its own by a factor below
    `ratio_limit`. For each such anchor it is assigned to the cell of its centre, the nearer cell to
    the left or right, and the nearer cell above or below, if they are inside the grid. Computed in
    the targets' precision, so that a model in float64 gets the same matches as in float32.

    Args:
        targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; a negative class or an empty box
            never matches.
        anchors_px: [L, A, 2].
        strides: pixels per cell of each level.
        images: B.
        grids: (H, W) cells of each level.
        ratio_limit: above 1.

    Source: facts of YOLOv5's behaviour; the neighbour cells follow from the decode range (-0.5,
    1.5) of a centre.
    """
    levels, anchors_per_level, _ = anchors_px.shape
    stride = per_level(strides, targets)[:, None, None]
    boxes = to_cxcywh(targets[:, 2:]) / stride  # [L, T, 4] in cells
    anchors = anchors_px.to(targets.dtype) / stride  # [L, A, 2]

    ratio = boxes[:, :, None, 2:] / anchors[:, None]  # [L, T, A, 2]
    # [L, T, A], False for a size that is not positive
    fits = torch.minimum(ratio, 1 / ratio).amin(-1) > 1 / ratio_limit
    fits &= (targets[:, 1] >= 0)[:, None]

    sides = [float(side) for height, width in grids for side in (width, height)]
    cells, inside = _claimed_cells(boxes[..., :2], per_level(sides, targets).view(levels, 1, 1, 2))

    def spread(values: Tensor, dims: tuple[int, ...] = ()) -> Tensor:
        """Broadcast to [L, T, A, 3, *dims], as [L, M, *dims]."""
        return values.expand(levels, len(targets), anchors_per_level, 3, *dims).flatten(1, 3)

    valid = spread(fits[..., None] & inside[:, :, None])

    heights_and_widths = per_level([side for grid in grids for side in grid], targets, torch.int64)
    height, width = heights_and_widths.view(levels, 2, 1, 1).unbind(1)
    columns, rows = cells.long().unbind(-1)  # [L, T, 3]
    cell = (targets[:, :1].long() * height + rows) * width + columns
    anchor = torch.arange(anchors_per_level, device=targets.device)[:, None]
    number = spread(cell[:, :, None] * anchors_per_level + anchor)
    per_image = per_level(
        [height * width * anchors_per_level for height, width in grids], targets, torch.int64
    )

    centers = spread((boxes[:, :, None, :2] - cells)[:, :, None], (2,))
    sizes = spread(boxes[:, :, None, None, 2:], (2,))
    return Matches(
        prediction=distribute_invalid(number, valid, (per_image * images)[:, None]),
        class_id=spread(targets[:, None, None, 1].long().clamp(min=0)),
        boxes=torch.cat([centers, sizes], -1),
        anchor_size=spread(anchors[:, None, :, None], (2,)),
        valid=valid,
    )


def _claimed_cells(centers: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cell of each centre, its nearer horizontal neighbour and its nearer vertical
    neighbour.

    centers: [L, T, 2] in cells. sides: columns and rows of the grid, [L, 1, 1, 2].

    They are [L, T, 3, 2] (column, row), with a mask [L, T, 3] of those inside the grid. Cells
    outside are moved to the border so that their indices are valid. A centre in the middle of a
    cell counts as nearer to the next column or row.
    """
    own = centers.floor()
    near = torch.where(centers - own < 0.5, own - 1, own + 1)
    column, row = own.unbind(-1)
    near_column, near_row = near.unbind(-1)
    columns = torch.stack([column, near_column, column], -1)  # [L, T, 3]
    rows = torch.stack([row, row, near_row], -1)
    cells = torch.stack([columns, rows], -1)
    inside = ((cells >= 0) & (cells < sides)).all(-1)
    return cells.clamp(min=0).minimum(sides - 1), inside
