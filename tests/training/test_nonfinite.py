"""Steps that are not finite: the rule by hand, both ways to skip a step, and whole runs with nan or
inf in the loss.
"""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import train
from models.losses.anchor_based import AnchorBasedLoss
from tests.support.launching import forked, free_port, rank_environment, small_run_flags
from tests.support.meta_device import use_fused
from training.checkpoints.usable_weights import largest_weight, newest_usable
from training.nonfinite import (
    NonFiniteError,
    NonFiniteGuard,
    advise,
    describe_skipped,
    nan_if_nonfinite,
    refuse_mostly_skipped,
)
from training.optimizers import build_optimizer
from training.settings.hyperparameters import Hyp, write_hyp
from utils.distributed.replica import running_statistics
from utils.files import checkpoint_file

CPU = torch.device("cpu")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 1))


def one_step(model: nn.Module, steps: NonFiniteGuard, images: Tensor, gain: float = 1.0) -> None:
    """Run a training step. gain: factor of the loss."""
    loss = model(images).square().mean() * gain
    loss.backward(nan_if_nonfinite(loss))
    steps.step(nn.utils.clip_grad_norm_(model.parameters(), 10.0))
    steps.optimizer.zero_grad()


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Muon"])
@pytest.mark.parametrize("on_the_device", [False, True])
@pytest.mark.parametrize("fault", ["loss", "input"])
def test_nonfinite_step_has_no_effect(name, on_the_device, fault):
    """Both ways to skip a step give the result of a run without the batch, even if it is the first
    batch.
    """
    torch.manual_seed(1)
    batches = list(torch.randn(4, 8, 3))
    models = [net(), net()]
    optimizers = [
        build_optimizer(model, name, lr=0.1, momentum=0.9, weight_decay=0.01) for model in models
    ]
    if on_the_device:
        use_fused(optimizers[0])
    steps = [
        NonFiniteGuard(opt, running_statistics(model), CPU)
        for model, opt in zip(models, optimizers, strict=True)
    ]
    for number, batch in enumerate(batches):
        if number in (0, 2):  # corrupts the statistics too
            bad = batch.clone()
            bad[0, 0] = math.inf if fault == "input" else 1.0
            one_step(models[0], steps[0], bad, gain=math.nan if fault == "loss" else 1.0)
            assert steps[0].in_a_row == 1
        for model, own in zip(models, steps, strict=True):
            one_step(model, own, batch)
    assert (steps[0].skipped, steps[0].in_a_row, steps[1].skipped) == (2, 0, 0)
    for (key, value), other in zip(
        models[0].state_dict().items(), models[1].state_dict().values(), strict=True
    ):
        if "num_batches" not in key:  # has no effect
            assert torch.allclose(value, other, rtol=1e-6, atol=1e-7), key


def test_infinite_batchnorm_statistics_keep_previous_values():
    """An input of 1e20 has a variance of 1e40, more than float32 can hold; normalized by it, all
    values are near 0.
    """
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = NonFiniteGuard(optimizer, running_statistics(model), CPU)
    images = torch.randn(8, 2)
    images[0, 0] = 1e20
    one_step(model, steps, images)
    assert steps.skipped == 0
    assert model[0].running_var[0] == 1  # its initial value; the other channel is updated
    assert 0 < model[0].running_var[1] != 1
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_guard_is_stuck_after_10_nonfinite_steps():
    model = nn.Linear(2, 1)
    steps = NonFiniteGuard(torch.optim.SGD(model.parameters(), lr=0.1), [], CPU)
    assert not steps.stuck
    for number in range(10):
        assert not steps.stuck, number
        steps.step(torch.tensor(math.nan))
    assert steps.stuck
    steps.step(torch.tensor(0.0))
    assert not steps.stuck
    assert steps.state_dict() == {"skipped": 10, "in_a_row": 0}


def test_float16_guard_is_stuck_after_26_nonfinite_steps():
    """From 2**16 to 1 there are 16 halvings, each a skipped step; 10 more are allowed: 26."""
    steps = NonFiniteGuard(
        torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), [], CPU, searching=True
    )
    for _ in range(25):
        steps.step(torch.tensor(math.inf))
    assert not steps.stuck
    steps.step(torch.tensor(math.inf))
    assert steps.stuck


