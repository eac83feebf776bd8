"""Tensors in nested lists."""

from collections.abc import Iterator
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensor itself, or those in a list or tuple and in the lists and tuples inside it, in their order.

    >>> [tensor.item() for tensor in tensors_in([torch.tensor(1), (torch.tensor(2), [torch.tensor(3)]), "text"])]
    [1, 2, 3]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors_in(entry)
