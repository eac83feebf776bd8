"""The grouped distance head: widths, groups, initial values, and the parts of the classes."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

from models.detector import count_parameters
from models.heads import GroupedDistanceHead

STRIDES = [Fraction(8), Fraction(16), Fraction(32)]


def make_head(channels: tuple[int, ...], classes: int, *args: Any) -> GroupedDistanceHead:
    return GroupedDistanceHead(list(channels), classes, *args, strides=STRIDES[: len(channels)])


def widths(head: GroupedDistanceHead) -> tuple[int, int]:
    """Return the channels of the branches of the sides and of the classes."""
    branches = (head.branches.sides, head.branches.classes)
    a, c = ({branch[0].out_channels for branch in each} for each in branches)
    return a.pop(), c.pop()


@pytest.mark.parametrize(
    ("channels", "classes", "expected"),
    [
        ((64, 96, 128), 80, (64, 128)),  # t
        ((64, 96, 128), 50, (64, 100)),
        ((64, 96, 128), 32, (64, 64)),
        ((240, 360, 480), 80, (64, 240)),  # m: 240 / 4 = 60 is less than 4 * 16
        ((512, 512, 512), 80, (128, 512)),  # the auxiliary head of c
        ((264, 264, 264), 80, (68, 264)),  # 264 / 4 = 66, rounded up to a multiple of 4
    ],
)
def test_widths(channels, classes, expected):
    with torch.device("meta"):
        assert widths(make_head(channels, classes)) == expected


def test_class_channels_can_be_chosen():
    with torch.device("meta"):
        assert widths(make_head((64, 96, 128), 80, 16, 80)) == (64, 80)
        assert widths(make_head((64, 96, 128), 3, 16, 128)) == (64, 128)


def test_parameters_of_published_heads():
    with torch.device("meta"):
        assert count_parameters(make_head((64, 96, 128), 80)) == 1_004_256
        assert count_parameters(make_head((512, 512, 512), 80)) == 16_173_024


def test_each_side_sees_a_quarter_of_the_channels():
    torch.manual_seed(0)
    head = make_head((8, 8), 2, 4).eval()
    sides = head.branches.sides[0]
    x = torch.randn(1, 8, 4, 4)
    inner = sides[0](x)
    before = sides[2](sides[1](inner)).unflatten(1, (4, 4))  # side, bin
    for side in range(4):
        other = inner.clone()
        other[:, 4 * side : 4 * side + 4] += 1
        after = sides[2](sides[1](other)).unflatten(1, (4, 4))
        changed = [not torch.equal(before[:, k], after[:, k]) for k in range(4)]
        assert changed == [k == side for k in range(4)]


def test_initial_values():
    head = make_head((8, 8), 3)
    for sides, classes in zip(head.branches.sides, head.branches.classes, strict=True):
        assert set(sides[2].bias.tolist()) == {1.0}
        assert set(classes[2].bias.tolist()) == {-10.0}
    assert isinstance(head.branches.sides[0][2], nn.Conv2d)


def test_class_part_of_each_tensor():
    head = make_head((8, 8), 3)
    of_classes = []
    for key, value in head.state_dict().items():
        shared, classes = head.split_classes(key, value)
        if classes is not None:
            of_classes.append(key)
            assert (len(shared), len(classes)) == (0, 3)
    assert of_classes == [
        f"branches.classes.{i}.2.{name}" for i in range(2) for name in ("weight", "bias")
    ]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="needs 2 or more bins, got 1"):
        make_head((8, 8), 3, 1)
    with pytest.raises(ValueError, match="needs 1 or more output channels, got -4"):
        make_head((8, 8), 3, 16, -4)
