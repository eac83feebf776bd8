"""Assignment by the ratio of sides between a box and an anchor.

Pure functions of the targets: they use no prediction, and no gradient flows through them.

Shapes: B images, L levels, T targets, A anchors per level, M = T * A * 3 candidate matches of a
level, H W cells of a level. A level's B * H * W * A predictions are numbered in this order, which
is the memory order of a channels_last tensor.

All candidates are kept, with a mask, so that shapes depend only on T and the host need not wait for
a count. All levels are matched together, because a GPU is bound by the number of kernels here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.assign.base import distribute_invalid
from models.assign.levels import columns_and_rows
from models.device_constants import device_constant
from utils.boxes import to_cxcywh


@dataclass(frozen=True)
class AnchorMatches:
    """Candidate matches of all levels: arrays [L, M] whose entries count where `valid`.

    prediction: int64, number of the matched prediction within its level; arbitrary where not valid.
    class_id: int64. boxes: [L, M, 4], center relative to the cell's corner, and size; in cells.
    anchor_size: [L, M, 2] in cells. Boxes and anchors have the targets' dtype (float32).
    """

    prediction: Tensor
    class_id: Tensor
    boxes: Tensor
    anchor_size: Tensor
    valid: Tensor


def match_anchors(
    targets: Tensor,
    anchors_px: Tensor,
    strides: Sequence[float],
    images: int,
    grids: Sequence[tuple[int, int]],
    anchor_t: float,
) -> AnchorMatches:
    """Return the candidate matches of `targets` with the anchors of all levels.

    A target matches every anchor whose width and height both differ from its own by a factor below
    `anchor_t`. For each such anchor it is assigned to the cell of its center, the nearer cell to
    the left or right, and the nearer cell above or below, if they are inside the grid. Computed in
    the targets' precision, so that a model in float64 gets the same matches as in float32.

    Args:
        targets: [T, 6] image, class, x1, y1, x2, y2 in pixels; a negative class or an empty box
            never matches.
        anchors_px: [L, A, 2].
        strides: pixels per cell of each level.
        images: B.
        grids: (H, W) cells of each level.
        anchor_t: above 1.

    Source: facts of YOLOv5's behavior; the neighbor cells follow from the decode range (-0.5, 1.5)
    of a center.
    """
    levels, anchors_per_level, _ = anchors_px.shape

    # Targets and anchors in cells of each level.
    stride = device_constant(strides, targets)[:, None, None]
    boxes = to_cxcywh(targets[:, 2:]) / stride  # [L, T, 4]
    centers = boxes[..., :2]
    sizes = boxes[..., 2:]
    anchors = anchors_px.to(targets.dtype) / stride  # [L, A, 2]

    # Which anchors fit a target; none if a side of it is not positive.  [L, T, A]
    ratio = sizes[:, :, None] / anchors[:, None]  # [L, T, A, 2]
    worst_ratio = torch.minimum(ratio, 1 / ratio).amin(-1)
    fits = worst_ratio > 1 / anchor_t
    fits &= (targets[:, 1] >= 0)[:, None]

    # The cells that a target claims.  [L, T, 3, 2] and [L, T, 3]
    sides = columns_and_rows(grids, targets).view(levels, 1, 1, 2)
    cells, inside = _claimed_cells(centers, sides)

    def per_match(values: Tensor, dims: tuple[int, ...] = ()) -> Tensor:
        """Return values, broadcast to [L, T, A, 3, *dims], as [L, M, *dims]."""
        return values.expand(levels, len(targets), anchors_per_level, 3, *dims).flatten(1, 3)

    valid = per_match(fits[..., None] & inside[:, :, None])

    # The number of each anchor's prediction in each cell, within its level.
    grid_sizes = columns_and_rows(grids, targets, torch.int64).view(levels, 2, 1, 1)
    columns, rows = grid_sizes.unbind(1)
    column, row = cells.long().unbind(-1)  # [L, T, 3]
    image = targets[:, :1].long()
    cell = (image * rows + row) * columns + column
    anchor = torch.arange(anchors_per_level, device=targets.device)[:, None]
    number = per_match(cell[:, :, None] * anchors_per_level + anchor)

    # Entries that are not valid name any prediction of the level.
    predictions_per_image = [height * width * anchors_per_level for height, width in grids]
    predictions = device_constant(predictions_per_image, targets, torch.int64) * images  # [L]
    prediction = distribute_invalid(number, valid, predictions[:, None])

    # Boxes relative to the corner of the claimed cell.
    centers_in_cells = centers[:, :, None] - cells  # [L, T, 3, 2]
    boxes_in_cells = [
        per_match(centers_in_cells[:, :, None], (2,)),
        per_match(sizes[:, :, None, None], (2,)),
    ]
    return AnchorMatches(
        prediction=prediction,
        class_id=per_match(targets[:, None, None, 1].long().clamp(min=0)),
        boxes=torch.cat(boxes_in_cells, -1),
        anchor_size=per_match(anchors[:, None, :, None], (2,)),
        valid=valid,
    )


def _claimed_cells(centers: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Return each center's cell, its nearer horizontal and its nearer vertical neighbor.

    They are [L, T, 3, 2] (column, row), with a mask [L, T, 3] of those inside the grid. Cells
    outside are moved to the border so that their indices are valid. A center in the middle of a
    cell counts as nearer to the next column or row.

    centers: [L, T, 2] in cells. sides: columns and rows of the grid, [L, 1, 1, 2].
    """
    own = centers.floor()
    neighbor = torch.where(centers - own < 0.5, own - 1, own + 1)
    column, row = own.unbind(-1)
    neighbor_column, neighbor_row = neighbor.unbind(-1)

    # The cell itself, the one to its left or right, the one above or below.
    columns = torch.stack([column, neighbor_column, column], -1)  # [L, T, 3]
    rows = torch.stack([row, row, neighbor_row], -1)
    cells = torch.stack([columns, rows], -1)

    inside = ((cells >= 0) & (cells < sides)).all(-1)
    return cells.clamp(min=0).minimum(sides - 1), inside
