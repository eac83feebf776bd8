"""Convolutions with batch normalization and SiLU."""

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from models.blocks.base import Layer, whole_stride


class Conv(Layer):
    """Convolution, batch normalization, SiLU."""

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
        # e.g. of a block's inner convolution, whose channels are a fraction of the row's
        if out_channels < 1:
            raise ValueError(f"a convolution needs 1 or more output channels, got {out_channels}")
        self.out_channels = out_channels
        self.reduction = whole_stride(stride)

        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False
        )
        self.bn: nn.Module = nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.03)
        self.act: nn.Module = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))

    def fuse(self) -> None:
        """Fold the running statistics into the convolution, for inference.

        A second call changes nothing.
        """
        if isinstance(self.bn, _BatchNorm):
            self.conv = fuse_conv_bn_eval(self.conv.eval(), self.bn.eval())
            self.bn = nn.Identity()


class LinearConv(Conv):
    """Convolution and batch normalization, without activation."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, *, groups: int = 1
    ) -> None:
        super().__init__(in_channels, out_channels, kernel, groups=groups)
        self.act = nn.Identity()


class PlainConv(Layer):
    """A convolution with bias, without normalization and activation; `nn.Conv2d` in tables."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.reduction = whole_stride(stride)
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class SeparableConv(Layer):
    """Depthwise separable convolution: one of each channel by itself, then a 1x1 convolution.

    Source: MobileNets, arXiv 1704.04861, section 3.1; with SiLU, and with the attribute names of
    YOLOX's checkpoints.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1
    ) -> None:
        super().__init__()
        self.dconv = Conv(in_channels, in_channels, kernel, stride, groups=in_channels)
        self.pconv = Conv(in_channels, out_channels, 1)
        self.out_channels = out_channels
        self.reduction = self.dconv.reduction

    def forward(self, x: Tensor) -> Tensor:
        return self.pconv(self.dconv(x))
