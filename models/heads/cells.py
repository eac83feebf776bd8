"""What heads share: output convolutions, the cells of a level, and predictions by image."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from utils.distributed.torch_compile import is_traced

CACHED_SHAPES = 64  # image sizes of multi-scale or rectangular training


class OutputConv(nn.Conv2d):
    """A convolution in the precision of its weights, also under autocast.

    16 bits in the last layer of a head cost accuracy (LOG.md), and 32 bits take almost no extra
    time.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == self.weight.dtype:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


def grid_cells(height: int, width: int, reference: Tensor) -> Tensor:
    """Return the column and row of each cell of a level, [H, W, 2].

    reference: for dtype and device.

    >>> grid_cells(1, 3, torch.zeros(1)).tolist()
    [[[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]]
    """
    columns = torch.arange(width, device=reference.device, dtype=reference.dtype)
    rows = torch.arange(height, device=reference.device, dtype=reference.dtype)
    return torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1)


def joint_logit(objectness: Tensor, classes: Tensor) -> Tensor:
    """Return the logit of sigma(objectness) * sigma(class), in the shape that both broadcast to.

    Finite for logits of any size: with p the product, log(p / (1 - p)) is
    -log(exp(-o) + exp(-c) + exp(-o - c)).

    >>> joint_logit(torch.zeros(1), torch.tensor([0.0, 50.0])).sigmoid().tolist()
    [0.25, 0.5]
    """
    either = torch.logaddexp(-objectness, -classes)
    return -torch.logaddexp(either, -objectness - classes)


def cells_and_strides(
    grids: Sequence[tuple[int, int]], strides: Sequence[int], reference: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cells of all levels, [N, 2], and the stride of each in pixels, [N, 1].

    They are created once for each size of images, so do not change them in place. grids: rows and
    columns. reference: for dtype and device.

    >>> cells_and_strides([(1, 2), (1, 1)], (8, 16), torch.zeros(1))[1].tolist()
    [[8.0], [8.0], [16.0]]
    """
    shape = (tuple(grids), tuple(strides), reference.dtype, reference.device)
    if is_traced(reference):
        return _create_cells(*shape)
    return _cached_cells(*shape)


def _create_cells(
    grids: tuple[tuple[int, int], ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    reference = torch.empty(0, dtype=dtype, device=device)
    all_cells = []
    all_strides = []
    for (rows, columns), stride in zip(grids, strides, strict=True):
        cells = grid_cells(rows, columns, reference).flatten(0, 1)
        all_cells.append(cells)
        all_strides.append(reference.new_full((len(cells), 1), stride))
    return torch.cat(all_cells), torch.cat(all_strides)


@lru_cache(CACHED_SHAPES)
def _cached_cells(
    grids: tuple[tuple[int, int], ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    # The first caller may be a validation, whose tensors training could not use.
    with torch.inference_mode(False):
        return _create_cells(grids, strides, dtype, device)


def levels_by_image(
    levels: Sequence[tuple[Tensor, Tensor, Tensor]], images: int
) -> tuple[Tensor, Tensor]:
    """Return boxes [B, M, 4] and scores [B, M, C] by their image.

    M is the largest number of rows of an image; images with fewer are padded with zeros.

    levels: of each level boxes [K, 4], scores [K, C], and the number of their image [K]. images: B.

    >>> level = torch.zeros(3, 4), torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0, 2])
    >>> levels_by_image([level], 3)[1].tolist()
    [[[2.0], [0.0]], [[0.0], [0.0]], [[1.0], [3.0]]]
    """
    boxes = torch.cat([level_boxes for level_boxes, _, _ in levels])
    scores = torch.cat([level_scores for _, level_scores, _ in levels])
    image = torch.cat([level_image for _, _, level_image in levels])

    # Sorted by image, the place of a row within its image is its distance from the image's first.
    order = image.argsort(stable=True)
    sorted_image = image[order]
    counts = image.bincount(minlength=images)
    first = counts.cumsum(0) - counts
    place = torch.arange(len(order), device=order.device) - first[sorted_image]
    most = int(counts.max())

    def padded(values: Tensor) -> Tensor:
        rows = values.new_zeros(images, most, values.shape[1])
        rows[sorted_image, place] = values[order]
        return rows

    return padded(boxes), padded(scores)
