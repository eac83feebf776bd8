"""Pooling, enlarging, padding and shrinking of maps."""

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, pad

from models.blocks.base import Layer, whole_stride
from models.blocks.convolutions import Conv, LinearConv
from models.blocks.joining import halves, join

MAX_REPEATS = 100  # of a pool: of a block with few channels, a table could otherwise demand hours
MODES = {"nearest", "bilinear"}  # of enlarging


class SPP(Layer):
    """Spatial pyramid pooling: the map concatenated with its maxima over windows of several sizes.

    Source: SPP-net, arXiv 1406.4729, with stride 1 as in YOLOv3-SPP.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernels: Sequence[int] = (5, 9, 13)
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = in_channels // 2
        self.cv1 = Conv(in_channels, hidden, 1)
        self.cv2 = Conv(hidden * (1 + len(kernels)), out_channels, 1)
        self.m = nn.ModuleList(nn.MaxPool2d(kernel, 1, kernel // 2) for kernel in kernels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        pooled = [pool(x) for pool in self.m]
        return self.cv2(join([x, *pooled]))


class SPPF(Layer):
    """SPP by one pool applied repeatedly.

    Two of kernel 5 equal one of kernel 9, and three equal one of kernel 13.

    shortcut: no activation after the first convolution, and the input added if its number of
    channels is equal. Raises ValueError for repeats outside 1 to MAX_REPEATS.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 5,
        repeats: int = 3,
        shortcut: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= repeats <= MAX_REPEATS:
            raise ValueError(f"the pool is repeated 1 to {MAX_REPEATS} times, got {repeats}")
        self.out_channels = out_channels
        hidden = in_channels // 2
        self.cv1 = LinearConv(in_channels, hidden, 1) if shortcut else Conv(in_channels, hidden, 1)
        self.cv2 = Conv(hidden * (1 + repeats), out_channels, 1)
        self.m = nn.MaxPool2d(kernel, 1, kernel // 2)
        self.repeats = repeats
        self.add = shortcut and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.cv1(x)]
        for _ in range(self.repeats):
            maps.append(self.m(maps[-1]))
        y = self.cv2(join(maps))
        return x + y if self.add else y


class Upsample(Layer):
    """The map enlarged by a whole factor.

    The args are those of nn.Upsample; `size` must be None.
    """

    scales_width = False

    def __init__(self, in_channels: int, size: None, factor: float, mode: str = "nearest") -> None:
        super().__init__()
        if size is not None or factor != int(factor) or factor < 1 or mode not in MODES:
            raise ValueError("args must be None, a whole factor, and nearest or bilinear")
        self.out_channels = in_channels
        self.reduction = Fraction(1, int(factor))
        self.factor = float(factor)
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, scale_factor=self.factor, mode=self.mode)


class MaxPool(Layer):
    """The maximum of each window."""

    scales_width = False

    def __init__(
        self, in_channels: int, kernel: int, stride: int | None = None, padding: int = 0
    ) -> None:
        super().__init__()
        stride = kernel if stride is None else stride
        self.out_channels = in_channels
        self.reduction = whole_stride(stride)
        self.pool = nn.MaxPool2d(kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x)


class EnlargeAndAdd(Layer):
    """Maps with equal channels, enlarged to the size of the last one and added.

    Each value becomes a square of equal ones. `CBFuse` in tables.

    Source: CBNet, arXiv 2107.00420, section 3.3, as in YOLOv9's auxiliary branch.
    """

    multi_input = True
    scales_width = False

    def __init__(self, in_channels: Sequence[int], *, strides: Sequence[Fraction]) -> None:
        super().__init__()
        if len(set(in_channels)) > 1:
            raise ValueError(f"maps of {list(in_channels)} channels cannot be added")
        factors = [stride / strides[-1] for stride in strides]
        if any(factor.denominator != 1 for factor in factors):
            given = ", ".join(map(str, strides))
            raise ValueError(
                f"maps of strides {given}: each must be a multiple of the last, to be enlarged"
            )
        self.out_channels = in_channels[-1]
        self.reduction = strides[-1] / strides[0]  # of the first input, from which strides count
        self.factors = [float(factor) for factor in factors]

    def forward(self, maps: list[Tensor]) -> Tensor:
        *others, total = maps
        for x, factor in zip(others, self.factors, strict=False):
            total = total + interpolate(x, scale_factor=factor, mode="nearest")
        return total


class AConv(Layer):
    """The means of 2x2 cells, one cell apart, then a 3x3 convolution of stride 2.

    Source: facts of YOLOv9's layout.
    """

    reduction = Fraction(2)

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.conv = Conv(in_channels, out_channels, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(avg_pool2d(x, 2, 1))


class ADown(Layer):
    """The means of 2x2 cells, one cell apart, then each half of the channels shrunk to its own way.

    The first half by a 3x3 convolution of stride 2, the second by a max pool of stride 2 and a 1x1
    convolution.

    Source: facts of YOLOv9's layout.
    """

    reduction = Fraction(2)

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        if in_channels % 2 or out_channels % 2:
            raise ValueError(
                f"channels must be even, to be halved, got {in_channels} and {out_channels}"
            )
        self.out_channels = out_channels
        self.conv1 = Conv(in_channels // 2, out_channels // 2, 3, 2)
        self.conv2 = Conv(in_channels // 2, out_channels // 2, 1)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second = halves(avg_pool2d(x, 2, 1))
        return join((self.conv1(first), self.conv2(self.pool(second))))


class ZeroPad(Layer):
    """The map padded with zeros: `padding` is left, right, top, bottom, in cells."""

    scales_width = False

    def __init__(self, in_channels: int, padding: Sequence[int]) -> None:
        super().__init__()
        if len(padding) != 4:
            raise ValueError("padding must be four numbers: left, right, top, bottom")
        self.out_channels = in_channels
        self.padding = tuple(padding)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting() and min(self.padding) >= 0:
            return self._joined_with_zeros(x)
        return pad(x, self.padding)

    def _joined_with_zeros(self, x: Tensor) -> Tensor:
        """Return the same values, for exported files.

        ONNX Runtime 1.23 and onnx-simplifier merge a padding with zeros into the max pooling that
        follows it, which ignores padded cells: the maximum of negative values was then not 0.
        """
        left, right, top, bottom = self.padding
        batch, channels, height, _ = x.shape

        left_columns = x.new_zeros(batch, channels, height, left)
        right_columns = x.new_zeros(batch, channels, height, right)
        wide = torch.cat([left_columns, x, right_columns], 3)

        top_rows = x.new_zeros(batch, channels, top, wide.shape[3])
        bottom_rows = x.new_zeros(batch, channels, bottom, wide.shape[3])
        return torch.cat([top_rows, wide, bottom_rows], 2)
