"""Blocks of RTMDet: equal to its authors' code, and to slow implementations."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.blocks.convolutions import Conv, SeparableConv
from models.blocks.csp_next import ChannelAttention, CSPNeXt, NextBottleneck
from models.blocks.normalization import Normalize
from models.blocks.resizing import SPP
from models.weights.rtmdet import PARTS

FIXTURES = Path(__file__).parents[4] / "shared" / "fixtures" / "rtmdet"
BLOCKS = {
    "conv_3x3_stride2": lambda: Conv(6, 10, 3, 2),
    "depthwise_separable_5x5": lambda: SeparableConv(8, 12, 5),
    "channel_attention": lambda: ChannelAttention(8),
    "cspnext_block_add": lambda: NextBottleneck(12, 12, True, 1, 1.0),
    "cspnext_block_no_add": lambda: NextBottleneck(12, 12, False, 1, 1.0),
    "csp_layer_attention_add_2": lambda: CSPNeXt(16, 16, True, True, repeats=2),
    "csp_layer_attention_no_add_1": lambda: CSPNeXt(16, 16, False, True),
    "csp_layer_neck_2": lambda: CSPNeXt(24, 12, False, repeats=2),
    "spp_bottleneck": lambda: SPP(16, 16),
}


def our_names(values: np.lib.npyio.NpzFile, prefix: str) -> dict[str, Tensor]:
    """Return the tensors below `prefix` under our names."""
    renamed = {}
    for key in values.files:
        if not key.startswith(prefix):
            continue
        parts = key.removeprefix(prefix).split(".")
        # `conv` of a block's 3x3 convolution and of ours have the same name
        name = ".".join(PARTS.get(part, part) for part in parts)
        renamed[name] = torch.from_numpy(values[key])
    return renamed


def assert_equal_to_rounding(given: Tensor, expected: Tensor) -> None:
    """Values differ by at most 1e-5 of themselves and 1e-6 of the largest one, which is up to 1000:
    the authors' own values are as far from those in float64.
    """
    largest = expected.abs().max().item()
    torch.testing.assert_close(given, expected, rtol=1e-5, atol=1e-6 * max(largest, 1))


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="../shared/fixtures/rtmdet is missing")
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_equal_those_of_the_authors(name):
    values = np.load(FIXTURES / "blocks.npz")
    block = BLOCKS[name]()
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-5
            module.momentum = 0.1
    block.load_state_dict(our_names(values, f"{name}/state/"))

    images = torch.from_numpy(values[f"{name}/input"])
    expected = torch.from_numpy(values[f"{name}/output"])
    assert_equal_to_rounding(block.eval()(images), expected)

    # In training: the output, the gradient of the mean of its squares, and the running statistics.
    images.requires_grad_()
    output = block.train()(images)
    output.square().mean().backward()
    expected = torch.from_numpy(values[f"{name}/train_output"])
    assert_equal_to_rounding(output.detach(), expected)
    expected = torch.from_numpy(values[f"{name}/train_grad_input"])
    largest = expected.abs().max().item()
    torch.testing.assert_close(images.grad, expected, rtol=1e-4, atol=1e-5 * largest)
    state = block.state_dict()
    for key, statistic in our_names(values, f"{name}/state_after_train/").items():
        assert_equal_to_rounding(state[key], statistic)


def test_channel_attention_by_hand():
    # Means 2 and -1. The weights swap the channels, the biases are 1 and -4: the gates are
    # hardsigmoid(-1 + 1) = 0 / 6 + 1 / 2 = 0.5 and hardsigmoid(2 - 4) = -2 / 6 + 1 / 2 = 1 / 6.
    attention = ChannelAttention(2)
    with torch.no_grad():
        attention.fc.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]])[..., None, None])
        attention.fc.bias.copy_(torch.tensor([1.0, -4.0]))
    x = torch.tensor([[1.0, 3.0], [0.0, -2.0]]).view(1, 2, 1, 2)
    expected = torch.tensor([[0.5, 1.5], [0.0, -2 / 6]]).view(1, 2, 1, 2)
    torch.testing.assert_close(attention(x), expected)


def test_normalize_by_hand():
    # (0.5 - 0.25) / 0.5 = 0.5; (0 - 1) / 2 = -0.5
    layer = Normalize(2, [0.25, 1.0], [0.5, 2.0])
    x = torch.tensor([0.5, 0.0]).view(1, 2, 1, 1)
    assert layer(x).flatten().tolist() == [0.5, -0.5]
    assert not layer.state_dict()


def test_padding_after_normalize_stands_for_the_mean_color():
    # An image of the mean color, and one that is larger by a border of it, give the same maps.
    torch.manual_seed(0)
    mean = [0.4, 0.5, 0.6]
    layers = nn.Sequential(Normalize(3, mean, [0.2, 0.3, 0.4]), nn.Conv2d(3, 4, 3, padding=1))
    image = torch.rand(1, 3, 6, 6)
    larger = torch.tensor(mean).view(1, 3, 1, 1).repeat(1, 1, 8, 8)
    larger[..., 1:-1, 1:-1] = image
    torch.testing.assert_close(layers(image), layers(larger)[..., 1:-1, 1:-1])


@pytest.mark.parametrize(
    ("mean", "deviation", "reason"),
    [
        ([0.5], [1.0, 1.0, 1.0], "need 3 numbers each"),
        ([0.5, 0.5, 0.5], [1.0, 1.0], "need 3 numbers each"),
        ([0.5, 0.5, 0.5], [1.0, 0.0, 1.0], "must be above 0"),
    ],
)
def test_wrong_normalization_is_refused(mean, deviation, reason):
    with pytest.raises(ValueError, match=reason):
        Normalize(3, mean, deviation)
