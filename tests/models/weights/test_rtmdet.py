"""Checkpoints of RTMDet: every tensor has its place, and nothing else is accepted."""

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.weights.coco_names import COCO_NAMES
from models.weights.external import state_entries, unpickled_or_none
from models.weights.kestrel import external_reader, load_detector
from models.weights.rtmdet import (
    Contents,
    _class_names,
    _is_exponential,
    _name_in_first_level,
    _renamed,
    _renamed_state,
    _without_repeats,
    load_rtmdet,
)
from tests.support.rtmdet import DEPTHS, FIXTURES, rtmdet_shapes, rtmdet_state, save_rtmdet
from utils.files.pickled import open_saved

needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="../shared/fixtures/rtmdet is missing"
)
SHARED = "bbox_head.cls_convs.0.0.conv.weight"


# ------------------------------------------------------------------------------------- names


@needs_fixtures
@pytest.mark.parametrize(("size", "width"), [("tiny", 24), ("s", 32), ("m", 48), ("l", 64)])
def test_each_tensor_of_the_published_sizes_has_one_place(size, width):
    with gzip.open(FIXTURES / "state_dict_shapes.json.gz") as file:
        listed = json.load(file)[size]
    shapes = {key: tuple(shape) for key, _, shape in listed}
    assert shapes == rtmdet_shapes(width, *DEPTHS[size], 80)

    distinct = [key for key in shapes if _name_in_first_level(key) == key]
    assert len(shapes) - len(distinct) == 8
    assert len({_renamed(key) for key in distinct}) == len(distinct)


def test_state_is_renamed_with_the_channels_of_images_in_other_order():
    state = rtmdet_state()
    renamed = _renamed_state(state)
    assert renamed["layers.1.conv.weight"].equal(state["backbone.stem.0.conv.weight"].flip(1))
    assert renamed["layers.30.classes.convs.0.weight"].equal(state[SHARED])
    assert len(renamed) == len(state) - 8
    assert _renamed_state({}) == {}


@pytest.mark.parametrize(
    "key",
    ["head.x", "bbox_head.rtm_cls.0", "bbox_head.scales.0", "bbox_head.cls_convs.1.0.conv.bias"],
)
def test_unknown_tensors_are_refused(key):
    with pytest.raises(ValueError, match=f"it has a tensor {re.escape(key[:20])}.*do not have"):
        _renamed(key)


# ------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("zipped", [True, False])
def test_averaged_weights_are_read_and_shared_ones_once(tmp_path, zipped):
    """`ema_state_dict` holds others. The file has each shared convolution once."""
    state = rtmdet_state()
    path = save_rtmdet(tmp_path / "epoch_300.pth", state, zipped=zipped)
    assert external_reader(unpickled_or_none(path)) is load_rtmdet
    with open_saved(path) as saved:
        entries = state_entries(saved.unpickled(), "state_dict")
        assert entries.keys() == state.keys()
        assert len(_without_repeats(entries)) == len(state) - 8


def test_separate_convolutions_of_the_levels_are_compared():
    state = rtmdet_state()
    repeat = SHARED.replace(".0.0.", ".2.0.")
    same = state | {repeat: state[SHARED].clone()}
    assert _renamed_state(same).keys() == _renamed_state(state).keys()
    for wrong in (state | {repeat: state[SHARED] + 1}, {repeat: state[SHARED]}):
        with pytest.raises(ValueError, match="the levels of its head must share convolutions"):
            _renamed_state(wrong)


@pytest.fixture(scope="module")
def tiny() -> dict[str, Tensor]:
    return rtmdet_state()


