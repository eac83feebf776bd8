"""Numbers of a head's levels, such as strides, on the device."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from utils.distributed.torch_compile import is_traced

# results of `per_level`: a few for each image size of multi-scale or rectangular training
CACHED_RESULTS = 512


def per_level(
    values: Sequence[float], reference: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return one number for each level, [L], on the device of `reference`.

    The result is cached, so do not change it in place. It is created on the device, because a copy
    from the host would make the host wait. dtype: that of `reference` if None.

    >>> per_level((8, 16), torch.zeros(1)).tolist()
    [8.0, 16.0]
    """
    numbers = tuple(values)
    dtype = dtype or reference.dtype

    if is_traced(reference):
        return _create(numbers, dtype, reference.device)
    return _cached(numbers, dtype, reference.device)


def columns_and_rows(
    grids: Sequence[tuple[int, int]], reference: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the columns and rows of each level, [L, 2], for `grids` of rows and columns.

    That is the order of x and y. The result is cached, so do not change it in place. reference,
    dtype: see `per_level`.

    >>> columns_and_rows([(4, 6), (2, 3)], torch.zeros(1)).tolist()
    [[6.0, 4.0], [3.0, 2.0]]
    """
    sides = []
    for rows, columns in grids:
        sides += [columns, rows]
    return per_level(sides, reference, dtype).view(len(grids), 2)


def _create(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    numbers = [torch.full((), value, dtype=dtype, device=device) for value in values]
    return torch.stack(numbers)


@lru_cache(CACHED_RESULTS)
def _cached(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # The first caller may be a validation, whose tensors training could not use.
    with torch.inference_mode(False):
        return _create(values, dtype, device)
