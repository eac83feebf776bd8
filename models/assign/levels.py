"""The sizes of a head's levels, on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.device_constants import device_constant


def columns_and_rows(
    grids: Sequence[tuple[int, int]], reference: Tensor, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the columns and rows of each level, [L, 2], for `grids` of rows and columns.

    That is the order of x and y. The result is cached, so do not change it in place. reference,
    dtype: see `device_constant`.

    >>> columns_and_rows([(4, 6), (2, 3)], torch.zeros(1)).tolist()
    [[6.0, 4.0], [3.0, 2.0]]
    """
    sides = []
    for rows, columns in grids:
        sides += [columns, rows]
    return device_constant(sides, reference, dtype).view(len(grids), 2)
