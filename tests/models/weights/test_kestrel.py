"""Detectors from Kestrel's checkpoints: the round trip and the errors."""

import copy
import re
from pathlib import Path

import pytest
import torch

from models import build_model
from models.detector import Detector
from models.weights.kestrel import digest, load_detector
from utils.files import checkpoint_file


@pytest.fixture
def model(tiny_model: str) -> Detector:
    torch.manual_seed(0)
    return build_model(tiny_model, 3)


def save_detector(path: Path, detector: Detector, **changes: object) -> Path:
    state = {"model": detector.state_dict(), "table": detector.table, "names": ["a", "b", "c"]}
    checkpoint_file.save(path, state | changes)
    return path


def test_detector_checkpoint_round_trip(model, tmp_path):
    loaded, saved = load_detector(save_detector(tmp_path / "a.pt", model))
    image = torch.rand(1, 3, 64, 64)
    for ours, theirs in zip(model.eval()(image), loaded.eval()(image), strict=True):
        assert ours.equal(theirs)
    assert saved["names"] == ["a", "b", "c"]


def test_load_detector_prefers_ema_weights(model, tmp_path):
    averaged = {key: torch.full_like(value, 2) for key, value in model.state_dict().items()}
    loaded, _ = load_detector(save_detector(tmp_path / "a.pt", model, ema=averaged))
    assert all((value == 2).all() for value in loaded.state_dict().values())


def test_model_digest_depends_on_weights(model):
    before = digest(model)
    assert before == digest(copy.deepcopy(model)) != digest(copy.deepcopy(model).half())
    next(model.buffers()).add_(1)
    assert digest(model) != before
    assert digest(torch.nn.Identity()) == "e3b0c442"  # the SHA-256 of no data


def test_fitted_anchors_survive_saving(model, tmp_path):
    model.head.set_anchors(model.head.anchors_px * 1.2345)
    loaded, _ = load_detector(save_detector(tmp_path / "a.pt", model))
    assert loaded.head.anchors_px.equal(model.head.anchors_px)


def test_load_detector_rejects_images_of_other_channels(tiny_model, tmp_path):
    """A model for gray images would stop in its first convolution."""
    gray = build_model(tiny_model, 3, channels=1)
    sentence = r"a\.pt: takes images of 1 channel; only models of 3 channels \(RGB\) can be used$"
    with pytest.raises(ValueError, match=sentence):
        load_detector(save_detector(tmp_path / "a.pt", gray))


@pytest.mark.parametrize("table", [None, 7, [], {}, {"nc": 3}, "yolov5n.yaml"])
def test_load_detector_rejects_invalid_table(model, tmp_path, table):
    with pytest.raises(ValueError, match=r"a\.pt: its weights do not fit its table \("):
        load_detector(save_detector(tmp_path / "a.pt", model, table=table))


@pytest.mark.parametrize("weights", [None, {}, {"x": 1}])
def test_load_detector_rejects_mismatched_weights(model, tmp_path, weights):
    with pytest.raises(ValueError, match=r"a\.pt: its weights do not fit its table \("):
        load_detector(save_detector(tmp_path / "a.pt", model, model=weights))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["layers.0.conv.weight", "layers.1.bn.running_var"])
def test_load_detector_rejects_weights_that_are_not_finite(model, tmp_path, key, value):
    model.state_dict()[key].view(-1)[-1] = value
    with pytest.raises(
        ValueError, match=rf"a\.pt: {re.escape(key)} has values that are not finite$"
    ):
        load_detector(save_detector(tmp_path / "a.pt", model))


@pytest.mark.parametrize("names", [None, 3, ["a", "b"], ["a", "b", 3], {"0": "a"}])
def test_load_detector_rejects_mismatched_names(model, tmp_path, names):
    with pytest.raises(
        ValueError, match="`names` must be a list of 3 names, one per class of its table"
    ):
        load_detector(save_detector(tmp_path / "a.pt", model, names=names))


def test_load_detector_explains_missing_file(tmp_path):
    with pytest.raises(ValueError) as caught:
        load_detector(tmp_path / "mine.pt")
    assert str(caught.value) == (
        f"{tmp_path}/mine.pt: cannot be read as a checkpoint: No such file. Give a checkpoint "
        "of a training run "
        "(runs/train/exp/weights/best.pt), or a file that you have downloaded: Kestrel ships no "
        "weights "
        "(docs/weights.md)"
    )


def test_missing_file_named_like_a_model_is_answered_with_a_training_from_scratch(tmp_path):
    advice = "--weights '' --cfg yolov5s.yaml trains from random ones; docs/weights.md lists"
    with pytest.raises(ValueError, match=re.escape(advice)):
        load_detector(tmp_path / "yolov5s.pt")
