"""Depthwise convolutions whose gradients a CPU computes fast in 16 bits."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FAST_KERNEL = 3  # the largest whose weight gradient oneDNN computes fast in 16 bits


class DepthwiseConv2d(nn.Conv2d):
    """nn.Conv2d of each channel by itself; equal but for the time that its gradients take.

    For 16-bit maps on a CPU, oneDNN computes two gradients 3 to 50 times more slowly than the
    convolution itself: that of the input, if there is a stride, and that of a weight larger than
    3 x 3. Here the first is a convolution without stride, and the second is computed in float32.
    (0.82 of the time of a bfloat16 forward and backward pass of yolox_nano, 0.69 of
    mobilenet_v3_small.)
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.device.type != "cpu" or not torch.is_grad_enabled():
            return super()._conv_forward(input, weight, bias)

        dtype = input.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
        if dtype not in (torch.bfloat16, torch.float16):
            return super()._conv_forward(input, weight, bias)

        out = _Convolve.apply(input.to(dtype), weight.to(dtype), self.stride, self.padding)
        return out if bias is None else out + bias.to(dtype).view(-1, 1, 1)


class _Convolve(torch.autograd.Function):
    """A depthwise convolution without bias: [B, C, H, W] and [C, 1, K, L] -> [B, C, H', W']."""

    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(maps, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(maps, weight, None, stride, padding, groups=len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        maps, weight = ctx.saved_tensors
        of_maps = of_weight = None
        if ctx.needs_input_grad[0]:
            of_maps = input_gradient(gradient, weight, maps.shape, ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            of_weight = weight_gradient(gradient, maps, weight, ctx.stride, ctx.padding)
        return of_maps, of_weight, None, None


def input_gradient(
    gradient: Tensor,
    weight: Tensor,
    shape: torch.Size,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """Return the gradient of the input, which has this shape, [B, C, H, W].

    gradient: [B, C, H', W']. weight: [C, 1, K, L].

    A convolution with a stride is one without, of whose cells some are left out. So these cells get
    a gradient of 0, and then the gradient of a convolution without stride is a convolution itself,
    with the kernel turned by 180 degrees.
    """
    batch, channels, height, width = shape
    kernel_height, kernel_width = weight.shape[2:]

    without_stride = gradient
    if stride != (1, 1):
        out_height = height + 2 * padding[0] - kernel_height + 1
        out_width = width + 2 * padding[1] - kernel_width + 1
        channels_last = gradient.new_zeros(batch, out_height, out_width, channels)
        without_stride = channels_last.permute(0, 3, 1, 2)
        without_stride[:, :, :: stride[0], :: stride[1]] = gradient

    turned = weight.flip(2, 3)
    around = (kernel_height - 1 - padding[0], kernel_width - 1 - padding[1])
    return F.conv2d(without_stride, turned, None, 1, around, groups=channels)


def weight_gradient(
    gradient: Tensor,
    maps: Tensor,
    weight: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """Return the gradient of the weight [C, 1, K, L], in its type.

    It is computed in float32 for kernels above FAST_KERNEL. gradient: [B, C, H', W']. maps:
    [B, C, H, W].
    """
    dtype = weight.dtype
    if max(weight.shape[2:]) > FAST_KERNEL:
        dtype = torch.float32
    found = torch.ops.aten.convolution_backward(
        gradient.to(dtype),
        maps.to(dtype),
        weight.to(dtype),
        bias_sizes=None,
        stride=stride,
        padding=padding,
        dilation=(1, 1),
        transposed=False,
        output_padding=(0, 0),
        groups=len(weight),
        output_mask=(False, True, False),
    )
    return found[1].to(weight.dtype)


def speed_up_gradients(
    module: nn.Module,
    kind: type[nn.Conv2d] = nn.Conv2d,
    faster: type[DepthwiseConv2d] = DepthwiseConv2d,
) -> None:
    """Make each depthwise convolution in the module, whose gradients would be slow, a fast one.

    Its class is replaced, so that weights, names and initial values stay what they are, and
    networks of other libraries can have it, too.

    kind: the class to replace; its subclasses stay as they are. faster: the one with its output.
    """
    for conv in module.modules():
        if type(conv) is kind and _has_slow_gradients(conv):
            conv.__class__ = faster


def _has_slow_gradients(conv: nn.Conv2d) -> bool:
    is_depthwise = 1 < conv.groups == conv.in_channels == conv.out_channels
    is_large = max(conv.kernel_size) > FAST_KERNEL or max(conv.stride) > 1
    is_plain = conv.padding_mode == "zeros" and conv.dilation == (1, 1)
    if not (is_depthwise and is_large and is_plain) or isinstance(conv.padding, str):
        return False
    # the gradient's convolution would need a negative padding
    return all(
        padding < kernel for padding, kernel in zip(conv.padding, conv.kernel_size, strict=True)
    )
