"""Blocks of re-parameterized convolutions, whose branches become one convolution for inference.

Also the other aggregating blocks of the same family. The attribute names are the key parts of its
authors' checkpoints.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from models.blocks.base import Layer
from models.blocks.convolutions import Conv, LinearConv
from models.blocks.joining import halves, join


class RepConv(Layer):
    """The sum of a 3x3 and a 1x1 convolution, each with batch normalization, then SiLU.

    `fuse` makes one 3x3 convolution of both.

    Source: RepVGG, arXiv 2101.03697, section 3.2 and figure 4, without the identity branch.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.conv1: Conv = LinearConv(in_channels, out_channels, 3)
        self.conv2: Conv | None = LinearConv(in_channels, out_channels, 1)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.conv2 is None:
            return self.conv1(x)  # which has the activation, too
        return self.act(self.conv1(x) + self.conv2(x))

    @torch.no_grad()
    def fuse(self) -> None:
        """Merge both convolutions, with their running statistics, into the first one."""
        if self.conv2 is None:
            return
        self.conv1.fuse()
        self.conv2.fuse()

        # A 1x1 convolution is a 3x3 one of which only the middle is not 0.
        wide = self.conv1.conv
        narrow = self.conv2.conv
        wide.weight += pad(narrow.weight, (1, 1, 1, 1))
        wide.get_parameter("bias").add_(narrow.get_parameter("bias"))
        self.conv1.act = self.act
        self.conv2 = None


class RepBottleneck(Layer):
    """A re-parameterized and a plain 3x3 convolution, and the input added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.conv1 = RepConv(channels, channels)
        self.conv2 = Conv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.conv1(x))


class RepNCSP(Layer):
    """Two branches of 1x1 convolutions to half the channels, merged by a third one.

    One of the branches has re-parameterized bottlenecks after its convolution.

    Source: CSPNet, arXiv 1911.11929, section 3; YOLOv9, arXiv 2402.13616, section 4.2.
    """

    repeats_inside = True

    def __init__(self, in_channels: int, out_channels: int, *, repeats: int = 1) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = out_channels // 2
        self.conv1 = Conv(in_channels, hidden, 1)
        self.conv2 = Conv(in_channels, hidden, 1)
        self.bottleneck = nn.Sequential(*(RepBottleneck(hidden) for _ in range(repeats)))
        self.conv3 = Conv(2 * hidden, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        deep = self.bottleneck(self.conv1(x))
        passed = self.conv2(x)
        return self.conv3(join((deep, passed)))


class ELAN(Layer):
    """A 1x1 convolution, whose second half passes two blocks in a row.

    Both halves and the outputs of both blocks are merged by another 1x1 convolution. Each block is
    a 3x3 convolution to as many channels as a half has.

    expansion: channels of both halves together, per output channel.

    Source: ELAN, arXiv 2211.04800, figure 1.
    """

    repeats_inside = True

    def __init__(
        self, in_channels: int, out_channels: int, expansion: float = 1.0, *, repeats: int = 1
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        hidden = int(out_channels * expansion) // 2
        self.conv1 = Conv(in_channels, 2 * hidden, 1)
        self.conv2 = self._block(hidden, repeats)
        self.conv3 = self._block(hidden, repeats)
        self.conv4 = Conv(4 * hidden, out_channels, 1)

    def _block(self, channels: int, repeats: int) -> nn.Module:
        """Return one of the two blocks; subclasses have others."""
        if repeats > 1:
            raise ValueError("ELAN cannot be repeated: `number` must be 1")
        return Conv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        passed, first = halves(self.conv1(x))
        second = self.conv2(first)
        third = self.conv3(second)
        return self.conv4(join((passed, first, second, third)))


class RepNCSPELAN(ELAN):
    """ELAN whose blocks are RepNCSP and a 3x3 convolution.

    repeats: bottlenecks in each RepNCSP.

    Source: GELAN, arXiv 2402.13616, section 4.2 and figure 4.
    """

    def _block(self, channels: int, repeats: int) -> nn.Module:
        return nn.Sequential(
            RepNCSP(channels, channels, repeats=repeats), Conv(channels, channels, 3)
        )