def float16_guard() -> NonFiniteGuard:
    return NonFiniteGuard(
        torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), [], CPU, searching=True
    )


def test_steps_that_find_the_float16_scale_are_not_counted_as_skipped():
    """From 2**16 to 1 there are 16 halvings; after 2000 finite steps the scale doubles and may be
    halved once more.
    """
    steps, scale = float16_guard(), 16
    for _ in range(3):
        steps.step(torch.tensor(math.inf))
    assert (steps.searched, steps.skipped, steps.in_a_row) == (3, 0, 3)
    for _ in range(scale - 3 + 2):
        steps.step(torch.tensor(math.nan))
    assert (steps.searched, steps.skipped, steps.in_a_row) == (16, 2, 18)
    for _ in range(2000):
        steps.step(torch.tensor(1.0))
    for _ in range(2):
        steps.step(torch.tensor(math.inf))
    assert (steps.searched, steps.skipped, steps.in_a_row) == (17, 3, 2)


def test_float16_search_continues_after_a_resume():
    steps, resumed, other = float16_guard(), float16_guard(), float16_guard()
    for _ in range(14):
        steps.step(torch.tensor(math.inf))
    resumed.load_state_dict(steps.state_dict())
    for guard in (steps, resumed):
        for _ in range(3):
            guard.step(torch.tensor(math.inf))
    assert resumed.state_dict() == steps.state_dict()
    assert (steps.searched, steps.skipped) == (16, 1)
    other.load_state_dict(
        {"skipped": 2, "in_a_row": 1}
    )  # of an older checkpoint, or of a run in bfloat16
    other.step(torch.tensor(math.inf))
    assert (other.searched, other.skipped, other.in_a_row) == (1, 2, 2)


@pytest.mark.parametrize("value", [0.0, -3.5, 1e38, math.nan, math.inf, -math.inf])
def test_nonfinite_loss_makes_every_gradient_nan(value):
    weights = [torch.ones(3, requires_grad=True), torch.zeros(2, requires_grad=True)]
    loss = sum(weight.sum() for weight in weights) * 0 + value
    loss.backward(nan_if_nonfinite(loss))
    assert all(weight.grad.isfinite().all() == math.isfinite(value) for weight in weights)
    assert all(weight.grad.isnan().any() != math.isfinite(value) for weight in weights)


# ---------------------------------------------------------------------- whole runs


def corrupt_losses(first: int, last: int, value: float = math.nan) -> None:
    """Multiply the objectness loss of the batches `first` to `last`, counted from 1, by `value`."""
    real, batches = AnchorBasedLoss.forward, iter(range(1, 10**6))

    def forward(self: AnchorBasedLoss, maps: list[Tensor], *arguments: Any) -> dict[str, Tensor]:
        losses = real(self, maps, *arguments)
        if torch.is_grad_enabled() and first <= next(batches) <= last:
            losses["obj"] = losses["obj"] * value
        return losses

    AnchorBasedLoss.forward = forward


def rank_1_corrupts_some_losses() -> None:
    if os.environ["RANK"] == "1":
        corrupt_losses(4, 6)


def rank_1_corrupts_all_losses() -> None:
    if os.environ["RANK"] == "1":
        corrupt_losses(3, 10**6)


@pytest.fixture
def flags(tiny_data: Path, micro_model: str, tmp_path: Path) -> list[str]:
    """Those of a run with two batches to an optimizer step, and to an epoch.

    Its 12 epochs are enough for 10 skipped steps, and for a warm-up in which each batch of the
    second epoch is a step.
    """
    hyp = tmp_path / "hyp.yaml"
    write_hyp(hyp, "Muon", Hyp(lrf=0.05, nominal_batch=8))
    words = ["--epochs", "12", "--batch", "4", "--hyp", str(hyp)]
    return small_run_flags(tiny_data, micro_model, tmp_path, *words)


def all_finite(file: Path) -> bool:
    saved = checkpoint_file.load(file)
    state = {
        f"{name} of parameter {number}": torch.as_tensor(value)
        for number, values in saved.get("optimizer", {"state": {}})["state"].items()
        for name, value in values.items()
    }
    assert state or "optimizer" not in saved
    return all(
        value.isfinite().all() for value in (saved["model"] | saved.get("ema", {}) | state).values()
    )


