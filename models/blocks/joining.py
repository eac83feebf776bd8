"""Concatenation of maps along their channels, and halving."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from models.blocks.base import Layer


class _Join(torch.autograd.Function):
    """torch.cat along the channels, with a dense gradient of each map."""

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:
        ctx.channels = [x.shape[1] for x in maps]
        return torch.cat(maps, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        parts = gradient.split(ctx.channels, 1)
        return tuple(part.contiguous(memory_format=torch.channels_last) for part in parts)


def join(maps: Sequence[Tensor]) -> Tensor:
    """Return maps of one size, concatenated along their channels.

    On a CPU each map gets a dense gradient: torch.cat returns strided views of it, on which the
    backward pass of the preceding SiLU is three times slower (6 % of a bfloat16 step of yolov5n).
    Without gradients it is torch.cat alone, which an exported graph can hold.
    """
    if maps[0].device.type == "cpu" and torch.is_grad_enabled():
        return _Join.apply(*maps)
    return torch.cat(list(maps), dim=1)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of a map's channels.

    By their sizes: torch writes a split into equal parts to ONNX with an attribute that opset 17
    does not have.
    """
    half = x.shape[1] // 2
    first, second = x.split((half, half), 1)
    return first, second


class Concat(Layer):
    """Maps of one size, concatenated along their channels."""

    multi_input = True
    scales_width = False

    def __init__(
        self, in_channels: Sequence[int], dim: int = 1, *, strides: Sequence[Fraction]
    ) -> None:
        super().__init__()
        if dim != 1:
            raise ValueError(
                f"maps can only be concatenated along dimension 1 (channels), got dimension {dim}"
            )
        if len(set(strides)) > 1:
            given = ", ".join(map(str, strides))
            raise ValueError(f"maps of strides {given} differ in size and cannot be concatenated")
        self.out_channels = sum(in_channels)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return join(maps)
