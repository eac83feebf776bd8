"""BatchNorm's momentum in runs of different length."""

from pathlib import Path

import pytest
import torch
from torch import nn

from models import Detector, build_model
from models.blocks import Backbone
from training import build_train_state
from training.averages.batch_norm import follow_short_run
from training.freezing import freeze, set_training
from training.global_batch import GlobalBatch
from training.schedule import Schedule
from utils.distributed.world import World

BACKBONE = Path(__file__).parents[2] / "tables" / "backbone.yaml"


def state_of(model: Detector, batches: int, *, sync_bn: bool = False) -> None:
    """Build the training state of a run of so many batches, which changes `model`."""
    build_train_state(
        model.train(),
        World(torch.device("cpu")),
        GlobalBatch(2),
        Schedule(batches, epochs=1, batch_size=2),
        precision=torch.float32,
        optimizer="SGD",
        weight_decay=0.0,
        loss_terms=["box"],
        sync_bn=sync_bn,
        say=lambda _: None,
    )


def momenta(module: nn.Module) -> set[float]:
    return {layer.momentum for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)}


@pytest.mark.parametrize(
    ("batches", "momentum"),
    [
        (0, 1 / 3),
        (75, 1 / 3),
        (300, 1 / 3),
        (500, 0.2),  # 1 / (500 / 100)
        (2000, 0.05),
        (3333, 1 / 33.33),
        (3334, 0.03),  # 1 / 33.34 is below the layer's own
        (100_000, 0.03),
    ],
)
def test_momentum_averages_over_a_hundredth_of_a_short_run(batches, momentum):
    layer = nn.BatchNorm2d(3, momentum=0.03)
    follow_short_run(layer, batches)
    assert layer.momentum == pytest.approx(momentum)


def test_layer_without_momentum_and_model_without_a_layer_are_left():
    layer = nn.BatchNorm2d(3, momentum=None)
    follow_short_run(layer, 10)
    follow_short_run(nn.Conv2d(3, 3, 1), 10)
    assert layer.momentum is None


@pytest.mark.parametrize("sync_bn", [False, True])
def test_run_sets_the_momentum_of_its_model_and_leaves_its_table(micro_model, sync_bn):
    model = build_model(micro_model, 3)
    own = momenta(model)
    table = dict(model.table)
    state_of(model, 500, sync_bn=sync_bn)
    assert own == {0.03}
    assert momenta(model) == {0.2}
    assert model.table == table  # so checkpoints have the family's momentum

    model = build_model(micro_model, 3)
    state_of(model, 5000, sync_bn=sync_bn)
    assert momenta(model) == own


@pytest.mark.slow
def test_backbone_of_another_library_follows_too():
    model = build_model(str(BACKBONE), 3)
    backbone = next(layer for layer in model.layers if isinstance(layer, Backbone))
    assert momenta(backbone) == {0.01}
    state_of(model, 500)
    assert momenta(model) == {0.2}


def test_frozen_layers_keep_their_statistics(micro_model):
    """They are in eval mode, in which a momentum has no effect."""
    model = build_model(micro_model, 3)
    frozen = freeze(model, [1])
    state_of(model, 10)
    set_training(model, frozen)
    layers = [module for module in frozen[0].modules() if isinstance(module, nn.BatchNorm2d)]
    before = [layer.running_mean.clone() for layer in layers]
    model(torch.rand(2, 3, 64, 64))
    assert layers
    for layer, mean in zip(layers, before, strict=True):
        assert torch.equal(layer.running_mean, mean)


def test_statistics_forget_those_of_the_first_weights():
    """A layer whose input is 1 at first and then 3 has the mean 3 after a few batches."""
    layer = nn.BatchNorm1d(1, momentum=0.03)
    follow_short_run(layer, 60)
    for value in [1.0] * 30 + [3.0] * 15:
        layer(torch.full((4, 1), value))
    # two thirds of the distance are left after each batch: 2 * (2 / 3)**15 = 0.005
    assert layer.running_mean.item() == pytest.approx(3, abs=0.01)