@pytest.fixture
def _restored(monkeypatch):
    monkeypatch.setattr(AnchorBasedLoss, "forward", AnchorBasedLoss.forward)


@pytest.mark.slow
@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_run_skips_and_counts_nonfinite_step(flags, tmp_path, capsys, value):
    corrupt_losses(3, 3, value)  # the first of the second epoch's two batches
    train.main(train.parse_args(flags)[0], train.World(CPU))
    output = capsys.readouterr().out
    assert re.findall(r"(\d+) of (\d+) optimizer steps skipped \(not finite\)", output)[0][0] == "1"
    assert all_finite(tmp_path / "exp" / "weights" / "last.pt")
    assert all_finite(tmp_path / "exp" / "weights" / "best.pt")
    rows = (tmp_path / "exp" / "results.csv").read_text().splitlines()
    assert len(rows) == 13
    assert "nan" not in "".join(rows)


@pytest.mark.slow
@pytest.mark.usefixtures("_restored")
def test_run_in_float16_reports_the_search_for_its_scale_as_such(flags, capsys, monkeypatch):
    def with_search(*given: Any, **_: Any) -> NonFiniteGuard:
        return NonFiniteGuard(
            *given, searching=True
        )  # as with a float16 scaler, which a CPU has not

    monkeypatch.setattr("training.state.NonFiniteGuard", with_search)
    corrupt_losses(3, 3)
    train.main(train.parse_args([*flags, "--epochs", "3"])[0], train.World(CPU))
    output = capsys.readouterr().out
    assert len(re.findall(r", 1 of \d+ optimizer steps? set float16's gradient scale", output)) == 1
    assert "not finite" not in output


@pytest.mark.slow
@pytest.mark.usefixtures("_restored")
def test_run_stops_after_10_nonfinite_steps_and_names_images(flags, tmp_path):
    corrupt_losses(3, 10**6)
    with pytest.raises(
        NonFiniteError, match="was not finite in 10 optimizer steps in a row"
    ) as stopped:
        train.main(train.parse_args([*flags, "--save-minutes", "1e-9"])[0], train.World(CPU))
    seen = [
        int(number)
        for number in re.search(r"images \[([\d, ]+)\]", str(stopped.value))[1].split(",")
    ]
    assert len(seen) == 4
    assert all(f"{number}.png" in str(stopped.value) for number in seen)
    last = tmp_path / "exp" / "weights" / "last.pt"
    assert all_finite(last)
    said = (
        f". Start a new run with --weights {last}, and a learning rate (lr0 in --hyp) below "
        "0.01 or --amp fp32"
    )
    assert said in str(stopped.value)


@pytest.mark.slow
@pytest.mark.usefixtures("_restored")
def test_run_with_huge_weights_names_the_last_usable_checkpoint(flags, tmp_path, monkeypatch):
    """The weights grow in the second epoch, after which last.pt has them too."""
    corrupt_losses(4, 10**6)
    real, epochs = train.TrainState.sync_buffers, iter(range(1, 10**6))

    def sync_buffers(state):
        real(state)
        if next(epochs) == 2:
            nn.init.constant_(next(iter(state.replica.model.parameters())).data, 3e8)

    monkeypatch.setattr(train.TrainState, "sync_buffers", sync_buffers)
    words = [*flags, "--save-minutes", "1e-9", "--noval", "--save-period", "1"]
    with pytest.raises(NonFiniteError) as stopped:
        train.main(train.parse_args(words)[0], train.World(CPU))
    first = tmp_path / "exp" / "weights" / "epoch1.pt"
    assert f". The weights have grown to 3e+08: start a new run with --weights {first}, and" in str(
        stopped.value
    )


