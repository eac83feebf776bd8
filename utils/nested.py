"""Find and concatenate tensors in nested lists, tuples and dicts."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Iterate over all tensors in a nested list or tuple, in order.

    A tensor gives itself, other values are skipped.

    >>> nested = [torch.tensor(1), (torch.tensor(2), [torch.tensor(3)]), "text"]
    >>> [tensor.item() for tensor in tensors_in(nested)]
    [1, 2, 3]
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from tensors_in(entry)


def concatenate(parts: Sequence[Any]) -> Any:
    """Concatenate equally nested dicts, lists and tuples of tensors along the tensors' first axis.

    >>> concatenate([[torch.tensor([1])], [torch.tensor([2])]])
    [tensor([1, 2])]
    """
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, dict):
        return {key: concatenate([part[key] for part in parts]) for key in first}
    return type(first)(map(concatenate, zip(*parts, strict=True)))
