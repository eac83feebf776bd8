"""The made-up training step with which memory is measured."""

from typing import Any

import pytest
import torch
from torch import Tensor

from models import LossGains, build_loss, build_model
from models.detector import Detector
from models.losses import Loss
from models.trial_step import trial_step
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

    def forward(self, raw: Any, targets: Tensor, total: Any = None) -> dict[str, Tensor]:
        self.seen.append((len(raw[0]), targets.clone()))
        return self.real(raw, targets, total)


def make_step(model: Detector, criterion: Loss, **changed: Any) -> Any:
    settings = {"optimizer": "AdamW", "lr": 0.1, "momentum": 0.9, "image_size": 64, "boxes_per_image": 5}
    return trial_step(model, criterion, FLOAT32, world=World(CPU), **(settings | changed))


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
    assert torch.allclose(real[:, 4:] - real[:, 2:4], torch.tensor(8.0), atol=1e-4)  # an eighth of the side
    assert len(fewer[fewer[:, 1] >= 0]) == 5
    assert torch.random.get_rng_state().equal(random_state)
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_trial_step_without_boxes_has_only_padding_targets(model):
    criterion = RecordingLoss.from_head(model.head, LossGains())
    make_step(model, criterion, boxes_per_image=0)(2)
    (_, targets), *_ = criterion.seen
    assert (targets[:, 1] < 0).all()
