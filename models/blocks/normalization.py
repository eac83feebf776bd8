"""Normalization of the images, inside the model."""

from collections.abc import Sequence

from torch import Tensor

from models.blocks.base import Layer
from models.device_constants import device_constant


class Normalize(Layer):
    """The images, each channel minus its mean, divided by its standard deviation.

    As the first row of a table, it keeps the input of the model and of every exported file RGB in
    [0, 1]. The zeros with which the next convolution pads its input then stand for the mean color.
    It cannot be folded into that convolution, which would pad with black.

    mean, deviation: one number per channel, for values in [0, 1].

    Raises ValueError for another number of them, or for a deviation that is not positive.
    """

    scales_width = False

    def __init__(self, in_channels: int, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != in_channels or len(deviation) != in_channels:
            raise ValueError(f"mean and deviation need {in_channels} numbers each, one per channel")
        if min(deviation) <= 0:
            raise ValueError(f"each deviation must be above 0, got {list(deviation)}")
        self.out_channels = in_channels
        self.mean = tuple(float(value) for value in mean)
        self.deviation = tuple(float(value) for value in deviation)

    def forward(self, x: Tensor) -> Tensor:
        mean = device_constant(self.mean, x).view(1, -1, 1, 1)
        deviation = device_constant(self.deviation, x).view(1, -1, 1, 1)
        return (x - mean) / deviation
