"""The base class of all layers of the model tables: maps [B, C, H, W] -> maps.

registry.py lists the layers. B images, C channels, H W cells. The short attribute names of layers
(cv1, cv2, cv3, m, conv, bn) are the file format of YOLOv5's checkpoints.
"""

from fractions import Fraction
from math import prod
from typing import ClassVar

from torch import nn


class Layer(nn.Module):
    """Base class of what a table row builds.

    The constructor takes the input's channels, then the row's args.
    """

    out_channels: int
    reduction: Fraction = Fraction(1)  # input side / output side

    # takes a list of maps; the constructor takes a list of channels and `strides=`
    multi_input: ClassVar[bool] = False
    # the first arg is a number of channels, which the table's width scales
    scales_width: ClassVar[bool] = True
    # takes the row's number as `repeats=`, instead of being stacked
    repeats_inside: ClassVar[bool] = False
    # returns a list of maps; out_channels and reduction are tuples, and only Level rows read it
    multi_output: ClassVar[bool] = False
    # takes the list of maps of a row with several; the constructor takes a tuple of channels
    chooses_output: ClassVar[bool] = False

    def fuse(self) -> None:
        """Merge, for inference, what only training needs apart; a second call changes nothing."""


def whole_stride(stride: int) -> Fraction:
    """Return `stride` as a reduction.

    Raises: ValueError if it is below 1.
    """
    if stride < 1:
        raise ValueError(f"stride must be 1 or more, got {stride}")
    return Fraction(stride)


class Stack(nn.Sequential):
    """A sequence of layers, as one layer."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(*layers)
        self.out_channels = layers[-1].out_channels
        self.reduction = prod((layer.reduction for layer in layers), start=Fraction(1))
