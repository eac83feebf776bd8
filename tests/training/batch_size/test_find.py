"""training/batch_size/find.py: what --batch-size -1 measures."""

from typing import Any

import pytest
import torch

from models import build_model
from training.batch_size import find
from training.distillation.distillation import Distillation
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from utils.distributed.world import World
from utils.log import say_nothing


class FakeLabels:
    """The labels of nine images."""

    def __len__(self) -> int:
        return 9

    def boxes_per_image(self, percent: float) -> int:
        assert percent == 95
        return 3


class FakeStep:
    """Records what it is made with, and the modes that it is compiled with."""

    def __init__(self, made: list[Any]) -> None:
        self.made = made

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.made.append(options)
        return self

    def compiled(self, images: int, mode: str) -> None:
        self.made.append((images, mode))

    def tuned(self, images: int) -> None:
        self.made.append((images, "tuned"))


@pytest.fixture
def measure(tiny_model, monkeypatch):
    """measure(device, **flags): what was made, and what choose_batch was called with."""
    model = build_model(tiny_model, 2)

    def run(device: str, **flags: Any) -> tuple[list[Any], dict[str, Any]]:
        made: list[Any] = []
        called: dict[str, Any] = {}
        monkeypatch.setattr(find, "TrialStep", FakeStep(made))
        monkeypatch.setattr(
            find, "choose_batch", lambda *_, **given: called.update(given) or (8, "a sentence")
        )
        said: list[str] = []
        size = find.find_batch_size(
            TrainConfig(optimizer="SGD", **flags),
            Hyp(lr0=0.5),
            model,
            FakeLabels(),
            object(),
            distillation=Distillation(model, max(model.strides)),
            image_size=64,
            precision=torch.float32,
            world=World(torch.device(device)),
            say=said.append,
        )
        assert (size, said) == (8, ["a sentence"])
        return made, called

    return run


def test_trial_steps_have_the_settings_of_the_run_and_the_boxes_of_a_mosaic(measure):
    (made,), called = measure("cpu", imgsz=64)
    assert (made["optimizer"], made["lr"], made["momentum"]) == ("SGD", 0.5, 0.937)
    assert (made["image_size"], made["boxes_per_image"]) == (64, 4 * 3 + 1)
    assert made["draw"] is None
    assert (called["images"], called["shares"], called["check"]) == (9, 1, None)


def test_trial_images_have_the_largest_size_of_multi_scale(measure):
    (made,), _ = measure("cpu", multi_scale=True)
    assert made["image_size"] == 96  # 64 px and half of it


def test_batch_of_a_compiled_run_on_a_gpu_is_checked_compiled(measure):
    """On a CPU it is not: there the bytes of compiled code cannot be counted."""
    _, called = measure("cpu", compile="default")
    assert called["check"] is None
    made, called = measure("cuda", compile="default")
    assert called["check"].how == "compiled"
    called["check"].step(64)
    assert made[1:] == [(64, "default")]


def test_batch_of_a_run_on_a_gpu_is_checked_with_the_convolutions_that_cudnn_has_timed(measure):
    """Images of several shapes are not timed; nor are any on a CPU."""
    made, called = measure("cuda")
    assert called["check"].how == "with the convolutions that cuDNN finds fastest"
    called["check"].step(64)
    assert made[1:] == [(64, "tuned")]

    for device, flags in (("cuda", {"multi_scale": True}), ("cuda", {"rect": True}), ("cpu", {})):
        _, called = measure(device, **flags)
        assert called["check"] is None


def test_small_compiled_batches_are_tried_without_cuda_graphs(measure):
    """Several batches per optimizer step share gradients, which CUDA graphs do not support."""
    made, called = measure("cuda", compile="reduce-overhead")
    called["check"].step(4)
    called["check"].step(64)
    assert made[1:] == [(4, "default"), (64, "reduce-overhead")]
    say_nothing("a line")
