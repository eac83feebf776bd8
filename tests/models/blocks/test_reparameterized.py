"""Re-parameterized blocks and those around them: by hand, by plain operations, merged and not."""

import copy
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.blocks import Layer
from models.blocks.convolutions import PlainConv
from models.blocks.reparameterized import ELAN, RepConv, RepNCSP, RepNCSPELAN
from models.blocks.resizing import SPPF, AConv, ADown, EnlargeAndAdd
from tests.models.test_detector import randomize_statistics


def convolved(layer: nn.Module, x: Tensor, *, activated: bool = True) -> Tensor:
    """Return what a convolution, its batch normalization and SiLU make of `x`."""
    conv, norm = layer.conv, layer.bn
    padding = (conv.kernel_size[0] - 1) // 2
    x = F.conv2d(x, conv.weight, None, conv.stride, padding)
    scale = norm.weight / (norm.running_var + 1e-3).sqrt()
    shift = norm.bias - norm.running_mean * scale
    x = x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
    return x * x.sigmoid() if activated else x


def rep_convolved(layer: RepConv, x: Tensor) -> Tensor:
    parts = [convolved(part, x, activated=False) for part in (layer.conv1, layer.conv2)]
    return sum(parts) * sum(parts).sigmoid()


def slow_rep_ncsp(layer: RepNCSP, x: Tensor) -> Tensor:
    deep = convolved(layer.conv1, x)
    for block in layer.bottleneck:
        deep = deep + convolved(block.conv2, rep_convolved(block.conv1, deep))
    return convolved(layer.conv3, torch.cat([deep, convolved(layer.conv2, x)], 1))


def slow_elan(layer: ELAN, x: Tensor) -> Tensor:
    passed, first = convolved(layer.conv1, x).chunk(2, 1)
    second, third = first, first
    for number, block in enumerate((layer.conv2, layer.conv3)):
        inner = second if number else first
        if isinstance(layer, RepNCSPELAN):
            inner = slow_rep_ncsp(block[0], inner)
            block = block[1]
        second, third = convolved(block, inner), second
    return convolved(layer.conv4, torch.cat([passed, first, third, second], 1))


def slow_pooled(x: Tensor) -> Tensor:
    return (x[..., :-1, :-1] + x[..., 1:, :-1] + x[..., :-1, 1:] + x[..., 1:, 1:]) / 4


def slow_adown(layer: ADown, x: Tensor) -> Tensor:
    first, second = slow_pooled(x).chunk(2, 1)
    padded = F.pad(second, (1, 1, 1, 1), value=-torch.inf)
    windows = padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((4, 5))
    return torch.cat([convolved(layer.conv1, first), convolved(layer.conv2, windows)], 1)


BLOCKS = {
    "RepConv": (lambda: RepConv(8, 12), rep_convolved),
    "RepNCSP": (lambda: RepNCSP(8, 12, repeats=2), slow_rep_ncsp),
    "ELAN": (lambda: ELAN(8, 12), slow_elan),
    "RepNCSPELAN": (lambda: RepNCSPELAN(8, 16, 0.5, repeats=2), slow_elan),
    "AConv": (lambda: AConv(8, 12), lambda layer, x: convolved(layer.conv, slow_pooled(x))),
    "ADown": (lambda: ADown(8, 12), slow_adown),
}


@pytest.mark.parametrize("name", BLOCKS)
@torch.no_grad()
def test_blocks_equal_plain_operations_also_when_fused(name):
    torch.manual_seed(0)
    build, slow = BLOCKS[name]
    block = randomize_statistics(build())
    x = torch.randn(2, 8, 6, 4)
    expected = slow(block, x)
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)
    assert expected.shape[:2] == (2, block.out_channels)
    assert Fraction(6, expected.shape[2]) == Fraction(4, expected.shape[3]) == block.reduction

    # Twice: the second time changes nothing. No branch and no normalization is left.
    state = copy.deepcopy(block.state_dict())
    for _ in range(2):
        for module in list(block.modules()):
            if isinstance(module, Layer):
                module.fuse()
    torch.testing.assert_close(block(x), expected, rtol=1e-4, atol=1e-5)
    kinds = [type(module) for module in block.modules()]
    assert nn.BatchNorm2d not in kinds
    assert all(module.conv2 is None for module in block.modules() if isinstance(module, RepConv))
    assert len(block.state_dict()) < len(state)


