"""Layers of the model tables. Inputs and outputs are maps [B, C, H, W]: B images, C channels, H W cells.

The short attribute names (cv1, cv2, cv3, m, conv, bn) are the file format of YOLOv5's checkpoints.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Layer(nn.Module):
    """Base class of what a table row builds: the constructor takes the input's channels, then the row's args."""

    out_channels: int
    reduction: Fraction = Fraction(1)  # input side / output side

    multi_input: ClassVar[bool] = False  # takes a list of maps; the constructor takes a list of channels and `strides=`
    scales_width: ClassVar[bool] = True  # the first arg is a number of channels, which the table's width scales
    repeats_inside: ClassVar[bool] = False  # takes the row's number as `repeats=`, instead of being stacked


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


class Conv(Layer):
    """Convolution, batch normalisation, SiLU."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        if out_channels < 1:  # e.g. of a block's inner convolution, whose channels are a fraction of the row's
            raise ValueError(f"a convolution needs 1 or more output channels, got {out_channels}")
        self.out_channels, self.reduction = out_channels, whole_stride(stride)
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))

    def fuse(self) -> None:
        """Fold the running statistics into the convolution, for inference; a second call changes nothing."""
        if isinstance(self.bn, _BatchNorm):
            self.conv = fuse_conv_bn_eval(self.conv.eval(), self.bn.eval())
            self.bn = nn.Identity()


class SeparableConv(Layer):
    """Depthwise separable convolution: a convolution of each channel by itself, then a 1x1 convolution.

    Source: MobileNets, arXiv 1704.04861, section 3.1; with SiLU, and with the attribute names of YOLOX's checkpoints.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.dconv = Conv(in_channels, in_channels, kernel, stride, groups=in_channels)
        self.pconv = Conv(in_channels, out_channels, 1)
        self.out_channels, self.reduction = out_channels, self.dconv.reduction

    def forward(self, x: Tensor) -> Tensor:
        return self.pconv(self.dconv(x))


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> Tensor:
        ctx.channels = [x.shape[1] for x in maps]
        return torch.cat(maps, dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(part.contiguous(memory_format=torch.channels_last) for part in gradient.split(ctx.channels, 1))


def join(maps: Sequence[Tensor]) -> Tensor:
    """Return maps of one size, concatenated along their channels.

    On a CPU each map gets a dense gradient: torch.cat returns strided views of it, on which the backward pass of the
    preceding SiLU is three times slower (6 % of a bfloat16 step of yolov5n). Without gradients it is torch.cat alone,
    which an exported graph can hold.
    """
    own = maps[0].device.type == "cpu" and torch.is_grad_enabled()
    return _Join.apply(*maps) if own else torch.cat(list(maps), dim=1)


class Bottleneck(Layer):
    """1x1 convolution to fewer channels, 3x3 convolution back, and the input added if its number of channels is equal.

    Source: ResNet, arXiv 1512.03385, figure 5, with two convolutions as Darknet-53 (YOLOv3, arXiv 1804.02767, table 1).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        shortcut: bool = True,
        groups: int = 1,
        expansion: float = 0.5,
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = int(out_channels * expansion)
        self.cv1 = Conv(in_channels, hidden, 1)
        self.cv2: Layer = Conv(hidden, out_channels, 3, groups=groups)
        self.add = bool(shortcut) and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.add else y


class SeparableBottleneck(Bottleneck):
    """Bottleneck with a depthwise separable 3x3 convolution."""

    def __init__(self, in_channels: int, out_channels: int, *args: Any) -> None:
        super().__init__(in_channels, out_channels, *args)
        self.cv2 = SeparableConv(self.cv1.out_channels, out_channels, 3)