def without(part: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(part)}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda s: without("neck.", without("bbox_head.", s)),
            "is not a detector, it has no tensors neck.*: files of a backbone",
        ),
        (lambda s: without("bbox_head.", s), "is not a detector, it has no tensors bbox_head.*"),
        (
            lambda s: s | {"bbox_head.rtm_kernel.0.bias": torch.zeros(1)},
            "is a model for instance segmentation; only detection models can be used",
        ),
        (
            lambda s: s | {"bbox_head.rtm_ang.0.bias": torch.zeros(1)},
            "is a model for oriented boxes; only detection models can be used",
        ),
        (
            lambda s: s | {"backbone.stage5.0.conv.weight": torch.zeros(1)},
            "is a P6 model of RTMDet; only models of three levels can be used",
        ),
        (
            lambda s: s | {"bbox_head.rtm_obj.0.bias": torch.zeros(1)},
            "is an RTMDet with an objectness output; only models without one can be used",
        ),
        (lambda s: without("bbox_head.rtm_cls", s), "has no convolution bbox_head.rtm_cls.0.wei"),
        (
            lambda s: without("backbone.stage2.1.blocks", s),
            "a first convolution of 2 channels and 0 blocks in the second stage are no published",
        ),
        (
            lambda s: s | {"bbox_head.rtm_cls.0.bias": torch.tensor([torch.nan, 0])},
            "bbox_head.rtm_cls.0.bias has values that are not finite",
        ),
        (lambda s: s | {"neck.x": 7}, "something else where a tensor should be"),
        (lambda s: s | {7: torch.zeros(1)}, "the name 7 of a tensor is not text"),
    ],
)
def test_other_states_are_refused(change, reason, tiny, tmp_path, zipped):
    path = tmp_path / "a.pth"
    torch.save({"state_dict": change(tiny)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        load_detector(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [{}, {"state_dict": 7}, {"state_dict": {}}, [1], {"meta": {}}])
def test_other_files_are_not_rtmdet(content, tmp_path):
    torch.save(content, tmp_path / "a.pth")
    assert external_reader(unpickled_or_none(tmp_path / "a.pth")) is not load_rtmdet
    assert external_reader(unpickled_or_none(tmp_path / "missing.pth")) is not load_rtmdet


def test_truncated_file_is_refused_in_one_sentence(tiny, tmp_path):
    """The pickles of the older layout are at its start, so that it is known what it was."""
    path = save_rtmdet(tmp_path / "a.pth", tiny, zipped=False)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError) as caught:
        load_detector(path)
    reason = "(it is truncated, or claims more values than it has)"
    assert str(caught.value).endswith(
        f"is not a checkpoint that can be read without running it {reason}"
    )


# ------------------------------------------------------------------------------------- distances


def contents(width: int, many: int, config: str = "") -> Contents:
    few = max(1, many // 2)
    return Contents(rtmdet_state(width, few, many), config)


@pytest.mark.parametrize(
    ("width", "many", "config", "exponential"),
    [
        (24, 1, "", False),  # tiny
        (8, 2, "", False),  # the depth of s
        (8, 4, "", True),  # of m
        (8, 6, "model = dict(type='RTMDet')", True),  # of l
        (4, 1, "bbox_head=dict(exp_on_reg=True, with_objectness=False)", True),
        (4, 4, "bbox_head=dict(exp_on_reg = False)", False),
        (4, 3, "{'exp_on_reg': True}", True),
        (4, 1, "exp_on_reg=True, exp_on_reg=False", False),  # contradictory: not used
        (4, 1, "my_exp_on_reg=True exp_on_reg=Truest exp_on_reg=__import__('os')", False),
    ],
)
def test_distances_are_told_by_the_configuration_or_the_size(width, many, config, exponential):
    assert _is_exponential(contents(width, many, config)) is exponential


@pytest.mark.parametrize(("width", "many"), [(4, 3), (24, 4)])
def test_no_published_size_without_configuration_is_refused(width, many):
    with pytest.raises(ValueError, match="does not state exp_on_reg=True or False"):
        _is_exponential(contents(width, many))


# ------------------------------------------------------------------------------------- names


def test_class_names_are_those_of_the_data_set_else_of_coco_else_numbers():
    assert _class_names(("disc", "bar"), 2) == ["disc", "bar"]
    assert _class_names(None, 80) == COCO_NAMES
    assert _class_names(None, 2) == ["0", "1"]


def nested_lists(depth: int) -> list:
    """A list of 2**depth lists, in the memory of `depth`."""
    nested: list = []
    for _ in range(depth):
        nested = [nested, nested]
    return nested


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["a"], "its dataset_meta has 1 class names for 2 classes"),
        ("ab", "its dataset_meta has no list of class names for 2 classes"),
        (["a", 7], "its dataset_meta has a class name that is no text"),
        (["a", nested_lists(60)], "its dataset_meta has a class name that is no text"),
        (["a", ""], "the class name  is not printable text"),
        (["a", "\x1b[2J"], r"the class name \\x1b[2J is not printable text"),
        (["a", "b" * 1001], "is not printable text"),
    ],
)
def test_unusable_class_names_are_refused(given, reason):
    with pytest.raises(ValueError, match=re.escape(reason).replace(r"\\\\", r"\\")):
        _class_names(given, 2)