def test_merged_convolution_by_hand():
    # Mean 0 and variance 1, eps included: the 3x3 convolution of ones and the 1x1 one of 2 are one
    # of ones with 1 + 2 in the middle.
    layer = RepConv(1, 1).eval()
    with torch.no_grad():
        for part, value in ((layer.conv1, 1.0), (layer.conv2, 2.0)):
            part.conv.weight.fill_(value)
            part.bn.running_var.fill_(1 - 1e-3)
            part.bn.bias.fill_(value / 2)
    layer.fuse()
    kernel = torch.tensor([[1.0, 1, 1], [1, 3, 1], [1, 1, 1]])
    torch.testing.assert_close(layer.conv1.conv.weight[0, 0], kernel)
    torch.testing.assert_close(layer.conv1.conv.bias, torch.tensor([1.5]))  # 0.5 + 1


def test_enlarged_maps_are_added_by_hand():
    layer = EnlargeAndAdd([1, 1, 1], strides=[Fraction(16), Fraction(8), Fraction(8)])
    coarse = torch.tensor([[1.0, 2]]).view(1, 1, 1, 2)
    same = torch.full((1, 1, 2, 4), 10.0)
    last = torch.arange(8.0).view(1, 1, 2, 4) * 100
    expected = [[11.0, 111, 212, 312], [411, 511, 612, 712]]
    assert layer([coarse, same, last])[0, 0].tolist() == expected
    assert (layer.out_channels, layer.reduction) == (1, Fraction(1, 2))
    assert layer([x[:0] for x in (coarse, same, last)]).shape == (0, 1, 2, 4)


def test_plain_convolution_by_hand():
    layer = PlainConv(2, 1)
    with torch.no_grad():
        layer.conv.weight.copy_(torch.tensor([[3.0, -1]])[..., None, None])
        layer.conv.bias.fill_(0.5)
    assert layer(torch.tensor([2.0, 4]).view(1, 2, 1, 1)).item() == 2.5  # 6 - 4 + 0.5
    assert layer.out_channels == 1
    assert PlainConv(2, 1, 3, 2)(torch.ones(1, 2, 8, 6)).shape == (1, 1, 4, 3)


def test_sppf_of_equal_channels_has_half_as_many_inside():
    """YOLOv9's SPPELAN, whose hidden channels are half of its output's: equal here."""
    layer = SPPF(8, 8)
    assert layer.cv1.out_channels == 4
    assert layer.cv2.conv.in_channels == 4 * 4


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: EnlargeAndAdd([4, 8], strides=[Fraction(8)] * 2), r"\[4, 8\] channels cannot"),
        (lambda: EnlargeAndAdd([4, 4], strides=[Fraction(8), Fraction(16)]), "strides 8, 16: each"),
        (lambda: EnlargeAndAdd([4, 4], strides=[Fraction(12), Fraction(8)]), "strides 12, 8: each"),
        (lambda: ADown(3, 8), "channels must be even, to be halved, got 3 and 8"),
        (lambda: ADown(4, 7), "channels must be even, to be halved, got 4 and 7"),
        (lambda: ELAN(4, 8, repeats=2), "ELAN cannot be repeated"),
        (lambda: ELAN(4, 8, 0.1), "needs 1 or more output channels, got 0"),
        (lambda: RepNCSP(4, 1), "needs 1 or more output channels, got 0"),
    ],
)
def test_wrong_arguments_are_refused(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()