class C3(Layer):
    """Two branches of 1x1 convolutions to half the channels, one with bottlenecks after it, merged by a third 1x1.

    Source: CSPNet, arXiv 1911.11929, section 3.
    """

    repeats_inside = True
    bottleneck: ClassVar[type[Bottleneck]] = Bottleneck

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        shortcut: bool = True,
        groups: int = 1,
        expansion: float = 0.5,
        *,
        repeats: int = 1,
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = int(out_channels * expansion)
        self.cv1 = Conv(in_channels, hidden, 1)
        self.cv2 = Conv(in_channels, hidden, 1)
        self.cv3 = Conv(2 * hidden, out_channels, 1)
        self.m = nn.Sequential(*(self.bottleneck(hidden, hidden, shortcut, groups, 1.0) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(join((self.m(self.cv1(x)), self.cv2(x))))


class SeparableC3(C3):
    """C3 with depthwise separable 3x3 convolutions."""

    bottleneck = SeparableBottleneck


class SPP(Layer):
    """Spatial pyramid pooling: the map concatenated with its maxima over windows of several sizes.

    Source: SPP-net, arXiv 1406.4729, with stride 1 as in YOLOv3-SPP.
    """

    def __init__(self, in_channels: int, out_channels: int, kernels: Sequence[int] = (5, 9, 13)) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = in_channels // 2
        self.cv1 = Conv(in_channels, hidden, 1)
        self.cv2 = Conv(hidden * (1 + len(kernels)), out_channels, 1)
        self.m = nn.ModuleList(nn.MaxPool2d(kernel, 1, kernel // 2) for kernel in kernels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        return self.cv2(join([x, *(pool(x) for pool in self.m)]))


class SPPF(Layer):
    """SPP by one pool applied three times: two of kernel 5 equal one of kernel 9, and three equal one of kernel 13."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 5) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = in_channels // 2
        self.cv1 = Conv(in_channels, hidden, 1)
        self.cv2 = Conv(hidden * 4, out_channels, 1)
        self.m = nn.MaxPool2d(kernel, 1, kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.cv1(x)]
        for _ in range(3):
            maps.append(self.m(maps[-1]))
        return self.cv2(join(maps))


class Concat(Layer):
    """Maps of one size, concatenated along their channels."""

    multi_input = True
    scales_width = False

    def __init__(self, in_channels: Sequence[int], dim: int = 1, *, strides: Sequence[Fraction]) -> None:
        super().__init__()
        if dim != 1:
            raise ValueError(f"maps can only be concatenated along dimension 1 (channels), got dimension {dim}")
        if len(set(strides)) > 1:
            raise ValueError(
                f"maps of strides {', '.join(map(str, strides))} differ in size and cannot be concatenated"
            )
        self.out_channels = sum(in_channels)

    def forward(self, maps: list[Tensor]) -> Tensor:
        return join(maps)


class Upsample(Layer):
    """The map enlarged by a whole factor. The args are those of nn.Upsample; `size` must be None."""

    scales_width = False

    def __init__(self, in_channels: int, size: None, factor: float, mode: str = "nearest") -> None:
        super().__init__()
        if size is not None or factor != int(factor) or factor < 1 or mode not in {"nearest", "bilinear"}:
            raise ValueError("args must be None, a whole factor, and nearest or bilinear")
        self.out_channels, self.reduction = in_channels, Fraction(1, int(factor))
        self.factor, self.mode = float(factor), mode

    def forward(self, x: Tensor) -> Tensor:
        return interpolate(x, scale_factor=self.factor, mode=self.mode)


class MaxPool(Layer):
    """The maximum of each window."""

    scales_width = False

    def __init__(self, in_channels: int, kernel: int, stride: int | None = None, padding: int = 0) -> None:
        super().__init__()
        stride = kernel if stride is None else stride
        self.out_channels, self.reduction = in_channels, whole_stride(stride)
        self.pool = nn.MaxPool2d(kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x)


class ZeroPad(Layer):
    """The map padded with zeros: `padding` is left, right, top, bottom, in cells."""

    scales_width = False

    def __init__(self, in_channels: int, padding: Sequence[int]) -> None:
        super().__init__()
        if len(padding) != 4:
            raise ValueError("padding must be four numbers: left, right, top, bottom")
        self.out_channels, self.padding = in_channels, tuple(padding)

    def forward(self, x: Tensor) -> Tensor:
        return pad(x, self.padding)


LAYERS: dict[str, type[Layer]] = {
    "Conv": Conv,
    "SeparableConv": SeparableConv,
    "Bottleneck": Bottleneck,
    "C3": C3,
    "SeparableC3": SeparableC3,
    "SPP": SPP,
    "SPPF": SPPF,
    "Concat": Concat,
    "nn.Upsample": Upsample,
    "nn.MaxPool2d": MaxPool,
    "nn.ZeroPad2d": ZeroPad,
}
