"""Projections of a model's maps to those of a teacher: computed in training only, and removed."""

import copy
from typing import Any

import pytest
import torch

from models import Detector, build_model
from models.build import check_shapes
from models.detector import count_parameters
from models.heads import WithAuxiliary, WithProjections
from models.heads.projections import is_projection, without_projections
from models.tables.resolve import resolve
from models.tables.rows import without_auxiliary
from tests.models.test_auxiliary import same_bits, table_of
from utils.nested import tensors_in

CHANNELS = [0, 24]  # the second level only


def both(table: dict[str, Any]) -> tuple[Detector, Detector]:
    """A model with projections, and one without them and with the same weights."""
    torch.manual_seed(0)
    plain = build_model(table, 3)
    torch.manual_seed(0)
    model = build_model(table | {"distillation": {"channels": CHANNELS}}, 3)
    assert all(value.equal(model.state_dict()[key]) for key, value in plain.state_dict().items())
    return model, plain


@pytest.fixture(params=["auxiliary", "alone"])
def pair(request: pytest.FixtureRequest) -> tuple[Detector, Detector]:
    table = table_of()
    return both(table if request.param == "auxiliary" else without_auxiliary(table))


def test_training_also_returns_the_projected_maps(pair):
    model, plain = pair
    images = torch.rand(2, 3, 64, 64)
    raw = model.train()(images)
    assert isinstance(raw, WithProjections)
    expected = plain.train()(images)
    assert isinstance(raw.raw, WithAuxiliary) == isinstance(expected, WithAuxiliary)
    assert same_bits(raw.raw, expected)
    (projected,) = raw.projections
    _, maps = plain.forward_with_maps(images)
    assert [each.shape for each in maps] == [(2, 8, 16, 16), (2, 16, 8, 8)]
    weight = model.projections.convs[0].weight[:, :, 0, 0]
    by_hand = torch.einsum("oc,bchw->bohw", weight, maps[1])
    torch.testing.assert_close(projected, by_hand)

    model.recompute = True
    assert same_bits(model(images), raw)


def test_use_knows_no_projections(pair):
    model, plain = pair
    images = torch.rand(1, 3, 64, 64)
    expected = plain.eval()(images)
    assert same_bits(model.eval()(images), expected)
    assert same_bits(model.forward_with_maps(images)[0], expected)
    assert count_parameters(model) == count_parameters(plain) + 16 * 24

    table, state = without_projections(model.table, model.state_dict())
    assert table == plain.table
    assert state.keys() == plain.state_dict().keys()
    removed = {name for name in model.state_dict() if is_projection(name)}
    assert model.state_dict().keys() - removed == state.keys()
    table, state = without_projections(plain.table, plain.state_dict())
    assert (table, state.keys()) == (plain.table, plain.state_dict().keys())

    fused = copy.deepcopy(model).fuse().fuse()
    assert fused.state_dict().keys() == copy.deepcopy(plain).fuse().state_dict().keys()
    assert fused.table == without_auxiliary(plain.table)
    assert same_bits(fused(images), copy.deepcopy(plain).fuse()(images))
    assert len(list(tensors_in(fused.forward_with_maps(images)))) == 4

    again = Detector(model.table)
    again.load_state_dict(model.state_dict())
    assert again.table == model.table


def test_model_gets_projections_later():
    _, plain = both(table_of())
    plain.add_projections(CHANNELS)
    assert plain.table["distillation"] == {"channels": CHANNELS}
    (projected,) = plain.train()(torch.rand(2, 3, 64, 64)).projections
    assert projected.shape == (2, 24, 8, 8)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"channels": [8]}, "`distillation` has 1 channels, but the head has 2 levels"),
        ({"channels": [0, 0]}, "must be {channels: .*not all 0, got"),
        ({"channels": [8, -1]}, "must be {channels"),
        ({"channels": [8, 2_000_000]}, "up to 1,000,000"),
        ({"channels": "8"}, "must be {channels"),
        ({"channel": [8, 8]}, "must be {channels"),
        ([8, 8], "must be {channels"),
    ],
)
def test_wrong_channels_are_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        check_shapes(resolve(table_of() | {"distillation": given}, None, 3))
