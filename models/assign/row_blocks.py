"""Large tables of targets and predictions, computed some rows at a time to bound their memory."""

from collections.abc import Callable

import torch
from torch import Tensor

# of a target and a prediction: 512 KiB in float32, which fit in the cache of a CPU
PAIRS_AT_A_TIME = 1 << 17
ACCELERATOR_FACTOR = 8  # times as many on other devices, to start fewer kernels
COMPILED_FACTOR = 16  # in compiled functions, which store few intermediate results


def pairs_at_a_time(device: torch.device) -> int:
    """Return how many values a table should have while it is computed on `device`."""
    return PAIRS_AT_A_TIME if device.type == "cpu" else PAIRS_AT_A_TIME * ACCELERATOR_FACTOR


def in_row_blocks(
    function: Callable[..., tuple[Tensor, ...]], rows: int, *tables: Tensor
) -> tuple[Tensor, ...]:
    """Return the results of `function` for all rows of `tables`, computing `rows` at a time.

    function: takes a block of rows of each table, and returns tensors with as many rows. While
    torch.compile traces this, blocks are larger, since the compiled code grows with their number.

    >>> doubled, = in_row_blocks(lambda block: (2 * block,), 2, torch.arange(5))
    >>> doubled.tolist()
    [0, 2, 4, 6, 8]
    """
    if torch.compiler.is_compiling():
        rows *= COMPILED_FACTOR
    rows = max(rows, 1)
    if len(tables[0]) <= rows:
        return function(*tables)

    tables_in_blocks = [table.split(rows) for table in tables]
    results = [function(*block) for block in zip(*tables_in_blocks, strict=True)]
    return tuple(torch.cat(parts) for parts in zip(*results, strict=True))
