"""Optimizer groups, schedules by hand, and the batches after which the optimizer steps."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from training.optimizers import OPTIMIZERS, OptimizerKind, build_optimizer, kind_of
from training.schedule import Schedule
from training.settings.config import OPTIMIZER_CHOICES, TrainConfig
from training.settings.recipe import LEARNING_RATES


class Net(nn.Module):
    """A module with every kind of parameter, and one that two modules share."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.batch = nn.BatchNorm2d(4)
        self.layer = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
        self.shared = nn.Linear(4, 4)
        self.shared.weight = self.linear.weight
        self.scale = nn.Parameter(torch.ones(4))


def build(model: nn.Module, name: str = "SGD") -> torch.optim.Optimizer:
    return build_optimizer(model, name, lr=0.1, momentum=0.9, weight_decay=5e-4)


def names_in(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        group["name"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups
    }


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_parameter_groups_and_their_weight_decay(name):
    model = Net()
    optimizer = build(model, name)
    assert names_in(optimizer, model) == {
        "bias": {"conv.bias", "batch.bias", "layer.bias", "linear.bias", "shared.bias"},
        "norm": {"batch.weight", "layer.weight", "scale"},
        "weight": {"conv.weight", "linear.weight"},
    }
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(model.parameters())
    )
    assert {g["name"]: g["weight_decay"] for g in optimizer.param_groups} == {
        "bias": 0,
        "norm": 0,
        "weight": 5e-4,
    }


def test_optimizer_classes_and_settings():
    sgd, adam, adamw = (build(Net(), name) for name in ("SGD", "Adam", "AdamW"))
    assert type(sgd) is torch.optim.SGD
    assert (type(adam), type(adamw)) == (torch.optim.Adam, torch.optim.AdamW)
    assert all(group["nesterov"] and group["momentum"] == 0.9 for group in sgd.param_groups)
    assert all(group["betas"] == (0.9, 0.999) for group in adam.param_groups + adamw.param_groups)
    assert all(group["lr"] == 0.1 for group in sgd.param_groups)


def test_frozen_parameters_are_not_optimized():
    model = Net()
    model.conv.requires_grad_(False)
    model.batch.requires_grad_(False)
    assert set().union(*names_in(build(model), model).values()) == {
        name for name, _ in model.named_parameters() if not name.startswith(("conv", "batch"))
    }
    with pytest.raises(
        ValueError, match=r"no parameter is left to train: freeze fewer layers \(--freeze\)"
    ):
        build(model.requires_grad_(False))


def test_sgd_without_momentum_is_allowed():
    optimizer = build_optimizer(Net(), "SGD", lr=0.1, momentum=0.0, weight_decay=0.0)
    assert not any(group["nesterov"] for group in optimizer.param_groups)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="--optimizer Adagrad: choose SGD, Adam, AdamW or Muon"):
        build(Net(), "Adagrad")


def test_every_declared_optimizer_can_be_chosen():
    assert set(OPTIMIZER_CHOICES) == {"auto", *OPTIMIZERS}
    assert {"SGD", *LEARNING_RATES} == set(OPTIMIZERS)
    for name, kind in OPTIMIZERS.items():
        TrainConfig(optimizer=name)
        assert type(build(Net(), name)) is kind.cls
        assert kind_of(build(Net(), name)) is kind


def test_undeclared_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"^NAdam is not declared in OPTIMIZERS$"):
        kind_of(torch.optim.NAdam(Net().parameters()))


def test_schedule_supports_optimizer_without_momentum(monkeypatch):
    """Adafactor, declared in one line: the schedule changes only its learning rate."""
    kind = OptimizerKind(
        torch.optim.Adafactor, lambda groups, lr, *_: torch.optim.Adafactor(groups, lr=lr), ""
    )
    monkeypatch.setitem(OPTIMIZERS, "Adafactor", kind)
    optimizer = build(Net(), "Adafactor")
    before = [dict(group) for group in optimizer.param_groups]
    Schedule(total_batches=1000, epochs=10, batch_size=16, warmup_epochs=0.0).apply(optimizer, 0)
    assert [group | {"lr": 0.1} for group in optimizer.param_groups] == before
    assert [group["lr"] for group in optimizer.param_groups] == [0.01] * 3


