"""Settings that a loss does not use are named in the log, and change none of its terms."""

from dataclasses import asdict

import pytest
import torch

from models import build_model
from models.detector import Detector
from models.head_registry import HEADS, build_loss
from models.losses import LossGains
from tests.support.exporting import micro_table
from training.settings.groups import loss_gains
from training.settings.hyperparameters import Hyp

CHANGED = {
    "box": 0.1,
    "obj": 2.0,
    "cls": 1.0,
    "obj_pw": 2.0,
    "cls_pw": 2.0,
    "anchor_t": 3.0,
    "label_smoothing": 0.1,
    "fl_gamma": 1.5,
    "class_weights": (0.5, 3.0, 1.25),
}
TARGETS = torch.tensor([[0.0, 1, 8, 8, 40, 52], [0, 0, 30, 20, 62, 60]])
MODELS = {
    "yolov5n": "Detect",
    "yolox_nano": "DecoupledDetect",
    "yolo11n": "DistanceDetect",
    "yolo26n": "DualDistanceDetect",
    "micro": "SharedDistanceDetect",
    "yolov9t": "GroupedDistanceDetect",
}


def build(name: str) -> Detector:
    torch.manual_seed(0)
    table = micro_table(MODELS[name], "nc", True) if name == "micro" else name
    return build_model(table, 3).eval()


def test_every_head_is_tested():
    assert set(MODELS.values()) == set(HEADS)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_unused_settings_are_named_and_have_no_effect(name):
    model = build(name)
    raw = model(torch.rand(1, 3, 64, 64))
    uses = HEADS[MODELS[name]].loss.uses
    plain = build_loss(model.head, LossGains())(raw, TARGETS)
    for setting, value in CHANGED.items():
        lines: list[str] = []
        terms = build_loss(model.head, LossGains(**{setting: value}), lines.append)(raw, TARGETS)
        same = all(torch.equal(terms[term], plain[term]) for term in plain)
        assert (setting not in uses) == same, setting
        assert lines == (
            [f"the loss of this head does not use {setting}: no effect"] if same else []
        )


@pytest.mark.slow
def test_weight_of_a_single_class_has_no_effect_with_anchors():
    """YOLOv5's head has no class term for it; in others, objects weigh more than background."""
    for name in MODELS:
        table = micro_table(MODELS[name], "nc", True) if name == "micro" else name
        head = build_model(table, 1).head
        lines: list[str] = []
        build_loss(head, LossGains(class_weights=(2.0,)), lines.append)
        expected = ["the loss of this head does not use class_weights: no effect"]
        assert lines == (expected if name == "yolov5n" else [])


def test_defaults_and_names_are_those_of_hyper_parameter_files():
    """Gains relative to the defaults are 1 without a file."""
    assert loss_gains(Hyp(), 0.0) == LossGains()
    flags = {name: CHANGED[name] for name in ("label_smoothing", "class_weights")}
    changed = {name: value for name, value in CHANGED.items() if name not in flags}
    assert loss_gains(Hyp(**changed), **flags) == LossGains(**CHANGED)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_class_weights_of_one_change_nothing_and_other_numbers_are_refused(name):
    model = build(name)
    raw = model(torch.rand(1, 3, 64, 64))
    plain = build_loss(model.head, LossGains())(raw, TARGETS)
    ones = build_loss(model.head, LossGains(class_weights=(1.0, 1.0, 1.0)))(raw, TARGETS)
    for term in plain:
        torch.testing.assert_close(ones[term], plain[term], rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match=r"^2 class weights for 3 classes$"):
        build_loss(model.head, LossGains(class_weights=(1.0, 1.0)))


def test_changed_settings_are_named():
    assert LossGains().changed() == []
    assert LossGains(**CHANGED).changed() == [
        name for name in asdict(LossGains()) if name in CHANGED
    ]