# ------------------------------------------------------------------------------------- digits


def with_digits(path: Path, digits: str) -> Path:
    return path.rename(path.with_name(f"rtmdet_own-{digits}.pth"))


def test_digits_in_the_name_are_compared(tiny, tmp_path):
    path = save_rtmdet(tmp_path / "a.pth", without("neck.", tiny), zipped=False)
    found = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    path = with_digits(path, "0123abcd")
    with pytest.raises(ValueError) as caught:
        load_detector(path)
    assert str(caught.value) == (
        f"{path}: its name says that its SHA-256 begins with 0123abcd, but it begins with {found}: "
        "the file is damaged or was changed. If the digits in its name mean something else, rename "
        "it"
    )

    # The digits agree, or are a date: it is refused for what it is.
    for digits in (found, "20261127"):
        path = with_digits(path, digits)
        with pytest.raises(ValueError, match="is not a detector"):
            load_detector(path)


# ------------------------------------------------------------------------------------- models


def test_configuration_is_not_executed(tiny, tmp_path):
    """mmengine's configurations are Python."""
    made = tmp_path / "made"
    config = f"open({str(made)!r}, 'w').close()\nbbox_head = dict(exp_on_reg=True)\n"
    path = save_rtmdet(tmp_path / "mine.pth", tiny, meta={"cfg": config})
    assert load_detector(path)[0].head.exponential
    assert not made.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_detector_of_a_users_own_checkpoint(tiny, tmp_path, zipped):
    meta = {"cfg": "exp_on_reg=True", "dataset_meta": {"classes": ("disc", "bar")}}
    path = save_rtmdet(tmp_path / "epoch_300.pth", tiny, zipped=zipped, meta=meta)
    model, saved = load_detector(path)
    assert saved["names"] == ["disc", "bar"]
    assert not model.training
    assert model.head.exponential
    assert model.table["letterbox"] == "top_left"
    assert model.table["width_multiple"] == 4 / 64
    key = "layers.12.m.0.cv2.pconv.conv.weight"
    assert model.state_dict()[key].equal(
        tiny["backbone.stage4.2.blocks.0.conv2.pointwise_conv.conv.weight"]
    )


@needs_fixtures
@pytest.mark.parametrize(
    ("file", "stored"),
    [
        ("rtmdet_tiny_narrow.pth", "forward_tiny_narrow.npz"),
        ("rtmdet_m_narrow_2022_layout.pth", "forward_m_narrow.npz"),
    ],
)
def test_outputs_equal_those_of_its_authors(file, stored):
    model, saved = load_detector(FIXTURES / file)
    assert saved["names"] == ["box", "disc", "cross", "ring", "bar"]
    with np.load(FIXTURES / stored) as arrays, torch.inference_mode():
        expected: dict[str, Any] = {key: torch.from_numpy(arrays[key]) for key in arrays}
        images = expected["images_u8_bgr"].flip(1).float() / 255
        raw = model(images)
        boxes, scores = model.decode(raw)
    for level, values in enumerate(raw):
        logits = values[..., 4:].permute(0, 3, 1, 2)
        torch.testing.assert_close(logits, expected[f"cls_{level}"], rtol=0, atol=5e-5)
    torch.testing.assert_close(boxes, expected["boxes_xyxy"], rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(scores, expected["scores"], rtol=0, atol=1e-5)


@needs_fixtures
def test_files_of_both_layouts_hold_the_same_weights():
    states = []
    for name in ("rtmdet_m_narrow.pth", "rtmdet_m_narrow_2022_layout.pth"):
        with open_saved(FIXTURES / name) as saved:
            states.append(_without_repeats(state_entries(saved.unpickled(), "state_dict")))
    assert states[0].keys() == states[1].keys()
    assert len(states[0]) == 684
