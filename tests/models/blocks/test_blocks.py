"""Blocks against hand-computed numbers and slow implementations. Maps are [B, C, H, W]."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from models.blocks import Stack
from models.blocks.convolutions import Conv
from models.blocks.cross_stage import C3, Bottleneck
from models.blocks.joining import Concat, join
from models.blocks.registry import LAYERS
from models.blocks.resizing import SPP, SPPF, MaxPool, Upsample, ZeroPad


def randomize_statistics(module: nn.Module) -> None:
    """Set the statistics and weights of every BatchNorm to values other than 0 and 1."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.3)


def test_conv_by_hand():
    # One pixel 3, weight 2, running mean 1, variance 4, eps 0.001: y = (6 - 1) / sqrt(4.001) =
    # 2.499688; SiLU: 2.499688 / (1 + exp(-2.499688)) = 2.309980
    conv = Conv(1, 1).eval()
    nn.init.constant_(conv.conv.weight, 2.0)
    conv.bn.running_mean.fill_(1.0)
    conv.bn.running_var.fill_(4.0)
    y = (6 - 1) / 4.001**0.5
    expected = y / (1 + torch.tensor(-y).exp().item())
    assert expected == pytest.approx(2.30998, abs=1e-4)
    assert conv(torch.full((1, 1, 1, 1), 3.0)).item() == pytest.approx(expected, rel=1e-6)


def test_batch_norm_constants():
    norm = Conv(1, 8).bn
    assert (norm.eps, norm.momentum) == (1e-3, 0.03)


@pytest.mark.parametrize(
    ("layer", "parameters"),
    [
        (Conv(3, 16, 6, 2, 2), 3 * 16 * 36 + 2 * 16),  # 1,760: the first layer of yolov5n
        (
            Bottleneck(16, 16),
            16 * 8 + 16 + 8 * 16 * 9 + 32,
        ),  # 1x1 to 8, then 3x3 to 16, each with BatchNorm's two parameters per channel
        (C3(32, 32, repeats=1), 4800),
        (C3(64, 64, repeats=2), 29184),
        (SPPF(256, 256), 164608),
        (SPP(256, 256), 164608),  # the same two convolutions
    ],
)
def test_parameter_counts_of_blocks(layer, parameters):
    assert sum(parameter.numel() for parameter in layer.parameters()) == parameters


@pytest.mark.parametrize("shortcut", [True, False])
def test_bottleneck_shortcut(shortcut):
    block, x = Bottleneck(4, 4, shortcut).eval(), torch.randn(2, 4, 5, 5)
    plain = block.cv2(block.cv1(x))
    torch.testing.assert_close(block(x), x + plain if shortcut else plain)


def test_bottleneck_has_no_shortcut_if_channels_differ():
    assert Bottleneck(4, 8, True).eval()(torch.randn(1, 4, 3, 3)).shape == (1, 8, 3, 3)


def test_c3_concatenates_the_bottleneck_branch_first():
    block, x = C3(8, 8, repeats=2).eval(), torch.randn(1, 8, 4, 4)
    first = block.m[1](block.m[0](block.cv1(x)))
    torch.testing.assert_close(block(x), block.cv3(torch.cat((first, block.cv2(x)), 1)))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_join_equals_cat_and_gives_channels_last_gradients(layout):
    maps = [
        torch.randn(2, channels, 5, 4).to(memory_format=layout).requires_grad_()
        for channels in (3, 1, 8)
    ]
    received = []
    copies = [x.clone() for x in maps]
    for x in copies:
        x.register_hook(received.append)
    factors = torch.randn(2, 12, 5, 4)
    joined = join(copies)
    (joined * factors).sum().backward()
    assert joined.equal(torch.cat(maps, 1))
    assert torch.cat([x.grad for x in maps], 1).equal(factors)
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in received)


def test_sppf_equals_spp():
    fast, slow, x = SPPF(8, 8, 5).eval(), SPP(8, 8, (5, 9, 13)).eval(), torch.randn(2, 8, 15, 17)
    slow.load_state_dict(fast.state_dict())
    torch.testing.assert_close(fast(x), slow(x), rtol=0, atol=0)


def test_upsample_maxpool_zeropad_and_concat_by_hand():
    x = torch.arange(4.0).view(1, 1, 2, 2)
    assert Upsample(1, None, 2)(x)[0, 0].tolist() == [
        [0, 0, 1, 1],
        [0, 0, 1, 1],
        [2, 2, 3, 3],
        [2, 2, 3, 3],
    ]
    assert MaxPool(1, 2)(x).tolist() == [[[[3.0]]]]
    assert ZeroPad(1, [0, 1, 0, 1])(x)[0, 0].tolist() == [[0, 1, 0], [2, 3, 0], [0, 0, 0]]
    assert Concat([1, 1], strides=[Fraction(8)] * 2)([x, x]).shape == (1, 2, 2, 2)


@pytest.mark.parametrize("padding", [(0, 1, 0, 1), (2, 0, 1, 3), (0, 0, 0, 0)])
def test_zero_padding_of_exported_files_has_the_same_values(padding):
    """They have no operator for it, which some runtimes merge into max pooling."""
    x = torch.rand(2, 3, 4, 5)
    layer = ZeroPad(3, padding)
    exported = torch.export.export(layer, (x,))
    assert not [node for node in exported.graph.nodes if "pad" in str(node.target)]
    assert exported.module()(x).equal(layer(x))


def test_layers_report_their_reduction():
    assert Upsample(4, None, 2).reduction == Fraction(1, 2)
    assert MaxPool(4, 2).reduction == 2
    assert MaxPool(4, 2, 1).reduction == 1
    stacked = Stack(Conv(4, 8, 3, 2), Conv(8, 6, 3, 2))
    assert (stacked.reduction, stacked.out_channels) == (4, 6)


@pytest.mark.parametrize(
    "layer", [Conv(4, 4, 3), C3(4, 4), SPP(4, 4), SPPF(4, 4), Upsample(4, None, 2), MaxPool(4, 2)]
)
def test_blocks_accept_empty_batch(layer):
    assert layer.eval()(torch.empty(0, 4, 8, 8)).shape[:2] == (0, 4)


def test_fused_conv_is_equivalent_and_fusing_is_idempotent():
    conv, x = Conv(3, 8, 3, 2), torch.randn(2, 3, 9, 9)
    randomize_statistics(conv)
    expected = conv.eval()(x)
    conv.fuse()
    fused = conv.conv
    conv.fuse()
    assert conv.conv is fused
    assert [name for name, _ in conv.named_parameters()] == ["conv.weight", "conv.bias"]
    torch.testing.assert_close(conv(x), expected, rtol=1e-5, atol=1e-5)


def test_concat_rejects_different_strides():
    with pytest.raises(
        ValueError, match=r"maps of strides 16, 8 differ in size and cannot be concatenated"
    ):
        Concat([1, 1], strides=[Fraction(16), Fraction(8)])


@pytest.mark.parametrize("args", [(4, 2), (None, 1.5), (None, 0), (None, 2, "magic")])
def test_upsample_rejects_invalid_arguments(args):
    with pytest.raises(ValueError, match="None, a whole factor, and nearest or bilinear"):
        Upsample(4, *args)


def test_registry_contains_only_layers():
    assert all(hasattr(kind, "multi_input") for kind in LAYERS.values())