@pytest.mark.slow
@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("most", [False, True])
def test_run_ends_with_fault_if_most_steps_were_skipped(flags, tmp_path, capsys, most):
    """4 steps: two in the first epoch, which is the warm-up, then one for each 2 batches.
    Everything is written.
    """
    corrupt_losses(2, 5 if most else 3)
    words = [*flags, "--epochs", "3"]
    said = (
        f"{3 if most else 2} of 4 optimizer steps were skipped, because their loss or "
        "gradient was not finite"
    )
    advice = (
        "the model has learned from few images; use a learning rate (lr0 in --hyp) below "
        "0.01, or --amp fp32"
    )
    if most:
        with pytest.raises(NonFiniteError, match=f"^{re.escape(f'{said}: {advice}')}$"):
            train.main(train.parse_args(words)[0], train.World(CPU))
    else:
        train.main(train.parse_args(words)[0], train.World(CPU))
    assert said in capsys.readouterr().out.splitlines()
    written = json.loads((tmp_path / "exp" / "metrics.json").read_text())
    assert written.get("reason", "") == (f"{said}: {advice}" if most else "")
    assert written["status"] == ("failed" if most else "finished")
    assert {"last", "best"} < written.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "epochs"), [("rank_1_corrupts_some_losses", 4), ("rank_1_corrupts_all_losses", 12)]
)
def test_two_processes_skip_nonfinite_steps_together(flags, tmp_path, fault, epochs):
    flags += ["--epochs", str(epochs)]
    port = free_port()
    faults = {"KESTREL_FAULT": f"tests.training.test_nonfinite:{fault}"}
    with forked(
        [rank_environment(rank, 2, port) | faults for rank in range(2)], flags, tmp_path / "io"
    ) as ranks:
        codes = [rank.end(300) for rank in ranks]
        out, errors = ranks[0].out, ranks[0].err + ranks[1].err
    assert all_finite(tmp_path / "exp" / "weights" / "last.pt")
    if fault == "rank_1_corrupts_some_losses":
        assert codes == [0, 0]
        counts = re.findall(r"(\d+) of \d+ optimizer steps? skipped", out)
        assert [int(count) for count in counts] == [1, 1]  # of 2 batches each
        assert len((tmp_path / "exp" / "results.csv").read_text().splitlines()) == 5
    else:
        assert codes == [1, 1]
        assert errors.count("error:") == 1
        assert len(re.search(r"images \[([\d, ]+)\]", errors)[1].split(",")) == 4


# ---------------------------------------------------------------- which weights to start again from


def test_largest_weight_of_the_parameters_only():
    state = {"a": torch.tensor([1.0, -3.0]), "mean": torch.tensor([1e9]), "none": torch.zeros(0)}
    assert largest_weight(state, ["a", "none"]) == 3.0
    assert largest_weight(state, []) == 0.0
    assert largest_weight(state | {"a": torch.tensor([math.nan])}, ["a"]) == math.inf


def test_newest_usable_checkpoint_has_no_huge_weight_and_can_be_read(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    assert newest_usable(tmp_path, ["a"]) is None

    def save(name: str, seconds: int, **states: float) -> None:
        saved = {part: {"a": torch.tensor([value])} for part, value in states.items()}
        checkpoint_file.save(folder / name, {"table": {}, "names": [], **saved})
        os.utime(folder / name, (seconds, seconds))

    save("epoch1.pt", 1, model=2.0)
    assert newest_usable(tmp_path, ["a"]) == folder / "epoch1.pt"
    save("epoch2.pt", 2, model=999.0, ema=3.0)
    save("epoch3.pt", 3, model=3.0, ema=2000.0)
    save("best.pt", 4, model=1e9)
    (folder / "last.pt").write_bytes(b"damaged")
    (folder / "gone.pt").symlink_to("nowhere")
    assert newest_usable(tmp_path, ["a"]) == folder / "epoch2.pt"


def test_advice_and_skipped_steps_in_words():
    start = "start a new run with --weights best.pt, and a learning rate (lr0 in --hyp) below 0.01"
    assert advise(math.inf, 0.01, Path("best.pt")) == f"The weights have grown to inf: {start}"
    lower = "with a learning rate (lr0 in --hyp) below 0.01"
    assert advise(3.0, 0.01, None) == f"Start from the beginning, {lower} or --amp fp32"
    assert describe_skipped(0, 5) == ""
    assert (
        describe_skipped(1, 3)
        == "1 of 3 optimizer steps was skipped, because its loss or gradient was not finite"
    )
    refuse_mostly_skipped(0, 0, 0.01)  # a run without steps
