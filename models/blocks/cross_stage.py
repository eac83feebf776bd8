"""Residual bottlenecks, and cross-stage blocks that pass a part of the channels through them."""

from typing import Any, ClassVar

from torch import Tensor, nn

from models.blocks.attention import AttentionBlock
from models.blocks.base import Layer
from models.blocks.convolutions import Conv, SeparableConv
from models.blocks.joining import halves, join


class Bottleneck(Layer):
    """1x1 convolution to fewer channels, and 3x3 convolution back.

    The input is added if its number of channels is equal. kernel: of the first convolution.

    Source: ResNet, arXiv 1512.03385, figure 5, with two convolutions as Darknet-53 (YOLOv3, arXiv
    1804.02767, table 1).
    """

    kernel: ClassVar[int] = 1

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
        self.cv1 = Conv(in_channels, hidden, self.kernel)
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


class WideBottleneck(Bottleneck):
    """Bottleneck of two 3x3 convolutions."""

    kernel = 3


class C3(Layer):
    """Two branches of 1x1 convolutions to half the channels, merged by a third one.

    One of the branches has bottlenecks after its convolution.

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
        bottlenecks = [
            self.bottleneck(hidden, hidden, shortcut, groups, 1.0) for _ in range(repeats)
        ]
        self.m = nn.Sequential(*bottlenecks)

    def forward(self, x: Tensor) -> Tensor:
        deep = self.m(self.cv1(x))
        passed = self.cv2(x)
        return self.cv3(join((deep, passed)))


class SeparableC3(C3):
    """C3 with depthwise separable 3x3 convolutions."""

    bottleneck = SeparableBottleneck


class C3k(C3):
    """C3 with bottlenecks of two 3x3 convolutions."""

    bottleneck = WideBottleneck


class C2f(Layer):
    """A 1x1 convolution, whose second half passes a chain of blocks.

    Both halves and the outputs of all blocks are merged by another 1x1 convolution.

    shortcut: whether each block adds its input. expansion: hidden channels per output channel.

    Source: CSPNet, arXiv 1911.11929, with the outputs of all blocks as in ELAN, arXiv 2211.04800,
    figure 1; facts of YOLOv8's layout.
    """

    repeats_inside = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        shortcut: bool = False,
        groups: int = 1,
        expansion: float = 0.5,
        *,
        repeats: int = 1,
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.hidden = int(out_channels * expansion)
        self.cv1 = Conv(in_channels, 2 * self.hidden, 1)
        self.cv2 = Conv((2 + repeats) * self.hidden, out_channels, 1)
        self.m = nn.ModuleList(self._block(shortcut, groups) for _ in range(repeats))

    def _block(self, shortcut: bool, groups: int) -> nn.Module:
        """Return one block of the chain; subclasses have others."""
        return WideBottleneck(self.hidden, self.hidden, shortcut, groups, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        maps = list(halves(self.cv1(x)))
        for block in self.m:
            maps.append(block(maps[-1]))
        return self.cv2(join(maps))


class C3k2(C2f):
    """C2f with other blocks: bottlenecks of two 3x3 convolutions to half the channels and back.

    nested: whether the blocks are C3k of two bottlenecks instead. attention: whether each is the
    bottleneck and a block of self-attention instead.

    Source: facts of YOLO11's and YOLO26's layout.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        nested: bool = False,
        expansion: float = 0.5,
        attention: bool = False,
        *,
        repeats: int = 1,
    ) -> None:
        self.nested = nested
        self.attention = attention
        super().__init__(
            in_channels, out_channels, shortcut=True, expansion=expansion, repeats=repeats
        )

    def _block(self, shortcut: bool, groups: int) -> nn.Module:
        if self.nested and not self.attention:
            return C3k(self.hidden, self.hidden, shortcut, groups, repeats=2)

        bottleneck = WideBottleneck(self.hidden, self.hidden, shortcut, groups)
        if self.attention:
            return nn.Sequential(bottleneck, AttentionBlock(self.hidden))
        return bottleneck


class C2PSA(Layer):
    """A 1x1 convolution, one half of whose output passes blocks of self-attention.

    Both halves are merged by another 1x1 convolution.

    Source: PSA of YOLOv10, arXiv 2405.14458, section 3.2 and figure 3 (c).
    """

    repeats_inside = True

    def __init__(self, in_channels: int, out_channels: int, *, repeats: int = 1) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.hidden = out_channels // 2
        self.cv1 = Conv(in_channels, 2 * self.hidden, 1)
        self.cv2 = Conv(2 * self.hidden, out_channels, 1)
        self.m = nn.Sequential(*(AttentionBlock(self.hidden) for _ in range(repeats)))

    def forward(self, x: Tensor) -> Tensor:
        passed, attended = halves(self.cv1(x))
        return self.cv2(join((passed, self.m(attended))))