# ---------------------------------------------------------------------- learning rate and momentum


def schedule(**changes) -> Schedule:
    """1000 batches in 10 epochs; warm-up of 2 epochs, 200 batches."""
    return Schedule(
        **{
            "total_batches": 1000,
            "epochs": 10,
            "batch_size": 16,
            "lrf": 0.1,
            "warmup_epochs": 2.0,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("step", "lr", "bias_lr", "momentum"),
    [
        (0, 0.0, 0.1, 0.8),
        # Half-way through warm-up: decay (1 - 0.1) * 0.9 + 0.1 = 0.91, target 0.0091; momentum 0.8
        # + 0.137 / 2
        (100, 0.0091 / 2, 0.1 + (0.0091 - 0.1) / 2, 0.8685),
        # End of warm-up: (1 - 0.2) * 0.9 + 0.1 = 0.82
        (200, 0.0082, 0.0082, 0.937),
        (600, 0.01 * (0.4 * 0.9 + 0.1), 0.0046, 0.937),
        (1000, 0.001, 0.001, 0.937),
    ],
)
def test_linear_schedule_by_hand(step, lr, bias_lr, momentum):
    plan = schedule()
    assert plan.warmup_batches == 200
    for name in ("SGD", "Adam"):
        optimizer = build(Net(), name)
        plan.apply(optimizer, step)
        for group in optimizer.param_groups:
            assert group["lr"] == pytest.approx(bias_lr if group["name"] == "bias" else lr)
            found = group["momentum"] if name == "SGD" else group["betas"][0]
            assert found == pytest.approx(momentum)
            if name == "Adam":
                assert group["betas"][1] == 0.999


@pytest.mark.parametrize(
    ("step", "share"),
    # 1 + (1 - cos(pi x)) / 2 * (0.1 - 1): x = 0.5 gives 1 - 0.45; x = 0.25: (1 - 0.707107) / 2 =
    # 0.146447
    [(0, 1.0), (250, 1 - 0.9 * 0.1464466), (500, 0.55), (1000, 0.1)],
)
def test_cosine_schedule_by_hand(step, share):
    plan = schedule(cosine=True, warmup_epochs=0.0)
    assert plan.decay(step) == pytest.approx(share, abs=1e-7)
    assert plan.lr(step) == pytest.approx(0.01 * share)
    assert plan.lr(step, "bias") == plan.lr(step)


@pytest.mark.parametrize(
    ("changes", "warmup"),
    [
        ({}, 200),
        ({"warmup_epochs": 0.0}, 0),
        ({"warmup_epochs": 0.5}, 100),  # 50 batches, raised to 100
        ({"warmup_epochs": 9.0}, 250),  # no more than a quarter of the run
        ({"total_batches": 40}, 10),  # a quarter, since the run has fewer than 100 batches
        ({"total_batches": 3}, 0),
        ({"total_batches": 0}, 0),
    ],
)
def test_warmup_length_by_hand(changes, warmup):
    assert schedule(**changes).warmup_batches == warmup
    assert math.isfinite(schedule(**changes).lr(0))


# ---------------------------------------------------------------------- accumulation


@pytest.mark.parametrize(
    ("batch_size", "accumulate"), [(1, 64), (16, 4), (24, 3), (40, 2), (64, 1), (65, 1), (512, 1)]
)
def test_gradient_accumulation_reaches_64_images(batch_size, accumulate):
    plan = schedule(batch_size=batch_size, warmup_epochs=0.0)
    assert plan.accumulate == accumulate
    closing = sorted(plan.step_batches(0, accumulate * 5))
    assert closing == [accumulate * n - 1 for n in range(1, 6)]


def groups(plan: Schedule, first: int, last: int) -> list[int]:
    """The sizes of an epoch's groups."""
    edges = [first - 1, *sorted(plan.step_batches(first, last))]
    return [b - a for a, b in pairwise(edges)]


@pytest.mark.parametrize("batch_size", [1, 5, 16, 33, 64, 200])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 50, 131])
def test_every_batch_belongs_to_one_accumulation_group(batch_size, length):
    plan = Schedule(total_batches=length * 6, epochs=6, batch_size=batch_size, warmup_epochs=2.0)
    for epoch in range(6):
        first, last = epoch * length, (epoch + 1) * length
        closing = plan.step_batches(first, last)
        assert closing <= set(range(first, last))
        assert last - 1 in closing  # nothing is left over
        sizes = groups(plan, first, last)
        assert sum(sizes) == length
        assert max(sizes) <= plan.accumulate
        if first >= plan.warmup_batches:
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("length", "sizes"),
    [(8, [4, 4]), (9, [3, 3, 3]), (10, [3, 3, 4]), (13, [3, 3, 3, 4]), (1, [1]), (3, [3])],
)
def test_remaining_batches_are_grouped_evenly_by_hand(length, sizes):
    # Batches of 16, so at most 4 per group, and as even as possible: 9 batches make 3 groups, not
    # 4, 4 and 1.
    assert groups(schedule(warmup_epochs=0.0), 500, 500 + length) == sizes


