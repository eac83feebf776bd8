"""The made-up training step with which memory is measured."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models import LossGains, build_loss, build_model
from models.detector import Detector
from models.losses import Loss
from training.batch_size.trial_step import GRAPH_RUNS, TrialStep
from utils.distributed.world import World

CPU = torch.device("cpu")
FLOAT32 = torch.autocast("cpu", torch.bfloat16, enabled=False)


@pytest.fixture
def model(tiny_model: str) -> Detector:
    torch.manual_seed(0)
    return build_model(tiny_model, 3)


class RecordingLoss(Loss):
    """The loss, with a record of its arguments."""

    terms = ("box", "obj", "cls")

    def __init__(self, real: Loss) -> None:
        super().__init__()
        self.real, self.seen = real, []

    @classmethod
    def from_head(cls, head: Any, gains: LossGains) -> "RecordingLoss":
        return cls(build_loss(head, gains))

    def assign(self, raw: Any, targets: Tensor) -> tuple[Any, Tensor]:
        self.seen.append((len(raw[0]), targets.clone()))
        return self.real.assign(raw, targets)

    def compute_terms(self, *arguments: Any) -> dict[str, Tensor]:
        return self.real.compute_terms(*arguments)


def make_step(model: Detector, criterion: Loss, **changed: Any) -> Any:
    settings = {
        "optimizer": "AdamW",
        "lr": 0.1,
        "momentum": 0.9,
        "image_size": 64,
        "boxes_per_image": 5,
    }
    return TrialStep(model, criterion, FLOAT32, world=World(CPU), **(settings | changed))


def test_trial_step_uses_copies_and_given_image_and_box_counts(model):
    criterion = RecordingLoss.from_head(model.head, LossGains())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    step = make_step(model, criterion)
    random_state = torch.random.get_rng_state()
    step(3)
    step(1)
    (images, targets), (one, fewer) = criterion.seen
    assert (images, one) == (3, 1)
    real = targets[targets[:, 1] >= 0]  # the rest is padding
    assert real[:, 0].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert (real[:, 2:].min() >= 0, real[:, 2:].max() <= 64) == (True, True)
    assert torch.allclose(
        real[:, 4:] - real[:, 2:4], torch.tensor(8.0), atol=1e-4
    )  # an eighth of the side
    assert len(fewer[fewer[:, 1] >= 0]) == 5
    assert torch.random.get_rng_state().equal(random_state)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_trial_step_without_boxes_has_only_padding_targets(model):
    criterion = RecordingLoss.from_head(model.head, LossGains())
    make_step(model, criterion, boxes_per_image=0)(2)
    (_, targets), *_ = criterion.seen
    assert (targets[:, 1] < 0).all()


# ---------------------------------------------------------------------- what the run does besides


def test_trial_step_measures_the_drawing_of_the_run(model):
    drawn: list[int] = []

    def draw(count: int) -> Tensor:
        drawn.append(count)
        # smaller than the largest size of --multi-scale
        return torch.zeros(count, 32, 32, 3, dtype=torch.uint8)

    criterion = RecordingLoss.from_head(model.head, LossGains())
    make_step(model, criterion, draw=draw)(3)
    assert drawn == [3]
    assert [images for images, _ in criterion.seen] == [3]


def test_cudnn_times_its_convolutions_only_in_tuned_and_compiled_steps(
    model, monkeypatch, compilations
):
    tuned: list[bool] = []
    real = Detector.forward
    monkeypatch.setattr(
        Detector,
        "forward",
        lambda *given: tuned.append(torch.backends.cudnn.benchmark) or real(*given),
    )
    before = torch.backends.cudnn.benchmark
    step = make_step(model, RecordingLoss.from_head(model.head, LossGains()))

    step(3)
    step.tuned(3)
    step.compiled(3, "default")
    assert tuned == [False, True] + GRAPH_RUNS * [True]
    assert torch.backends.cudnn.benchmark == before


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings of each call of torch.compile, which compiles nothing."""
    calls: list[dict[str, Any]] = []

    def compile_(function: Any, **settings: Any) -> Any:
        calls.append(settings)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    return calls


def test_compiled_trial_runs_often_enough_for_cuda_graphs(model, compilations):
    criterion = RecordingLoss.from_head(model.head, LossGains())
    step = make_step(model, criterion)
    step.compiled(2, "reduce-overhead")
    assert compilations == [
        {"mode": "reduce-overhead", "dynamic": False},
        {},
        {},
    ]  # model, two halves of the loss
    assert criterion.compiled is None
    assert [images for images, _ in criterion.seen] == [2] * GRAPH_RUNS
    assert step.replica.model._compiled_call_impl is None


@pytest.mark.parametrize(("error", "raised"), [("CUDA out of memory", True), ("no Triton", False)])
def test_compiled_trial_reports_only_that_memory_runs_out(model, monkeypatch, error, raised):
    def fail(*_: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    step = make_step(model, RecordingLoss.from_head(model.head, LossGains()))
    if raised:
        with pytest.raises(RuntimeError, match=error):
            step.compiled(2, "default")
    else:
        step.compiled(2, "default")
    step(1)  # uncompiled
