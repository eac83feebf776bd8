"""What heads have in common: the cells of a level, output convolutions, and predictions grouped by image."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn


class OutputConv(nn.Conv2d):
    """A convolution in the precision of its weights, also under autocast.

    16 bits in the last layer of a head cost accuracy (LOG.md), and 32 bits take almost no extra time.
    """

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.weight.dtype
        with nullcontext() if x.dtype == dtype else torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(dtype))


def grid_cells(height: int, width: int, reference: Tensor) -> Tensor:
    """Return the column and row of each cell of a level, [H, W, 2]. reference: for dtype and device.

    >>> grid_cells(1, 3, torch.zeros(1)).tolist()
    [[[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]]
    """
    columns, rows = (torch.arange(side, device=reference.device, dtype=reference.dtype) for side in (width, height))
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)


def cells_and_strides(
    grids: Sequence[tuple[int, int]], strides: Sequence[int], reference: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cells of all levels, [N, 2], and the stride of each in pixels, [N, 1]. grids: rows and columns.

    >>> cells_and_strides([(1, 2), (1, 1)], (8, 16), torch.zeros(1))[1].tolist()
    [[8.0], [8.0], [16.0]]
    """
    levels = [grid_cells(*grid, reference).flatten(0, 1) for grid in grids]
    columns = [reference.new_full((len(cells), 1), stride) for cells, stride in zip(levels, strides, strict=True)]
    return torch.cat(levels), torch.cat(columns)


def levels_by_image(levels: Sequence[tuple[Tensor, Tensor, Tensor]], images: int) -> tuple[Tensor, Tensor]:
    """Return boxes [B, M, 4] and scores [B, M, C] by their image; M is the most rows of an image, others get zeros.

    levels: boxes [K, 4], scores [K, C] and images [K] of each level. images: B.

    >>> level = torch.zeros(3, 4), torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0, 2])
    >>> levels_by_image([level], 3)[1].tolist()
    [[[2.0], [0.0]], [[0.0], [0.0]], [[1.0], [3.0]]]
    """
    boxes, scores, owners = (torch.cat(parts) for parts in zip(*levels, strict=True))
    order, counts = owners.argsort(stable=True), owners.bincount(minlength=images)
    first, owner, most = counts.cumsum(0) - counts, owners[order], int(counts.max())
    place = torch.arange(len(order), device=order.device) - first[owner]

    def padded(values: Tensor) -> Tensor:
        rows = values.new_zeros(images, most, values.shape[1])
        rows[owner, place] = values[order]
        return rows

    return padded(boxes), padded(scores)