def test_accumulation_grows_in_warmup():
    # 64 / 16 = 4 over 200 batches: a group is 1 + 3 * step / 200 batches, rounded.
    sizes = groups(schedule(), 0, 200)
    assert sizes[0] == 1
    assert sorted(set(sizes)) == [1, 2, 3, 4]
    assert sizes[:-1] == sorted(sizes[:-1])  # the last one has the remainder


def test_remainder_in_warmup_can_form_its_own_group():
    # Batches of 4, so 16 per group in the end, but at step 30 of 200 only 1 + 15 * 30 / 200 = 3.25:
    # a remainder of 2 is more than half of that and is a group of its own.
    plan = schedule(batch_size=4)
    lengths = {length: groups(plan, 0, length)[-1] for length in range(20, 32)}
    assert 2 in lengths.values()
    assert max(lengths.values()) <= 4


@pytest.mark.parametrize("batch_size", [1, 5, 16, 33, 64, 200])
@pytest.mark.parametrize(
    ("total", "epochs"), [(0, 3), (3, 3), (7, 3), (100, 100), (650, 100), (1310, 10)]
)
def test_optimizer_steps_are_those_of_all_epochs(total, epochs, batch_size):
    plan = Schedule(total_batches=total, epochs=epochs, batch_size=batch_size, warmup_epochs=0.0)
    edges = [total * epoch // epochs for epoch in range(epochs + 1)]
    assert plan.optimizer_steps == sum(
        len(plan.step_batches(first, last)) for first, last in pairwise(edges)
    )


def test_empty_batch_range_has_no_step_batches():
    assert schedule().step_batches(5, 5) == set()


def test_bias_warmup_of_an_optimizer_is_declared(monkeypatch):
    """At batch 5 of 10 of the warm-up; lr0 0.2 falls linearly to 0 over 40 batches: 0.2 * 35 / 40 =
    0.175.
    """
    kind = OptimizerKind(
        torch.optim.Adafactor, lambda groups, lr, _, __: torch.optim.Adafactor(groups, lr=lr), ""
    )
    schedule = Schedule(
        total_batches=40,
        epochs=4,
        batch_size=64,
        lr0=0.2,
        lrf=0.0,
        warmup_epochs=1,
        warmup_bias_lr=0.1,
    )
    assert schedule.warmup_batches == 10
    rates = {}
    for bias_warmup in (True, False):
        monkeypatch.setitem(OPTIMIZERS, "Adafactor", replace(kind, bias_warmup=bias_warmup))
        optimizer = build(Net(), "Adafactor")
        schedule.apply(optimizer, 5)
        rates[bias_warmup] = {group["name"]: group["lr"] for group in optimizer.param_groups}
    half = pytest.approx(0.5 * 0.175)
    assert rates[True] == {"bias": pytest.approx((0.1 + 0.175) / 2), "norm": half, "weight": half}
    assert rates[False] == {"bias": half, "norm": half, "weight": half}
