"""Each family of models learns eight drawn images by heart, and keeps what it has learned.

A port of a detector can run without an error and learn little, if its decoding, its assignment, its
loss or its reader is wrong. benchmarks/trainings/narrow_families.py measures the margins of this
test. Full sizes: benchmarks/trainings/overfit.py.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from models.detector import Detector
from models.weights.kestrel import load_detector
from tests.support import rtmdet, yolov9, yolox
from tests.support.overfitting import (
    FAMILIES,
    NAMES,
    Trained,
    few_steps,
    new_model,
    overfit_family,
    shape_ious,
    stacked_images,
    write_narrow_table,
)
from utils.files import checkpoint_file

pytestmark = pytest.mark.trains

LEARNED = 0.83  # median IoU, between that of right ports and of ports with a fault
KEPT = 0.5  # of a random model's loss, between that of trained and of random weights
QUICK = {"yolov3-tiny"}
TURNED = NAMES[::-1]  # the classes in another order


def save_yolox(path: Path, detector: Detector) -> Path:
    torch.save({"model": yolox.to_yolox_state(detector)}, path)
    return path


def save_yolov9(path: Path, detector: Detector) -> Path:
    """Round the detector as the file does, which has float16, and save it."""
    detector.half()
    torch.save(yolov9.to_authors_state(detector), path)
    return path


def save_rtmdet(path: Path, detector: Detector) -> Path:
    config = f"exp_on_reg={detector.head.exponential}"
    state = rtmdet.to_authors_state(detector)
    return rtmdet.save_rtmdet(path, state, meta={"cfg": config})


SAVED_BY_AUTHORS = {  # in depths that their readers know, so without yolov9
    "rtmdet": save_rtmdet,
    "rtmdet-exponential": save_rtmdet,
    "yolov9-c": save_yolov9,
    "yolox": save_yolox,
    "yolox-separable": save_yolox,
}


def marked(families: Sequence[str]) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[] if name in QUICK else [slow]) for name in families]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Callable[[str], Trained]:
    """trained("yolov5") is a training from scratch, which is done once."""
    done: dict[str, Trained] = {}

    def train_once(family: str) -> Trained:
        if family not in done:
            done[family] = overfit_family(tmp_path_factory.mktemp(family), family)
        return done[family]

    return train_once


@pytest.fixture
def checkpoint(trained, tmp_path) -> Callable[[str], Path]:
    """checkpoint("yolov5") is a file with what the training has learned."""

    def save(family: str) -> Path:
        detector = trained(family).detector
        file = tmp_path / "best.pt"
        entries = {"table": detector.table, "names": list(NAMES), "model": detector.state_dict()}
        checkpoint_file.save(file, entries)
        return file

    return save


def detector_in(weights: Path) -> Detector:
    detector, _ = load_detector(weights)
    return detector.eval()


def started_from(weights: Path, names: Sequence[str]) -> Detector:
    """The model that train.py --weights starts."""
    return new_model("", str(weights), names).eval()


@torch.no_grad()
def predictions(detector: Detector) -> tuple[Tensor, Tensor]:
    """All boxes_xyxy and scores in the eight images, computed in float64.

    The detector is in float32 afterwards, with the same values if it was before.
    """
    detector.double()
    raw = detector(stacked_images().double())
    detector.float()
    return detector.decode(raw)


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_family_overfits_from_scratch(family, trained):
    """IoU depends only on the order of the scores, so their range is tested, too."""
    detector = trained(family).detector
    assert median(shape_ious(detector)) > LEARNED

    with torch.inference_mode():
        raw = detector(stacked_images())
        for _, scores in (detector.decode(raw), detector.decode(raw, confidence=0.001)):
            assert scores.min() >= 0
            assert 0 < scores.max() <= 1


@pytest.mark.parametrize("family", marked(FAMILIES))
def test_family_starts_with_what_its_checkpoint_has_learned_and_keeps_it(
    family, trained, checkpoint
):
    """In a training with its classes in another order, whose first steps do not destroy it."""
    learned = trained(family)
    boxes, scores = predictions(learned.detector)
    started = started_from(checkpoint(family), TURNED)
    started_boxes, started_scores = predictions(started)
    order = [NAMES.index(name) for name in TURNED]
    torch.testing.assert_close(started_boxes, boxes, rtol=0, atol=1e-3)
    torch.testing.assert_close(started_scores, scores[..., order], rtol=0, atol=1e-5)

    random_loss = learned.losses[0]
    assert few_steps(started, TURNED, family).losses[-1] < KEPT * random_loss


@pytest.mark.parametrize("family", marked(sorted(SAVED_BY_AUTHORS)))
def test_family_starts_with_what_a_checkpoint_of_its_authors_has_learned(
    family, checkpoint, tmp_path
):
    """A shape's class is its color, so the order of the image's channels counts."""
    detector = detector_in(checkpoint(family))
    file = SAVED_BY_AUTHORS[family](tmp_path / "authors.pth", detector)
    boxes, scores = predictions(detector)
    started_boxes, started_scores = predictions(started_from(file, NAMES))
    torch.testing.assert_close(started_boxes, boxes, rtol=0, atol=1e-3)
    torch.testing.assert_close(started_scores, scores, rtol=0, atol=1e-5)


def test_few_steps_teach_a_random_model_nothing(tmp_path):
    """So the weights of a checkpoint have arrived if the loss is low after a few steps from it."""
    table = write_narrow_table(tmp_path, "yolov3-tiny")
    losses = few_steps(new_model(str(table), "", NAMES), NAMES, "yolov3-tiny").losses
    assert losses[-1] > KEPT * losses[0]
