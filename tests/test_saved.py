"""Detectors from checkpoints: the round trip, the refusals, and weights carried over."""

import copy
from pathlib import Path

import pytest
import torch

from models import build_model
from models.detector import Detector
from models.saved import digest, load_detector, transfer
from utils import checkpoint


@pytest.fixture
def model(tiny_model: str) -> Detector:
    torch.manual_seed(0)
    return build_model(tiny_model, 3)


def saved_as(path: Path, detector: Detector, **changes: object) -> Path:
    state = {"model": detector.state_dict(), "table": detector.table, "names": ["a", "b", "c"]}
    checkpoint.save(path, state | changes)
    return path


def test_round_trip(model, tmp_path):
    loaded, saved = load_detector(saved_as(tmp_path / "a.pt", model))
    image = torch.rand(1, 3, 64, 64)
    for ours, theirs in zip(model.eval()(image), loaded.eval()(image), strict=True):
        assert ours.equal(theirs)
    assert saved["names"] == ["a", "b", "c"]


def test_averaged_weights_come_first(model, tmp_path):
    averaged = {key: torch.full_like(value, 2) for key, value in model.state_dict().items()}
    loaded, _ = load_detector(saved_as(tmp_path / "a.pt", model, ema=averaged))
    assert all((value == 2).all() for value in loaded.state_dict().values())


def test_a_digest_tells_weights_apart(model):
    before = digest(model)
    assert before == digest(copy.deepcopy(model)) != digest(copy.deepcopy(model).half())
    next(model.buffers()).add_(1)
    assert digest(model) != before
    assert digest(torch.nn.Identity()) == "e3b0c442"  # of nothing


def test_fitted_anchors_survive(model, tmp_path):
    model.set_anchors(model.anchors_px * 1.2345)
    loaded, _ = load_detector(saved_as(tmp_path / "a.pt", model))
    assert loaded.anchors_px.equal(model.anchors_px)


@pytest.mark.parametrize("table", [None, 7, [], {}, {"nc": 3}, "yolov5n.yaml"])
def test_a_table_that_is_none_is_one_sentence(model, tmp_path, table):
    with pytest.raises(ValueError, match=r"a\.pt: its weights do not fit its table \("):
        load_detector(saved_as(tmp_path / "a.pt", model, table=table))


@pytest.mark.parametrize("weights", [None, {}, {"x": 1}])
def test_weights_that_do_not_fit_are_one_sentence(model, tmp_path, weights):
    with pytest.raises(ValueError, match=r"a\.pt: its weights do not fit its table \("):
        load_detector(saved_as(tmp_path / "a.pt", model, model=weights))


@pytest.mark.parametrize("names", [None, 3, ["a", "b"], ["a", "b", 3], {"0": "a"}])
def test_names_that_do_not_fit_are_one_sentence(model, tmp_path, names):
    with pytest.raises(ValueError, match="its names are not the names of the 3 classes that its table has"):
        load_detector(saved_as(tmp_path / "a.pt", model, names=names))


def test_transfer_between_equals_carries_all_but_anchors(model, tiny_model):
    other = build_model(tiny_model, 3)
    other.set_anchors(other.anchors_px * 2)
    copied, wanted = transfer(other, model.state_dict())
    assert copied == wanted == len(model.state_dict()) - 1
    for key, value in other.state_dict().items():
        factor = 2 if key.endswith("anchors_px") else 1
        assert value.equal(model.state_dict()[key] * factor)


def test_transfer_to_other_classes_leaves_the_head(model, tiny_model):
    other = build_model(tiny_model, 5)
    head = {key: value.clone() for key, value in other.head.state_dict().items()}
    copied, wanted = transfer(other, model.state_dict())
    assert wanted - copied == 2 * len(other.strides)  # a weight and a bias per level
    assert all(value.equal(head[key]) for key, value in other.head.state_dict().items())
    assert other.layers[0].state_dict()["conv.weight"].equal(model.layers[0].state_dict()["conv.weight"])


def test_transfer_of_nothing(model):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert transfer(model, {})[0] == 0
    assert transfer(model, {"layers.0.conv.weight": torch.zeros(1), "foreign": torch.zeros(2)})[0] == 0
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())
