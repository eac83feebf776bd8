"""Frozen layers."""

import pytest
import torch
from torch import nn

from models import build_model
from models.detector import Detector
from models.weights.transfer import with_added_classes
from training.freezing import freeze, set_training


@pytest.fixture
def model(tiny_model: str) -> Detector:
    return build_model(tiny_model, 3).eval()


@pytest.mark.parametrize(
    ("layers", "chosen"), [([3], [0, 1, 2]), ([0, 2], [0, 2]), ([0], []), ([], []), ([5, 5], [5])]
)
def test_one_number_freezes_first_layers_and_several_freeze_those(model, layers, chosen):
    frozen = freeze(model, layers)
    assert {id(layer) for layer in frozen} == {id(model.layers[i]) for i in chosen}
    for number, layer in enumerate(model.layers):
        assert all(
            parameter.requires_grad == (number not in chosen) for parameter in layer.parameters()
        )


def test_frozen_layers_keep_their_statistics(model):
    set_training(model, freeze(model, [1, 3]))
    norms = {n: m.training for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert {name.split(".")[1] for name, training in norms.items() if not training} == {"1", "3"}
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(torch.rand(2, 3, 64, 64))
    changed = {
        name.split(".")[1] for name, value in model.named_buffers() if not value.equal(before[name])
    }
    assert "0" in changed
    assert not changed & {"1", "3"}


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([26], r"--freeze 26: the model has layers 0 to 24"),
        ([0, 25], r"--freeze 0 25: the model has layers 0 to 24"),
        ([25], r"--freeze 25: no parameter is left to train"),
    ],
)
def test_freeze_rejects_invalid_layers(model, layers, text):
    with pytest.raises(ValueError, match=text):
        freeze(model, layers)


@pytest.mark.slow
def test_what_only_training_computes_is_nothing_to_train(model):
    """Projections to the maps of a teacher, and an auxiliary branch."""
    model.add_projections([8, 8, 8])
    with pytest.raises(ValueError, match="--freeze 25: no parameter is left to train"):
        freeze(model, [25])

    with torch.device("meta"):
        with_branch = build_model("yolov9t.yaml", 3)
    assert with_branch.auxiliary_layers
    up_to_head = with_branch.head_position + 1
    with pytest.raises(ValueError, match="no parameter is left to train"):
        freeze(with_branch, [up_to_head])


def test_all_but_the_newest_head_is_frozen(model):
    """Whatever --freeze says, which --add-classes refuses."""
    extended = with_added_classes(model, 1)
    set_training(extended, freeze(extended, [0]))
    training = {name for name, module in extended.named_modules() if module.training}
    head = f"layers.{extended.head_position}"
    newest = (f"{head}.parts.1", f"{head}.adapters.0")
    assert training - {name for name in training if name.startswith(newest)} == {
        "",
        "layers",
        head,
        f"{head}.parts",
        f"{head}.adapters",
    }
    trained = {name for name, value in extended.named_parameters() if value.requires_grad}
    assert trained == {name for name, _ in extended.named_parameters() if name.startswith(newest)}
