"""Which prediction answers for which box. Pure functions of the targets: no prediction is looked at, no gradient flows.

Shapes: B images, T targets, A anchors per level, M = T * A * 3 candidate matches, H W cells of one level, of which
B * H * W * A predictions are made, numbered in this order, which is that of a channels_last tensor.
All candidates are kept, with a mask, so that shapes depend on T alone and the device never waits for a count.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from utils.boxes import to_cxcywh

IGNORE_CLASS = -1  # marks a region whose cells say nothing about objectness
NO_TARGET = -2  # marks a row that stands for nothing
FEWEST = 16  # rows


def filled_up(targets: Tensor) -> Tensor:
    """[T, 6] targets with rows that stand for nothing, so that few T occur, four to each doubling: static shapes.

    >>> [len(filled_up(torch.zeros(n, 6))) for n in (0, 16, 17, 20, 21, 100, 500, 513)]
    [16, 16, 20, 20, 24, 112, 512, 640]
    """
    number = max(len(targets), FEWEST)
    step = 2 ** ((number - 1).bit_length() - 3)
    filled = pad(targets, (0, 0, 0, -(-number // step) * step - len(targets)))
    filled[len(targets) :, 1] = NO_TARGET
    return filled


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


def ignored_cells(targets: Tensor, images: int, stride: float, grid: tuple[int, int]) -> Tensor:
    """bool [B, H, W]: cells whose centre lies inside an ignore region, a target of class -1.

    Each region adds 1 at the corners where it begins and takes it away where it ends; running sums over rows and
    columns then count the regions of every cell, in the memory of one map and without a look at a value.
    """
    height, width = grid
    left, top, right, bottom = targets[:, 2:].unbind(-1)
    first_column, end_column = _covered(left, right, stride, width)
    first_row, end_row = _covered(top, bottom, stride, height)
    image, one = targets[:, 0].long(), (targets[:, 1] == IGNORE_CLASS).to(torch.int32)

    corners = torch.zeros(images, height + 1, width + 1, dtype=torch.int32, device=targets.device)
    corners.index_put_((image, first_row, first_column), one, accumulate=True)
    corners.index_put_((image, first_row, end_column), -one, accumulate=True)
    corners.index_put_((image, end_row, first_column), -one, accumulate=True)
    corners.index_put_((image, end_row, end_column), one, accumulate=True)
    regions = corners.cumsum(1, dtype=torch.int32).cumsum(2, dtype=torch.int32)
    return regions[:, :height, :width] > 0


def _covered(low: Tensor, high: Tensor, stride: float, cells: int) -> tuple[Tensor, Tensor]:
    """(first, end) of a line's cells whose centres lie between two edges, int64; first equals end where none does.

    >>> _covered(torch.tensor([4.0, 5.0]), torch.tensor([20.1, 11.0]), 8, 5)  # centres 4, 12, 20, 28, 36
    (tensor([1, 1]), tensor([3, 1]))
    """
    first = (low / stride + 0.5).floor().clamp(0, cells)
    end = (high / stride - 0.5).ceil().clamp(0, cells)
    return first.long(), end.maximum(first).long()
