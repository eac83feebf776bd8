"""Depthwise convolutions: gradients equal to those of torch's own, and where they are used."""

import pytest
import torch
from torch import Tensor, nn

from models import build_model
from models.blocks.depthwise import (
    DepthwiseConv2d,
    input_gradient,
    speed_up_gradients,
    weight_gradient,
)

CHANNELS = 3
# kernel, stride, padding, height and width: sizes that a stride does and does not divide
SHAPES = [
    ((3, 3), (2, 2), (1, 1), (8, 8)),
    ((3, 3), (2, 2), (1, 1), (9, 7)),
    ((3, 3), (2, 2), (0, 0), (8, 9)),
    ((5, 5), (1, 1), (2, 2), (6, 11)),
    ((5, 5), (3, 3), (4, 4), (10, 12)),
    ((7, 7), (2, 2), (3, 3), (9, 8)),
    ((3, 5), (1, 2), (1, 0), (6, 9)),
    ((5, 1), (2, 1), (2, 0), (5, 4)),
]


def convolution(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], **settings: bool
) -> nn.Conv2d:
    torch.manual_seed(1)
    conv = nn.Conv2d(CHANNELS, CHANNELS, kernel, stride, padding, groups=CHANNELS, **settings)
    return conv.to(memory_format=torch.channels_last)


def gradients(conv: nn.Conv2d, maps: Tensor) -> tuple[Tensor, ...]:
    """Return the output of a convolution, and gradients of the maps and the parameters."""
    maps = maps.detach().requires_grad_()
    out = conv(maps)
    direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return out, *torch.autograd.grad(out, [maps, *conv.parameters()], direction)


@pytest.mark.parametrize(("kernel", "stride", "padding", "size"), SHAPES)
def test_gradients_equal_those_of_torch_in_float64(kernel, stride, padding, size):
    conv = convolution(kernel, stride, padding, bias=False).double()
    maps = torch.rand(2, CHANNELS, *size, dtype=torch.float64)
    out, of_maps, of_weight = gradients(conv, maps)
    direction = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)

    weight = conv.weight.detach()
    found = input_gradient(direction, weight, maps.shape, stride, padding)
    torch.testing.assert_close(found, of_maps, rtol=1e-12, atol=1e-12)

    found = weight_gradient(direction, maps, weight, stride, padding)
    large = max(kernel) > 3  # computed in float32
    tolerance = 1e-5 if large else 1e-12
    torch.testing.assert_close(found, of_weight, rtol=tolerance, atol=tolerance)


def test_gradient_of_one_cell_worked_by_hand():
    """3 x 3 kernel 1 to 9, stride 2, no padding, 5 x 5 maps: output cell (1, 0) reads rows 2 to 4
    and columns 0 to 2, so its gradient of 10 puts 10 x the kernel there.
    """
    weight = torch.arange(1.0, 10.0).view(1, 1, 3, 3)
    gradient = torch.tensor([[[[0.0, 0.0], [10.0, 0.0]]]])
    found = input_gradient(gradient, weight, torch.Size((1, 1, 5, 5)), (2, 2), (0, 0))
    expected = torch.zeros(1, 1, 5, 5)
    expected[0, 0, 2:5, 0:3] = torch.tensor([[10.0, 20, 30], [40, 50, 60], [70, 80, 90]])
    torch.testing.assert_close(found, expected)

    maps = torch.arange(25.0).view(1, 1, 5, 5)
    found = weight_gradient(gradient, maps, weight, (2, 2), (0, 0))
    rows = [[100.0, 110, 120], [150, 160, 170], [200, 210, 220]]  # cells 10, 11, 12, 15, ... x 10
    torch.testing.assert_close(found, torch.tensor(rows).view(1, 1, 3, 3))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding", "size"), SHAPES)
def test_training_under_autocast_agrees_with_float32(kernel, stride, padding, size, bias):
    maps = torch.rand(2, CHANNELS, *size)
    exact = gradients(convolution(kernel, stride, padding, bias=bias), maps)

    layer = nn.Sequential(convolution(kernel, stride, padding, bias=bias))
    speed_up_gradients(layer)
    fast = layer[0]
    assert isinstance(fast, DepthwiseConv2d)
    with torch.autocast("cpu", torch.bfloat16):
        assert fast(maps).dtype == torch.bfloat16
        found = gradients(fast, maps)
    for value, expected in zip(found, exact, strict=True):
        # bfloat16 has 8 digits: 0.004 of the largest summand for each rounding
        torch.testing.assert_close(
            value.float(), expected, rtol=0.02, atol=0.02 * expected.abs().max().item()
        )


def test_without_16_bits_or_gradients_it_has_the_bits_of_nn_conv2d():
    maps = torch.rand(2, CHANNELS, 8, 8)
    plain, layer = (nn.Sequential(convolution((5, 5), (2, 2), (2, 2))) for _ in range(2))
    speed_up_gradients(layer)
    for found, expected in zip(gradients(layer[0], maps), gradients(plain[0], maps), strict=True):
        assert torch.equal(found, expected)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(maps), plain(maps))


def test_frozen_weights_and_images_get_no_gradients():
    layer = nn.Sequential(convolution((5, 5), (2, 2), (2, 2), bias=False))
    speed_up_gradients(layer)
    maps = torch.rand(1, CHANNELS, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        layer(maps).float().sum().backward()
        assert maps.grad is None
        assert layer[0].weight.grad is not None

        layer[0].weight.requires_grad_(False).grad = None
        layer(maps.requires_grad_()).float().sum().backward()
    assert maps.grad is not None
    assert layer[0].weight.grad is None


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, 1, 1, groups=4),  # fast as it is
        nn.Conv2d(4, 8, 3, 2, 1, groups=4),
        nn.Conv2d(4, 4, 3, 2, 1, groups=2),
        nn.Conv2d(4, 4, 3, 2, 1),
        nn.Conv2d(1, 1, 3, 2, 1),
        nn.Conv2d(4, 4, 5, 1, 4, groups=4, dilation=2),
        nn.Conv2d(4, 4, 5, 1, 2, groups=4, padding_mode="reflect"),
        nn.Conv2d(4, 4, 5, 1, "same", groups=4),
        nn.Conv2d(4, 4, 3, 2, 3, groups=4),  # a padding as large as the kernel
    ],
)
def test_other_convolutions_stay_as_they_are(conv):
    speed_up_gradients(nn.Sequential(conv))
    assert type(conv) is nn.Conv2d


@pytest.mark.slow
def test_models_have_them_where_a_stride_or_a_large_kernel_is():
    model = build_model("yolox_nano", 2)
    fast = [module for module in model.modules() if isinstance(module, DepthwiseConv2d)]
    assert {(conv.kernel_size, conv.stride) for conv in fast} == {((3, 3), (2, 2))}
    assert len(fast) == 6
    large = [
        module
        for module in build_model("rtmdet_tiny", 2).modules()
        if isinstance(module, DepthwiseConv2d)
    ]
    assert {conv.kernel_size for conv in large} == {(5, 5)}
