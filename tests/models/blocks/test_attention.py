"""Self-attention against its formula in plain loops. Maps are [B, C, H, W]."""

import math

import pytest
import torch
from torch import Tensor, nn

from models.blocks.attention import Attention, AttentionBlock
from tests.models.blocks.test_blocks import randomize_statistics


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def random_map(channels: int, *, images: int = 2, height: int = 3, width: int = 4) -> Tensor:
    return torch.randn(images, channels, height, width)


def prepared(block: nn.Module) -> nn.Module:
    randomize_statistics(block)
    return block.eval()


def slow_attention(layer: Attention, x: Tensor, heads: int) -> Tensor:
    """Compute softmax(q k / sqrt(channels of k)) v for each image, head and cell."""
    _, channels, height, width = x.shape
    of_value = channels // heads
    of_key = of_value // 2
    attended, all_values = torch.empty_like(x), torch.empty_like(x)
    for image, parts in enumerate(layer.qkv(x)):
        for head, part in enumerate(parts.chunk(heads)):
            queries, keys, values = part[:of_key], part[of_key : 2 * of_key], part[2 * of_key :]
            place = slice(head * of_value, (head + 1) * of_value)
            all_values[image, place] = values
            for row in range(height):
                for column in range(width):
                    likeness = (keys * queries[:, row, column, None, None]).sum(0) / math.sqrt(
                        of_key
                    )
                    shares = likeness.exp() / likeness.exp().sum()
                    attended[image, place, row, column] = (values * shares).sum((1, 2))
    return layer.proj(attended + layer.pe(all_values))


@pytest.mark.parametrize(("channels", "heads"), [(64, 1), (128, 2), (192, 3), (96, 1)])
def test_attention_equals_slow_loops(channels, heads):
    layer, x = prepared(Attention(channels)), random_map(channels)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), slow_attention(layer, x, heads), rtol=1e-4, atol=1e-5)


def test_attention_block_adds_both_inputs():
    block, x = prepared(AttentionBlock(64)), random_map(64)
    with torch.no_grad():
        middle = x + block.attn(x)
        hidden = block.ffn[0](middle)
        torch.testing.assert_close(block(x), middle + block.ffn[1].bn(block.ffn[1].conv(hidden)))
    assert hidden.shape[1] == 128


def test_only_the_first_convolution_of_the_ffn_has_an_activation():
    block = AttentionBlock(64)
    convolutions = (block.attn.qkv, block.attn.proj, block.attn.pe, *block.ffn)
    assert [isinstance(conv.act, nn.SiLU) for conv in convolutions] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_every_cell_attends_to_every_other():
    block, x = prepared(Attention(64)), random_map(64, images=1, height=5, width=5).requires_grad_()
    (gradient,) = torch.autograd.grad(block(x)[0, :, 0, 0].sum(), x)
    assert gradient[0].abs().sum(0).min() > 0


def test_images_do_not_attend_to_each_other():
    block, x = prepared(AttentionBlock(64)), random_map(64, images=3)
    with torch.no_grad():
        torch.testing.assert_close(block(x), torch.cat([block(image[None]) for image in x]))


def test_without_the_position_encoding_cells_may_be_permuted():
    layer, x = prepared(Attention(64)), random_map(64)
    nn.init.zeros_(layer.pe.conv.weight)
    order = torch.randperm(12)
    permuted = x.flatten(2)[..., order].view_as(x)
    with torch.no_grad():
        expected = layer(x).flatten(2)[..., order].view_as(x)
        torch.testing.assert_close(layer(permuted), expected)
        nn.init.normal_(layer.pe.conv.weight)
        assert not torch.allclose(
            layer(permuted), layer(x).flatten(2)[..., order].view_as(x), atol=1e-2
        )


def test_parameter_count_by_hand():
    # 64 channels, one head: keys and queries 32 each, values 64. BatchNorm has two parameters per
    # channel.
    qkv, proj, pe = 64 * 128 + 2 * 128, 64 * 64 + 2 * 64, 64 * 9 + 2 * 64
    ffn = 64 * 128 + 2 * 128 + 128 * 64 + 2 * 64
    assert (
        sum(parameter.numel() for parameter in AttentionBlock(64).parameters())
        == qkv + proj + pe + ffn
    )


@pytest.mark.parametrize("shape", [(0, 64, 3, 4), (1, 64, 1, 1)])
def test_attention_accepts_empty_batches_and_single_cells(shape):
    assert prepared(AttentionBlock(64))(torch.randn(shape)).shape == shape


@pytest.mark.parametrize("channels", [0, 32, 63, 193])
def test_wrong_numbers_of_channels_are_refused(channels):
    with pytest.raises(
        ValueError, match=f"self-attention needs 64 channels per head, got {channels} channels"
    ):
        AttentionBlock(channels)
