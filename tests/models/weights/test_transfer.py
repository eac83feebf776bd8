"""Copying weights between models, and reordering classes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from models import build_model
from models.detector import Detector
from models.weights.transfer import transfer

TABLES = Path(__file__).parents[2] / "tables"


@pytest.fixture
def model(tiny_model: str) -> Detector:
    torch.manual_seed(0)
    return build_model(tiny_model, 3)


ABC = ["a", "b", "c"]


def outputs(detector: Detector, level: int = 0) -> torch.Tensor:
    """Return the weights of one level's output convolution: [anchors, 5 + classes, channels, 1,
    1].
    """
    weight = detector.head.m[level].weight.detach()
    return weight.view(3, -1, *weight.shape[1:])


def test_transfer_between_equal_models_copies_all_but_anchors(model, tiny_model):
    other = build_model(tiny_model, 3)
    other.head.set_anchors(other.head.anchors_px * 2)
    tensors = len(model.state_dict()) - 1
    assert transfer(other, ABC, model, ABC) == (tensors, tensors, 3, 1.0)
    for key, value in other.state_dict().items():
        factor = 2 if key.endswith("anchors_px") else 1
        assert value.equal(model.state_dict()[key] * factor)


def test_anchor_based_transfer_matches_classes_by_name(model, tiny_model):
    other = build_model(tiny_model, 4)
    fresh = [outputs(other, level).clone() for level in range(3)]
    copied, total, classes, _ = transfer(other, ["c", "new", "a", "newer"], model, ABC)
    assert (copied, classes) == (total, 2)
    for level in range(3):
        ours, theirs = outputs(other, level), outputs(model, level)
        assert ours[:, :5].equal(theirs[:, :5])  # box and objectness
        assert ours[:, 5].equal(theirs[:, 5 + 2])
        assert ours[:, 7].equal(theirs[:, 5])
        assert ours[:, [6, 8]].equal(fresh[level][:, [6, 8]])
    biases = [m.bias.detach().view(3, -1) for m in (other.head.m[0], model.head.m[0])]
    assert biases[0][:, [5, 7]].equal(biases[1][:, [7, 5]])
    assert (
        other.layers[0]
        .state_dict()["conv.weight"]
        .equal(model.layers[0].state_dict()["conv.weight"])
    )


def test_transfer_to_different_anchor_count_leaves_head_unchanged(model, tiny_model):
    other = build_model(tiny_model, 3, anchors=2)
    head = {key: value.clone() for key, value in other.head.state_dict().items()}
    copied, total, classes, _ = transfer(other, ABC, model, ABC)
    assert (total - copied, classes) == (2 * 3, 0)  # a weight and a bias per level
    assert all(value.equal(head[key]) for key, value in other.head.state_dict().items())


@pytest.mark.slow
def test_class_outputs_without_common_classes_are_not_counted():
    given, model = build_model("yolox_nano", 3), build_model("yolox_nano", 2)
    copied, total, classes, _ = transfer(model, ["x", "y"], given, ABC)
    assert (total - copied, classes) == (
        3 * 2,
        0,
    )  # three levels, each with a weight and a bias of the classes


def test_class_biases_are_not_copied_without_their_weights():
    """With 80 classes YOLOv8n's class branches have 80 channels, with 3 classes 64: their
    convolutions do not fit.
    """
    given, model = build_model("yolov8n", 80), build_model("yolov8n", 3)
    for number, detector in enumerate((given, model)):
        for value in detector.state_dict().values():
            value.fill_(number)
    copied, total, classes, _ = transfer(model, ABC, given, [*ABC, *map(str, range(77))])
    assert classes == 0
    state = model.state_dict()
    assert state["layers.22.branches.sides.0.2.bias"].eq(0).all()
    unfit = {key for key, value in state.items() if value.ne(0).any()}
    assert all(key.startswith("layers.22.branches.classes.") for key in unfit)
    # three levels, each with two layers of a convolution and a BatchNorm of 5, and an output
    # convolution of 2
    assert len(unfit) == 3 * (2 * 6 + 2) == total - copied


def test_wider_model_gives_no_tensor():
    """Counters of BatchNorm have no channels and would fit; they go with their convolutions."""
    given, model = build_model("yolov5s", 3), build_model("yolov5n", 3)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for counter in (
        value for key, value in given.state_dict().items() if key.endswith("num_batches_tracked")
    ):
        counter.fill_(7)
    copied, total, classes, _ = transfer(model, ABC, given, ABC)
    assert (copied, total, classes) == (0, len(before) - 1, 0)  # the anchors are not counted
    assert all(value.equal(before[key]) for key, value in model.state_dict().items())


def test_batch_norm_is_not_copied_without_its_convolution(model, tiny_model):
    other = build_model(tiny_model, 3)
    conv = model.layers[0].conv
    model.layers[0].conv = nn.Conv2d(conv.in_channels, conv.out_channels, 5)
    for value in (model.layers[0].bn.running_mean, model.layers[1].conv.weight.data):
        value.fill_(9)
    transfer(other, ABC, model, ABC)
    assert other.layers[0].bn.running_mean.eq(0).all()
    assert other.layers[1].conv.weight.eq(9).all()


def test_transfer_to_different_model_copies_matching_tensors(model, tiny_model):
    other = build_model(tiny_model, 3)
    other.layers[0] = nn.Identity()
    model.layers[1] = nn.Identity()
    copied, total, _, _ = transfer(other, ABC, model, ABC)
    assert 0 < copied < total
    assert copied == len(other.state_dict().keys() & model.state_dict().keys()) - 1


def test_share_counts_values():
    """Of two classes one is new: on each of three levels a row of 64 weights and a bias of the
    class outputs.
    """
    given, model = build_model("yolox_nano", 3), build_model("yolox_nano", 2)
    result = transfer(model, ["b", "x"], given, ABC)
    total = sum(value.numel() for value in model.state_dict().values())
    assert result.share == pytest.approx(1 - 3 * 65 / total, abs=1e-9)
    assert (result.tensors, result.classes) == (result.total, 1)


def test_small_tensors_do_not_make_trained_weights():
    """Most layers of an equal name have the same shape, but they are the small ones."""
    given, model = build_model("yolox_nano", 3), build_model("yolov5n", 3)
    result = transfer(model, ABC, given, ABC)
    assert result.tensors > result.total / 2
    assert result.share < 0.5
