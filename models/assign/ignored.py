"""The cells of a level that are inside ignore regions.

B images, H W cells of a level, N predictions per image over all levels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.assign.targets import IGNORE_CLASS


def ignored_cells(targets: Tensor, images: int, stride: float, grid: tuple[int, int]) -> Tensor:
    """Return a mask, bool [B, H, W], of the cells whose centre is inside an ignore region (a target of class -1).

    Each region adds 1 at its first corner and the opposite one, and -1 at the other two. Cumulative sums over rows and
    columns then give the number of regions at each cell. This needs the memory of one map and no value on the host.
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


def ignored_predictions(
    targets: Tensor, images: int, strides: Sequence[int], grids: Sequence[tuple[int, int]]
) -> Tensor:
    """Return `ignored_cells` of all levels, bool [B, N], for heads with one prediction per cell."""
    levels = [ignored_cells(targets, images, *level).flatten(1) for level in zip(strides, grids, strict=True)]
    return torch.cat(levels, 1)


def _covered(low: Tensor, high: Tensor, stride: float, cells: int) -> tuple[Tensor, Tensor]:
    """Return (first, end), int64, of the cells in one dimension whose centres are between two edges; equal if none is.

    >>> _covered(torch.tensor([4.0, 5.0]), torch.tensor([20.1, 11.0]), 8, 5)  # centres 4, 12, 20, 28, 36
    (tensor([1, 1]), tensor([3, 1]))
    """
    first = (low / stride + 0.5).floor().clamp(0, cells)
    end = (high / stride - 0.5).ceil().clamp(0, cells)
    return first.long(), end.maximum(first).long()
