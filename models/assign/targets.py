"""Rows of targets, and two kinds that are no objects: padding and ignore regions.

Targets are [T, 6]: image, class, x1, y1, x2, y2 in pixels. Padding rows keep shapes static. The
predictions inside an ignore region are neither right nor wrong.

B images, L levels, H W cells of a level, N predictions per image over all levels, T targets.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.assign.levels import columns_and_rows
from models.device_constants import device_constant
from utils.boxes import IGNORE_CLASS

PADDING_CLASS = -2  # marks a padding row
MIN_PADDED_ROWS = 16


def pad_targets(targets: Tensor) -> Tensor:
    """Return targets [T, 6] padded with rows of class -2, so that few lengths occur.

    There are four lengths from one power of two to the next; the shortest is 16.

    >>> [len(pad_targets(torch.zeros(n, 6))) for n in (0, 16, 17, 20, 21, 100, 500, 513)]
    [16, 16, 20, 20, 24, 112, 512, 640]
    """
    rows = max(len(targets), MIN_PADDED_ROWS)

    # A step is a quarter of the largest power of two below the number of rows.
    step = 2 ** ((rows - 1).bit_length() - 3)
    padded_rows = math.ceil(rows / step) * step

    padded = pad(targets, (0, 0, 0, padded_rows - len(targets)))
    padded[len(targets) :, 1] = PADDING_CLASS
    return padded


def made_up_targets(images: int, boxes_per_image: int, side: int, device: torch.device) -> Tensor:
    """Return padded targets of class 0, always the same ones, for a trial step.

    side: of the images, in pixels; a box has an eighth of it.
    """
    image = torch.arange(images).repeat_interleave(boxes_per_image)[:, None]
    class_id = torch.zeros_like(image)

    generator = torch.Generator().manual_seed(0)
    low = torch.rand(len(image), 2, generator=generator) * side * 0.8
    high = low + side / 8

    targets = torch.cat([image, class_id, low, high], 1)
    return pad_targets(targets.to(device))


def ignored_cells(
    targets: Tensor, images: int, strides: Sequence[float], grids: Sequence[tuple[int, int]]
) -> list[Tensor]:
    """Return which cells of each level, bool [B, H, W], have their middle in an ignore region.

    An ignore region is a target of class -1. grids: rows and columns of each level.
    """
    is_region = targets[:, 1] == IGNORE_CLASS
    return cells_inside(targets, is_region, images, strides, grids, offset=0.5)


def cells_inside(
    targets: Tensor,
    counted: Tensor,
    images: int,
    strides: Sequence[float],
    grids: Sequence[tuple[int, int]],
    offset: float,
) -> list[Tensor]:
    """Return which cells of each level, bool [B, H, W], have their point strictly inside a target.

    Each target adds 1 at its first corner and the opposite one, and -1 at the other two. Cumulative
    sums over rows and columns then give the number of targets at each cell. All levels are computed
    together, each on a map as large as the largest one, because a GPU is bound by the number of
    kernels here. No value is read on the host.

    Args:
        targets: [T, 6].
        counted: whether a target counts, bool [T].
        images: B.
        strides: pixels per cell of each level.
        grids: rows and columns of each level.
        offset: of a cell's point from its first corner, in cells: 0.5 is the middle.
    """
    levels = len(strides)
    # one more than cells: a region may end at the border
    rows = 1 + max(height for height, _ in grids)
    columns = 1 + max(width for _, width in grids)

    # The first cell inside each target and the first one after it, in x and in y.  [T, L, 2]
    stride = device_constant(strides, targets)[:, None]
    low = targets[:, None, 2:4] / stride  # in cells
    high = targets[:, None, 4:] / stride
    first, end = _covered(low, high, columns_and_rows(grids, targets), offset)

    # The number of the target's map: the maps of all levels and images, one after another.  [T, L]
    image = targets[:, 0].long()
    map_number = torch.arange(levels, device=targets.device) * images + image[:, None]

    # The places of its four corners in these maps.  [T, L, 2, 2]: row, column
    column, row = torch.stack([first, end], -1).unbind(2)  # [T, L, 2] each: first, end
    map_row = map_number[:, :, None, None] * rows + row[..., None]
    place = map_row * columns + column[:, :, None]

    # What is added there, in the same order; 0 for targets that do not count.  [T, L, 4]
    one = counted.to(torch.int32)
    minus_one = -one
    corner_values = torch.stack([one, minus_one, minus_one, one], 1)
    corner_values = corner_values[:, None].expand(-1, levels, -1)

    # scatter_add_ instead of an indexed assignment, for which a GPU would first sort the places.
    cells_of_all = levels * images * rows * columns
    corners = torch.zeros(cells_of_all, dtype=torch.int32, device=targets.device)
    corners.scatter_add_(0, place.flatten(), corner_values.flatten())

    maps = corners.view(levels, images, rows, columns)
    inside = maps.cumsum(2, dtype=torch.int32).cumsum(3, dtype=torch.int32) > 0
    return [inside[level, :, :height, :width] for level, (height, width) in enumerate(grids)]


def ignored_predictions(
    targets: Tensor, images: int, strides: Sequence[float], grids: Sequence[tuple[int, int]]
) -> Tensor:
    """Return `ignored_cells` of all levels, bool [B, N], for heads with one prediction per cell."""
    levels = ignored_cells(targets, images, strides, grids)
    return torch.cat([cells.flatten(1) for cells in levels], 1)


def _covered(low: Tensor, high: Tensor, cells: Tensor, offset: float) -> tuple[Tensor, Tensor]:
    """Return the first of the cells whose points are between two edges, and the one after them.

    Both are int64, and equal if no point is. low, high: the edges, in cells. cells: how many there
    are. All three broadcast. offset: of a cell's point from its first corner.

    >>> low, high = torch.tensor([4.0, 5.0]) / 8, torch.tensor([20.1, 11.0]) / 8
    >>> _covered(low, high, torch.tensor(5.0), 0.5)  # middles 4, 12, 20, 28, 36
    (tensor([1, 1]), tensor([3, 1]))
    >>> _covered(low, high, torch.tensor(5.0), 0)  # corners 0, 8, 16, 24, 32
    (tensor([1, 1]), tensor([3, 2]))
    """
    first = ((low - offset).floor() + 1).clamp(min=0).minimum(cells)
    end = (high - offset).ceil().clamp(min=0).minimum(cells)
    return first.long(), end.maximum(first).long()
