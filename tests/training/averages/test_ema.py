"""The moving average against a slow loop."""

import math

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.steps.operations import operations, roots
from training.averages.ema import EMA, ema_constants
from utils.distributed.replica import Replica
from utils.distributed.world import World


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


def perturb(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.state_dict().values():
            value.add_(torch.randn(value.shape) if value.is_floating_point() else 1)


def test_ema_equals_slow_loop():
    model = make_model()
    ema = EMA(model, decay=0.99, tau=5.0)
    slow = {key: value.clone().double() for key, value in model.state_dict().items()}
    for t in range(1, 21):
        perturb(model)
        ema.update(model.state_dict())
        keep = 0.99 * (1 - math.exp(-t / 5.0))
        for key, value in model.state_dict().items():
            slow[key] = (
                keep * slow[key] + (1 - keep) * value
                if value.is_floating_point()
                else value.double()
            )
    assert ema.updates == 20
    for key, value in ema.state_dict().items():
        torch.testing.assert_close(value.double(), slow[key], rtol=1e-5, atol=1e-6)
    assert ema.state_dict()["1.num_batches_tracked"].dtype == torch.int64
    assert ema.state_dict()["1.num_batches_tracked"] == 20


@pytest.mark.parametrize(
    ("update", "keep"), [(1, 0.9999 * 0.000499875), (2000, 0.9999 * 0.632121), (10**6, 0.9999)]
)
def test_ema_decay_by_hand(update, keep):
    # 1 - exp(-1/2000) = 0.000499875; 1 - exp(-1) = 0.632121
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    ema = EMA(model)
    ema.updates = update - 1
    nn.init.constant_(model.weight, 0.0)
    ema.update(model.state_dict())
    assert ema.model.weight.item() == pytest.approx(keep, rel=1e-5, abs=1e-7)


def test_ema_shares_no_memory_with_model():
    model = make_model().train()
    ema = EMA(model)
    theirs = {value.data_ptr() for value in model.state_dict().values()}
    assert theirs.isdisjoint(value.data_ptr() for value in ema.state_dict().values())
    before = {key: value.clone() for key, value in ema.state_dict().items()}
    perturb(model)
    assert all(value.equal(before[key]) for key, value in ema.state_dict().items())
    after = {key: value.clone() for key, value in model.state_dict().items()}
    ema.update(model.state_dict())
    assert all(value.equal(after[key]) for key, value in model.state_dict().items())


def test_ema_model_is_in_eval_mode_without_gradients():
    model = make_model().train()
    ema = EMA(model)
    assert not any(module.training for module in ema.model.modules())
    assert not any(parameter.requires_grad for parameter in ema.model.parameters())
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_ema_of_live_state_follows_loaded_and_moved_weights():
    """The lists that are made once stay right when weights are loaded, or get another layout in
    memory.
    """
    model = make_model()
    replica = Replica(model, World(torch.device("cpu")))
    ema = EMA(model, decay=0.5, tau=1e-9)  # the mean of the old average and the new weights
    ema.update(replica.live_state())
    start = {key: value.clone() for key, value in model.state_dict().items()}

    loaded = {key: value + 2 for key, value in start.items()}
    model.load_state_dict(loaded)
    ema.model.load_state_dict(start)
    model.to(memory_format=torch.channels_last)
    ema.update(replica.live_state())

    assert list(ema.state_dict()) == list(replica.live_state())
    for key, value in ema.state_dict().items():
        expected = start[key] + 1 if value.is_floating_point() else loaded[key]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


def test_ema_update_takes_two_operations():
    """One for all values that are averaged, one for all that are copied."""
    model = nn.Sequential(*(nn.BatchNorm2d(2) for _ in range(5)))
    ema, replica = EMA(model), Replica(model, World(torch.device("cpu")))
    replica.live_state()
    with profile(activities=[ProfilerActivity.CPU]) as recorder:
        ema.update(replica.live_state())
    assert [name for _, name in operations(roots(recorder))] == ["_foreach_lerp_", "_foreach_copy_"]


def test_ema_of_unchanged_model_is_bitwise_equal():
    model = make_model()
    ema = EMA(model)
    for _ in range(10):
        ema.update(model.state_dict())
    assert all(value.equal(model.state_dict()[key]) for key, value in ema.state_dict().items())


@pytest.mark.parametrize(
    ("steps", "decay", "tau"),
    # A twentieth of the run: 0, 100, 1,000, 10,000 and 50,000 steps, clipped to 2..10,000; tau at
    # most 2,000.
    [
        (0, 0.5, 2),
        (2000, 0.99, 100),
        (20_000, 0.999, 1000),
        (200_000, 0.9999, 2000),
        (10**6, 0.9999, 2000),
    ],
)
def test_ema_constants_of_run_lengths(steps, decay, tau):
    assert ema_constants(steps) == pytest.approx((decay, tau))
