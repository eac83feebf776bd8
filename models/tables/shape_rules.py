"""Shapes of the operations that torch runs in Python on the meta device.

For them torch imports its compiler, which takes a second, and then they take most of the time of a
trial run of a model. Other operations are left to torch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import (
    batch_norm,
    hardsigmoid,
    hardswish,
    layer_norm,
    scaled_dot_product_attention,
)
from torch.overrides import TorchFunctionMode


class ShapeRules(TorchFunctionMode):
    """In the block, these operations return an empty tensor of their output's shape.

    Sums and products with broadcasting, concatenation, attention, normalization by BatchNorm or
    LayerNorm, and MobileNet's activations.
    All tensors are on the meta device. Raises RuntimeError for shapes that do not fit, as torch
    does.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        rule = RULES.get(func, func)
        return rule(*args, **(kwargs or {}))


def unchanged(x: Tensor, *_: object, **__: object) -> Tensor:
    """Return the input, whose shape the output has."""
    return x


def broadcast(first: Tensor, second: Tensor | float) -> Tensor:
    """Return an output of an operation on two tensors, or on a tensor and a number.

    >>> broadcast(torch.empty(2, 8, 1, 1), torch.empty(8, 4, 4)).shape
    torch.Size([2, 8, 4, 4])
    """
    if not isinstance(second, Tensor):
        return torch.empty_like(first)
    return first.new_empty(torch.broadcast_shapes(first.shape, second.shape))


def broadcast_in_place(first: Tensor, second: Tensor | float) -> Tensor:
    """Return the first tensor, to which the second is added."""
    shape = broadcast(first, second).shape
    if shape != first.shape:
        raise RuntimeError(f"{list(shape)} cannot be stored in {list(first.shape)}")
    return first


def concatenated(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return the output of torch.cat.

    >>> concatenated([torch.empty(2, 8, 4, 4), torch.empty(2, 3, 4, 4)], 1).shape
    torch.Size([2, 11, 4, 4])
    """
    first = list(tensors[0].shape)
    size = 0
    for tensor in tensors:
        shape = list(tensor.shape)
        size += shape[dim]
        shape[dim] = first[dim]
        if shape != first:
            shapes = ", ".join(str(list(each.shape)) for each in tensors)
            raise RuntimeError(f"tensors of {shapes} cannot be joined along dimension {dim}")
    first[dim] = size
    return tensors[0].new_empty(first)


def attended(queries: Tensor, keys: Tensor, values: Tensor, **_: object) -> Tensor:
    """Return the output of attention: a value for each query, [..., queries, channels].

    keys: [..., keys, channels of a query]. values: [..., keys, channels].
    """
    if queries.shape[-1] != keys.shape[-1] or keys.shape[-2] != values.shape[-2]:
        shapes = ", ".join(str(list(each.shape)) for each in (queries, keys, values))
        raise RuntimeError(f"queries, keys and values of {shapes} do not fit")
    images_and_heads = [each.shape[:-2] for each in (queries, keys, values)]
    shape = torch.broadcast_shapes(*images_and_heads)
    return values.new_empty(*shape, queries.shape[-2], values.shape[-1])


RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    batch_norm: unchanged,
    layer_norm: unchanged,
    hardsigmoid: unchanged,
    hardswish: unchanged,
    torch.cat: concatenated,
    scaled_dot_product_attention: attended,
    Tensor.add: broadcast,
    Tensor.add_: broadcast_in_place,
    Tensor.mul: broadcast,
}
