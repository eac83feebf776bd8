"""Cross-stage blocks against published counts and explicit formulas. Maps are [B, C, H, W]."""

import pytest
import torch
from torch import Tensor, nn

from models.blocks.convolutions import Conv, LinearConv
from models.blocks.cross_stage import C2PSA, Bottleneck, C2f, C3k, C3k2, WideBottleneck
from models.blocks.resizing import SPPF
from tests.models.blocks.test_blocks import randomize_statistics
from tests.models.test_published_models import measured

# Parameters of the rows that have any: the backbone's and the neck's.
BACKBONE = {
    "yolov8n": "464 4672 7360 18560 49664 73984 197632 295424 460288 164608",
    "yolov8s": "928 18560 29056 73984 197632 295424 788480 1180672 1838080 656896",
    "yolov8m": "1392 41664 111360 166272 813312 664320 3248640 1991808 3985920 831168",
    "yolov8l": "1856 73984 279808 295424 2101248 1180672 8396800 2360320 4461568 656896",
    "yolo11n": "464 4672 6640 36992 26080 147712 87040 295424 346112 164608 249728",
    "yolo11s": "928 18560 26080 147712 103360 590336 346112 1180672 1380352 656896 990976",
    "yolo11m": "1856 73984 111872 590336 444928 2360320 1380352 2360320 1380352 656896 990976",
    "yolo11l": "1856 73984 173824 590336 691712 2360320 2234368 2360320 2234368 656896 1455616",
}
BACKBONE |= {f"yolo26{scale}": BACKBONE[f"yolo11{scale}"] for scale in "nsm"}
NECK = {
    "yolov8n": "148224 37248 36992 123648 147712 493056",
    "yolov8s": "591360 148224 147712 493056 590336 1969152",
    "yolov8m": "1993728 517632 332160 1846272 1327872 4207104",
    "yolov8l": "4723712 1247744 590336 4592640 2360320 4723712",
    "yolo11n": "111296 32096 36992 86720 147712 378880",
    "yolo11s": "443776 127680 147712 345472 590336 1511424",
    "yolo11m": "1642496 542720 590336 1511424 2360320 1642496",
    "yolo11l": "2496512 756736 590336 2365440 2360320 2496512",
    "yolo26n": "119808 34304 36992 95232 147712 463104",
    "yolo26s": "477184 136192 147712 378880 590336 1843712",
    "yolo26m": "1642496 542720 590336 1511424 2360320 1974784",
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def prepared(block: nn.Module) -> nn.Module:
    randomize_statistics(block)
    return block.eval()


def random_map(channels: int) -> Tensor:
    return torch.randn(2, channels, 5, 6)


def assert_equal(block: nn.Module, x: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(block(x), expected, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- published counts


@pytest.mark.parametrize("name", BACKBONE)
def test_parameter_counts_per_row_equal_published_values(name):
    counts = measured(name).per_row[:-1]
    assert [count for count in counts if count] == [
        int(n) for n in f"{BACKBONE[name]} {NECK[name]}".split()
    ]


# ---------------------------------------------------------------------- shortcuts


@pytest.mark.parametrize("kind", [Bottleneck, WideBottleneck])
@pytest.mark.parametrize(
    ("channels", "shortcut", "added"), [(4, True, True), (4, False, False), (6, True, False)]
)
def test_bottleneck_adds_its_input_if_wanted_and_possible(kind, channels, shortcut, added):
    block, x = prepared(kind(4, channels, shortcut)), random_map(4)
    plain = block.cv2(block.cv1(x))
    assert_equal(block, x, x + plain if added else plain)
    assert block.add == added


def test_wide_bottleneck_has_two_3x3_convolutions():
    block = WideBottleneck(8, 8, True, 2)
    assert [conv.conv.kernel_size for conv in (block.cv1, block.cv2)] == [(3, 3), (3, 3)]
    assert [conv.conv.groups for conv in (block.cv1, block.cv2)] == [1, 2]
    assert block.cv1.out_channels == 4


@pytest.mark.parametrize(
    ("block", "shortcut"),
    [
        (C2f(8, 8, repeats=2), False),
        (C2f(8, 8, True, repeats=2), True),
        (C3k(8, 8, repeats=2), True),
        (C3k(8, 8, False, repeats=2), False),
        (C3k2(8, 8, repeats=2), True),
        (C3k2(8, 8, True, repeats=2), True),
        (C3k2(64, 128, attention=True), True),
    ],
    ids=["C2f", "C2f True", "C3k", "C3k False", "C3k2", "C3k2 nested", "C3k2 attention"],
)
def test_shortcuts_inside_blocks(block, shortcut):
    inside = [part for part in block.modules() if isinstance(part, WideBottleneck)]
    assert inside
    assert all(part.add == shortcut for part in inside)


# ---------------------------------------------------------------------- the blocks


def test_c2f_joins_both_halves_and_the_output_of_each_bottleneck():
    block, x = prepared(C2f(6, 8, True, repeats=2)), random_map(6)
    first, second = block.cv1(x).chunk(2, 1)
    third = second + block.m[0].cv2(block.m[0].cv1(second))
    fourth = third + block.m[1].cv2(block.m[1].cv1(third))
    assert [part.shape[1] for part in (first, second, third, fourth)] == [4] * 4
    assert_equal(block, x, block.cv2(torch.cat([first, second, third, fourth], 1)))


def test_c2f_bottlenecks_do_not_narrow():
    block = C2f(8, 16, False, 2, 0.25, repeats=1)  # two groups, and a quarter of 16 channels inside
    assert (block.hidden, block.m[0].cv1.out_channels, block.m[0].cv2.conv.groups) == (4, 4, 2)


def test_c3k_is_c3_with_wide_bottlenecks():
    block, x = prepared(C3k(8, 8, repeats=2)), random_map(8)
    first = block.cv1(x)
    for part in block.m:
        first = first + part.cv2(part.cv1(first))
    assert [(part.cv1.out_channels, part.cv1.conv.kernel_size) for part in block.m] == [
        (4, (3, 3))
    ] * 2
    assert_equal(block, x, block.cv3(torch.cat([first, block.cv2(x)], 1)))


@pytest.mark.parametrize("nested", [False, True])
def test_c3k2_is_c2f_with_other_blocks(nested):
    block, x = prepared(C3k2(6, 16, nested, repeats=2)), random_map(6)
    maps = list(block.cv1(x).chunk(2, 1))
    for part in block.m:
        maps.append(part(maps[-1]))
    assert_equal(block, x, block.cv2(torch.cat(maps, 1)))
    if nested:
        assert [(type(part), len(part.m), part.cv1.out_channels) for part in block.m] == [
            (C3k, 2, 4)
        ] * 2
    else:
        assert [(type(part), part.cv1.out_channels) for part in block.m] == [
            (WideBottleneck, 4)
        ] * 2


def test_c3k2_with_attention_has_pairs_of_bottleneck_and_attention():
    block, x = prepared(C3k2(16, 128, True, 0.5, True, repeats=1)), random_map(16)
    first, second = block.cv1(x).chunk(2, 1)
    bottleneck, attention = block.m[0]
    assert type(bottleneck) is WideBottleneck
    assert_equal(block, x, block.cv2(torch.cat([first, second, attention(bottleneck(second))], 1)))


def test_c2psa_attends_with_the_second_half():
    block, x = prepared(C2PSA(16, 128, repeats=2)), random_map(16)
    passed, attended = block.cv1(x).chunk(2, 1)
    assert_equal(block, x, block.cv2(torch.cat([passed, block.m[1](block.m[0](attended))], 1)))


@pytest.mark.parametrize(("channels", "added"), [(8, True), (12, False)])
def test_sppf_with_shortcut(channels, added):
    block, x = prepared(SPPF(8, channels, 5, 3, True)), random_map(8)
    maps = [block.cv1.bn(block.cv1.conv(x))]  # without an activation
    for kernel in (5, 9, 13):
        maps.append(nn.functional.max_pool2d(maps[0], kernel, 1, kernel // 2))
    plain = block.cv2(torch.cat(maps, 1))
    assert_equal(block, x, x + plain if added else plain)


def test_sppf_repeats_its_pool():
    block, x = prepared(SPPF(8, 8, 3, 2)), random_map(8)
    first = block.cv1(x)
    maps = [first, *(nn.functional.max_pool2d(first, kernel, 1, kernel // 2) for kernel in (3, 5))]
    assert_equal(block, x, block.cv2(torch.cat(maps, 1)))


def test_linear_conv_is_conv_without_activation():
    conv, x = prepared(LinearConv(4, 8, 3, groups=2)), random_map(4)
    expected = conv.bn(conv.conv(x))
    assert (expected < -1).any()
    assert_equal(conv, x, expected)
    conv.fuse()
    assert isinstance(conv, Conv)
    assert isinstance(conv.bn, nn.Identity)
    assert_equal(conv, x, expected)


BLOCKS = [
    C2f(4, 8),
    C3k(4, 8),
    C3k2(4, 8),
    C3k2(4, 8, True),
    C2PSA(4, 128),
    SPPF(4, 8, 5, 3, True),
    LinearConv(4, 8),
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: type(block).__name__)
def test_cross_stage_blocks_accept_empty_batch(block):
    assert block.eval()(torch.empty(0, 4, 8, 8)).shape == (0, block.out_channels, 8, 8)
    assert block.reduction == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: C2f(4, 1),
        lambda: C2f(4, 8, expansion=0.1),
        lambda: C3k2(4, 8, expansion=0.01),
        lambda: C3k2(4, 2),  # one channel inside, and half of it in the bottleneck
        lambda: SPPF(1, 4),
    ],
)
def test_blocks_too_narrow_for_a_channel_inside_are_refused(build):
    with pytest.raises(ValueError, match="a convolution needs 1 or more output channels, got 0"):
        build()


@pytest.mark.parametrize(
    ("build", "channels"), [(lambda: C2PSA(8, 64), 32), (lambda: C3k2(8, 96, attention=True), 48)]
)
def test_blocks_too_narrow_for_attention_are_refused(build, channels):
    with pytest.raises(
        ValueError, match=f"self-attention needs 64 channels per head, got {channels} channels"
    ):
        build()
