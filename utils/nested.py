"""Find tensors in nested lists and tuples."""

from collections.abc import Iterator
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Iterate over all tensors in a nested list or tuple, in order; a tensor gives itself, other values are skipped.

    >>> [tensor.item() for tensor in tensors_in([torch.tensor(1), (torch.tensor(2), [torch.tensor(3)]), "text"])]
    [1, 2, 3]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors_in(entry)
