"""CSPNeXt: cross-stage blocks with large depthwise kernels and attention to channels."""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import hardsigmoid

from models.blocks.base import Layer
from models.blocks.convolutions import SeparableConv
from models.blocks.cross_stage import C3, WideBottleneck
from models.blocks.joining import join


class ChannelAttention(Layer):
    """The map, each channel times a gate in [0, 1] that the means of all channels decide.

    Source: SENet, arXiv 1709.01507, section 3, with one 1x1 convolution and a hard sigmoid (arXiv
    1905.02244, section 5.2), as in RTMDet.
    """

    scales_width = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * hardsigmoid(self.fc(means))


class NextBottleneck(WideBottleneck):
    """Bottleneck of a 3x3 convolution and a depthwise separable 5x5 convolution.

    Source: RTMDet, arXiv 2212.07784, section 3.2 and figure 3.
    """

    def __init__(self, in_channels: int, out_channels: int, *args: Any) -> None:
        super().__init__(in_channels, out_channels, *args)
        self.cv2 = SeparableConv(self.cv1.out_channels, out_channels, 5)


class CSPNeXt(C3):
    """C3 of bottlenecks with a depthwise separable 5x5 convolution.

    shortcut: whether each bottleneck adds its input. attention: whether the channels of both
    branches are weighted before they are merged.

    Source: RTMDet, arXiv 2212.07784, section 3.2 and figure 3.
    """

    bottleneck = NextBottleneck

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        shortcut: bool = True,
        attention: bool = False,
        *,
        repeats: int = 1,
    ) -> None:
        super().__init__(in_channels, out_channels, shortcut, repeats=repeats)
        self.attention: nn.Module = nn.Identity()
        if attention:
            self.attention = ChannelAttention(self.cv1.out_channels + self.cv2.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        deep = self.m(self.cv1(x))
        passed = self.cv2(x)
        return self.cv3(self.attention(join((deep, passed))))
