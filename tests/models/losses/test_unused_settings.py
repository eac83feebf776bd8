"""Settings that a loss does not use are named in the log, and change none of its terms."""

import pytest
import torch

from models import build_model
from models.heads.registry import HEADS, build_loss
from models.losses import SETTINGS, LossGains
from training.settings.hyperparameters import Hyp

CHANGED = {
    "box": 0.1,
    "obj": 2.0,
    "cls": 1.0,
    "obj_pos_weight": 2.0,
    "cls_pos_weight": 2.0,
    "ratio_limit": 3.0,
    "label_smoothing": 0.1,
    "focal_gamma": 1.5,
}
TARGETS = torch.tensor([[0.0, 1, 8, 8, 40, 52], [0, 0, 30, 20, 62, 60]])
MODELS = {
    "yolov5n": "Detect",
    "yolox_nano": "DecoupledDetect",
    "yolo11n": "DistanceDetect",
    "yolo26n": "DualDistanceDetect",
}


def test_every_head_is_tested():
    assert set(MODELS.values()) == set(HEADS)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_unused_settings_are_named_and_have_no_effect(name):
    torch.manual_seed(0)
    model = build_model(name, 3).eval()
    raw, unused = model(torch.rand(1, 3, 64, 64)), HEADS[MODELS[name]].loss.unused
    plain = build_loss(model.head, LossGains())(raw, TARGETS)
    for setting, value in CHANGED.items():
        lines: list[str] = []
        terms = build_loss(model.head, LossGains(**{setting: value}), lines.append)(raw, TARGETS)
        same = all(torch.equal(terms[term], plain[term]) for term in plain)
        written = SETTINGS.get(setting, setting)
        assert (written in unused) == same, setting
        assert lines == (
            [f"the loss of this head does not use {written}: no effect"] if same else []
        )


def test_defaults_are_those_of_hyper_parameter_files():
    """Gains relative to the defaults are 1 without a file."""
    assert LossGains(**Hyp().loss()) == LossGains()
    changed = {
        SETTINGS.get(name, name): value
        for name, value in CHANGED.items()
        if name != "label_smoothing"
    }
    assert LossGains(**Hyp(**changed).loss()) == LossGains(**CHANGED | {"label_smoothing": 0.0})


def test_changed_settings_have_the_names_of_files_and_flags():
    assert LossGains().changed() == {}
    assert LossGains(**CHANGED).changed() == {
        SETTINGS.get(name, name): value for name, value in CHANGED.items()
    }
