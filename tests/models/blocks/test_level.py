"""Rows with several outputs, which only Level rows read: maps, strides, errors, freed maps, and
training that recomputes.
"""

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from models import build_model
from models.blocks import LAYERS, Layer
from models.blocks.convolutions import Conv
from models.blocks.level import Level
from models.detector import Detector, last_uses


class Pyramid(Layer):
    """The maps of strides 2 and 4, from two convolutions."""

    scales_width = False
    multi_output = True
    out_channels: Any
    reduction: Any

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.out_channels = (8, 16)
        self.reduction = (Fraction(2), Fraction(4))
        self.first = Conv(in_channels, 8, 3, 2)
        self.second = Conv(8, 16, 3, 2)

    def forward(self, x: Tensor) -> list[Tensor]:
        first = self.first(x)
        return [first, self.second(first)]


@pytest.fixture(autouse=True)
def _layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYERS, "Pyramid", Pyramid)
    monkeypatch.setitem(LAYERS, "Level", Level)


def table(*rows: Sequence[Any], head: Sequence[Any] = (2, 3)) -> dict[str, Any]:
    """A table of a convolution of stride 2, these rows, and a head."""
    return {
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "backbone": [[-1, 1, "Conv", [8, 3, 2]], *rows],
        "head": [[list(head), 1, "DecoupledDetect", ["nc"]]],
    }


BOTH = ([-1, 1, "Pyramid", []], [1, 1, "Level", [0]], [1, 1, "Level", [1]])


@pytest.fixture
def model() -> Detector:
    torch.manual_seed(0)
    return build_model(table(*BOTH), 3)


def test_outputs_have_the_strides_of_their_rows(model):
    assert model.strides == (4, 8)
    assert [line.args for line in model.info()][2:4] == [[(8, 16), 0], [(8, 16), 1]]


def test_level_is_the_output_of_its_index(model):
    """The same as the layers called by hand."""
    images = torch.rand(2, 3, 32, 32)
    first = model.layers[1].first(model.layers[0](images))
    maps = [first, model.layers[1].second(first)]
    for raw, expected in zip(model(images), model.layers[4](maps), strict=True):
        assert raw.equal(expected)


def test_a_row_may_lie_on_another_stride_than_its_neighbors():
    """A Level of stride 4 after other rows, enlarged to the stride 2 of the convolution."""
    rows = (*BOTH, [2, 1, "nn.Upsample", [None, 2, "nearest"]], [[-1, 0], 1, "Concat", [1]])
    assert build_model(table(*rows, head=(5, 3)), 3).strides == (2, 8)


def test_list_of_maps_is_freed_after_its_last_level(model):
    freed = last_uses(model.rows)
    assert [position for position, rows in enumerate(freed) if 1 in rows] == [3]


def test_empty_batch(model):
    assert [tuple(raw.shape[:2]) for raw in model(torch.rand(0, 3, 32, 32))] == [(0, 8), (0, 4)]


def test_recomputed_training_is_bit_identical(model):
    recomputes = copy.deepcopy(model)
    recomputes.recompute = True
    images = torch.rand(2, 3, 32, 32)
    for each in (model, recomputes):
        sum(raw.square().mean() for raw in each.train()(images)).backward()
    for one, other in zip(model.parameters(), recomputes.parameters(), strict=True):
        assert one.grad is not None
        assert one.grad.equal(other.grad)
    for one, other in zip(model.buffers(), recomputes.buffers(), strict=True):
        assert one.equal(other)
    assert recomputes._recomputable == {0, 1}  # a Level has nothing to compute


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (
            [[-1, 1, "Pyramid", []], [-1, 1, "Conv", [8]]],
            (0, 2),
            r"row 2 \[-1, 1, Conv, \[8\]\]: row 1 has 2 outputs: read one of them by a row "
            r"\[1, 1, Level, \[index\]\], index 0 to 1",
        ),
        (
            [[-1, 1, "Pyramid", []], [[0, 1], 1, "Concat", [1]]],
            (0, 2),
            r"row 2 \[\[0, 1\], 1, Concat, \[1\]\]: row 1 has 2 outputs",
        ),
        ([[-1, 1, "Pyramid", []]], (0, 1), r"row 2 .*DecoupledDetect.*: row 1 has 2 outputs"),
        (
            [[-1, 1, "Pyramid", []], [-1, 1, "Level", [2]]],
            (0, 2),
            r"row 2 .*: output 2: the row has the outputs 0 to 1",
        ),
        ([[-1, 1, "Pyramid", []], [-1, 1, "Level", [-1]]], (0, 2), "output -1: the row has"),
        (
            [[-1, 1, "Pyramid", []], [-1, 1, "Level", [0]]],
            (0, 2),
            r"row 1 \[-1, 1, Pyramid, \[\]\]: no Level row reads its last output, 1",
        ),
        ([[-1, 1, "Pyramid", []], [-1, 1, "Level", ["0"]]], (0, 2), "index is '0', but must be"),
        (
            [[-1, 1, "Level", [0]]],
            (0, 1),
            r"row 1 .*: Level reads a row with several outputs, but row 0 has one output",
        ),
        ([[-1, 3, "Pyramid", []]], (0, 0), r"row 1 .*: Pyramid cannot be repeated"),
        (
            [[-1, 1, "Pyramid", []], [-1, 2, "Level", [0]]],
            (0, 2),
            r"row 2 .*: Level cannot be repeated",
        ),
        (
            [[-1, 1, "Pyramid", []], [[1, 1], 1, "Level", [0]]],
            (0, 2),
            "Level takes one input, got 2",
        ),
    ],
)
def test_tables_that_read_outputs_wrongly_are_rejected(rows, head, message):
    with pytest.raises(ValueError, match=message):
        build_model(table(*rows, head=head), 3)


def test_images_are_no_row_with_outputs():
    wrong = table(head=(0,))
    wrong["backbone"][0] = [-1, 1, "Level", [0]]
    with pytest.raises(ValueError, match="but the images are one map"):
        build_model(wrong, 3)
