"""YOLOv9: the same numbers as its authors' code, and files in their layout, and nothing else."""

import copy
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from models import LossGains, build_loss, build_model
from models.assign.task_aligned import task_aligned
from models.detector import Detector
from models.heads import WithAuxiliary
from models.losses.distance import BELOW_LAST_BIN, DistanceLoss
from models.nms import non_max_suppression
from models.weights.external import unpickled_or_none
from models.weights.kestrel import external_reader, load_detector
from models.weights.transfer import transfer
from models.weights.yolov9 import load_yolov9, renamed
from tests.models.test_detector import randomize_statistics
from tests.support.yolov9 import (
    FIXTURES,
    narrow_table,
    rows_and_scores,
    stored_maps,
    stored_targets,
    to_authors_state,
)
from utils.nested import tensors_in

needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="../shared/fixtures/yolov9 is missing"
)
SIZES = {"t": ("v9_t", 80), "c_narrow": ("v9_c_narrow", 5)}
CASES = ("both", "one_empty", "all_empty")
NARROW = {"yolov9s": 0.25, "yolov9m": 0.125, "yolov9c": 0.125}


@cache
def authors_model(size: str) -> Detector:
    return load_detector(FIXTURES / f"{SIZES[size][0]}_synthetic.pt")[0]


def arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / f"{name}.npz") as stored:
        return dict(stored)


def terms_of(size: str, mode: str) -> dict[str, float]:
    return json.loads((FIXTURES / "losses.json").read_text())[SIZES[size][0]][mode]


def targets_of(size: str, case: str) -> Tensor:
    stored = arrays(f"assign_{size}")
    if f"{case}/targets" not in stored:  # all_empty
        return torch.zeros(0, 6)
    return stored_targets(stored[f"{case}/targets"])


# The authors' numbers


@pytest.mark.slow
@needs_fixtures
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_outputs_equal_those_of_its_authors(size):
    stored = arrays(f"forward_{size}")
    model = authors_model(size)
    pixels = torch.from_numpy(stored["images_u8_rgb"])
    images = pixels.permute(0, 3, 1, 2).float() / 255
    maps = model._run_rows(images, model.rows, model._freed_in_training)
    for which, row in (("main", model.head_position), ("aux", len(model.rows) - 1)):
        for given, expected in zip(maps[row], stored_maps(stored, which), strict=True):
            torch.testing.assert_close(given, expected, rtol=0, atol=2e-5)
        boxes, _ = model.head.decode(maps[row])
        expected = torch.from_numpy(stored[f"{which}_boxes_xyxy"])
        torch.testing.assert_close(boxes, expected, rtol=0, atol=1e-4)

    # What detects, before and after folding and merging.
    expected_boxes = torch.from_numpy(stored["main_boxes_xyxy"])
    expected_scores = torch.from_numpy(stored["main_scores"])
    for detector in (model, copy.deepcopy(model).fuse()):
        boxes, scores = detector.decode(detector(images))
        torch.testing.assert_close(boxes, expected_boxes, rtol=0, atol=1e-4)
        torch.testing.assert_close(scores, expected_scores, rtol=0, atol=1e-5)

    kinds = {"inference": (0.5, 0.5, 300), "low": (0.05, 0.5, 300), "validation": (1e-4, 0.7, 1000)}
    for kind, (confidence, iou, most) in kinds.items():
        if f"nms_{kind}_0" not in stored:
            continue
        found = non_max_suppression(
            boxes, scores, confidence=confidence, iou=iou, max_detections=most, multi_label=True
        )
        for image, detections in enumerate(found):
            # class, box, score
            theirs = torch.from_numpy(stored[f"nms_{kind}_{image}"]).float()
            ours = torch.cat([detections[:, 5:], detections[:, :5]], 1)
            assert len(ours) == len(theirs)
            distances = (ours[:, None] - theirs).abs().amax(2)
            assert not len(ours) or distances.amin(0).max() < 2e-4
            assert not len(ours) or distances.amin(1).max() < 2e-4


@needs_fixtures
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_assignment_and_terms_equal_those_of_its_authors(size, case):
    """In float64, like theirs: a target's score has the sixth power of an IoU."""
    forward, assigned = arrays(f"forward_{size}"), arrays(f"assign_{size}")
    expected = terms_of(size, "eval_mode_float64")[case]
    model = authors_model(size)
    criterion = build_loss(model.head, LossGains(), auxiliary=model.auxiliary_head).double()
    targets = targets_of(size, case).double()
    main, auxiliary = (
        [level.double() for level in stored_maps(forward, which)] for which in ("main", "aux")
    )
    raw = WithAuxiliary(main, auxiliary)
    for level in tensors_in(raw):
        level.requires_grad_()

    for which, loss, levels in zip(
        ("main", "aux"), (criterion.main, criterion.auxiliary), raw, strict=True
    ):
        gains = {"box": 7.5, "dfl": 1.5, "cls": 0.5}
        for name, term in loss(levels, targets).items():
            wanted = gains[name] * expected[f"{which}_{name}"]
            assert term.item() == pytest.approx(wanted, rel=1e-5)

        if f"{case}/{which}/target_row" in assigned:
            wanted_rows = torch.from_numpy(assigned[f"{case}/{which}/target_row"]).long()
            wanted_scores = torch.from_numpy(assigned[f"{case}/{which}/target_class_score"])
            slots = loss.assigned(levels, targets).slots
            rows = assigned[f"{case}/targets"].shape[1]
            given = rows_and_scores(slots, wanted_rows.shape, rows)
            assert given[0].equal(wanted_rows)
            torch.testing.assert_close(given[1], wanted_scores, rtol=0, atol=5e-6)

    terms = criterion(raw, targets)
    for name, term in terms.items():
        assert term.item() == pytest.approx(expected[f"weighted_{name}"], rel=1e-5)
    total = criterion.weighted_sum(terms)
    assert total.item() == pytest.approx(expected["total"], rel=1e-5)

    # The gradients by the raw maps.
    if f"{case}/grad_main_bins_0" in assigned:
        total.backward()
        for which, levels in zip(("main", "aux"), raw, strict=True):
            grads = {
                f"{which}_{part}_{i}": assigned[f"{case}/grad_{which}_{part}_{i}"]
                for part in ("bins", "classes")
                for i in range(3)
            }
            for level, wanted in zip(levels, stored_maps(grads, which), strict=True):
                torch.testing.assert_close(level.grad.float(), wanted, rtol=1e-4, atol=1e-6)


@needs_fixtures
def test_assignment_at_the_limits_equals_that_of_its_authors():
    """Three bins: boxes out of reach, without a point, equal twins, sides on points, padding."""
    stored = {name: torch.from_numpy(values) for name, values in arrays("assign_limits").items()}
    forward = arrays("forward_t")
    targets = stored_targets(stored["targets"].numpy())
    strides = torch.from_numpy(forward["strides"]).float().flatten()
    slots = task_aligned(
        stored["boxes_xyxy"],
        stored["classes"],
        torch.from_numpy(forward["points_xy"]).float(),
        targets,
        reach=strides * (3 - 1 - BELOW_LAST_BIN),
    )
    wanted = stored["target_row"].long()
    rows, scores = rows_and_scores(slots, wanted.shape, stored["targets"].shape[1])
    assert rows.equal(wanted)
    torch.testing.assert_close(scores, stored["target_class_score"], rtol=0, atol=5e-6)


@needs_fixtures
@pytest.mark.parametrize("size", SIZES)
def test_training_step_equals_that_of_its_authors(size):
    """In float64: what is left are the 2.6e-5 by which their gradients are rounded."""
    model = copy.deepcopy(authors_model(size)).double().train()
    pixels = torch.from_numpy(arrays(f"forward_{size}")["images_u8_rgb"])
    criterion = build_loss(model.head, LossGains(), auxiliary=model.auxiliary_head).double()
    raw = model(pixels.permute(0, 3, 1, 2).double() / 255)
    terms = criterion(raw, targets_of(size, "both").double())
    expected = terms_of(size, "training_mode_both_float64")
    total = criterion.weighted_sum(terms)
    assert total.item() == pytest.approx(expected["total"], rel=1e-5)

    total.backward()
    state = model.state_dict()
    for key, values in arrays(f"train_step_{size}").items():
        kind, _, name = key.partition("/")
        for ours, wanted in renamed(name, torch.from_numpy(values), model).items():
            given = model.get_parameter(ours).grad if kind == "grad" else state[ours]
            torch.testing.assert_close(given.to(wanted), wanted, rtol=1e-4, atol=3e-5, msg=key)


# The layout of files, without theirs


@pytest.fixture(
    scope="module",
    params=[
        "yolov9s",
        *(pytest.param(name, marks=pytest.mark.slow) for name in NARROW if name != "yolov9s"),
    ],
)
def model(request: pytest.FixtureRequest) -> Detector:
    torch.manual_seed(0)
    narrow = build_model(narrow_table(request.param, NARROW[request.param]), 4)
    return randomize_statistics(narrow).half().float().eval()


@cache
def narrow_s() -> Detector:
    """A model that no test changes, like its state."""
    torch.manual_seed(0)
    model = build_model(narrow_table("yolov9s", 0.125), 2)
    return randomize_statistics(model).half().float().eval()


@cache
def state_of_narrow_s() -> dict[str, Tensor]:
    return to_authors_state(narrow_s())


def assert_same_model(given: Detector, expected: Detector) -> None:
    state = expected.state_dict()
    assert given.state_dict().keys() == state.keys()
    assert all(value.equal(state[key]) for key, value in given.state_dict().items())


def save(path: Path, state: object) -> Path:
    torch.save(state, path)
    return path


@pytest.mark.slow
@torch.no_grad()
def test_published_layout_is_read(model, tmp_path):
    state = to_authors_state(model)
    images = torch.rand(1, 3, 64, 64)
    expected = model(images)
    found, saved = load_detector(save(tmp_path / "v9.pt", state))
    assert_same_model(found, model)
    assert saved["names"] == ["0", "1", "2", "3"]
    assert not found.training
    assert all(map(torch.equal, found(images), expected))

    # Without the auxiliary branch, as their own deployed models.
    main, _ = load_yolov9(save(tmp_path / "main.pt", without_auxiliary(state)))
    assert main.auxiliary_head is None
    assert all(map(torch.equal, main(images), expected))
    copied = transfer(found, saved["names"], main, saved["names"])
    assert (copied.classes, copied.share) == (4, 1.0)


def without_auxiliary(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if int(key.split(".")[0]) <= 22}


@pytest.mark.slow
def test_averaged_weights_of_lightning_are_read(tmp_path):
    """Of one size: the prefixes are removed before anything tells the sizes apart."""
    state = {key: value.float() for key, value in state_of_narrow_s().items()}
    state |= {key: value for key, value in state_of_narrow_s().items() if "batches" in key}
    both = {f"model.model.{key}": torch.zeros_like(value) for key, value in state.items()}
    both |= {f"ema.model.{key}": value for key, value in state.items()}
    checkpoint = {"epoch": 3, "state_dict": both, "optimizer_states": [{"state": {}}]}
    found, _ = load_yolov9(save(tmp_path / "epoch.ckpt", checkpoint))
    assert_same_model(found, narrow_s())

    raw = {f"model.model.{key}": value for key, value in state.items()}
    found, _ = load_yolov9(save(tmp_path / "raw.ckpt", {"state_dict": raw}))
    assert_same_model(found, narrow_s())


@pytest.mark.slow
def test_class_width_of_t_is_taken_from_the_tensors(tmp_path):
    """It is 80, where a new model of 80 classes has 128."""
    table = narrow_table("yolov9t", 0.25)
    for part in ("head", "auxiliary"):
        *rows, head = table[part]
        table[part] = [*rows, [*head[:3], ["nc", 16, 80]]]
    expected = build_model(table, 80).half().float().eval()
    found, names = load_yolov9(save(tmp_path / "t.pt", to_authors_state(expected)))
    assert_same_model(found, expected)
    assert names[:2] == ["person", "bicycle"]

    # Other classes keep the width, so that all but the rows of the classes is copied.
    tuned = build_model(found.table, 2)
    copied = transfer(tuned, ["cat", "new"], found, names)
    assert (copied.tensors, copied.classes) == (copied.total, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("4.conv1.conv.weight"), "1 of its tensors do not fit a YOLOv9 model"),
        (lambda s: s.update({"22.more": torch.ones(1)}), "1 of its tensors do not fit"),
        (
            lambda s: s.update({"backbone.0": torch.ones(1)}),
            "has a tensor backbone.0, which YOLOv9",
        ),
        (
            lambda s: s.update(state_of_narrow_s() | {"99.conv": torch.ones(1)}),
            "has a tensor 99.conv, which YOLOv9's",
        ),
        (
            lambda s: s["22.heads.1.anc2vec.anc2vec.weight"].flatten()[3].fill_(7),
            r"its 22\.heads\.1\.anc2vec\.anc2vec\.weight is not 0 to 15",
        ),
        (lambda s: s.update({"0.conv.weight": torch.ones(8)}), "no convolution 0.conv.weight"),
        (lambda s: s.pop("22.heads.0.anchor_conv.2.weight"), "has no convolution 22.heads.0.anch"),
        (lambda s: s["0.bn.bias"].fill_(torch.nan), "0.bn.bias has values that are not finite"),
        (
            lambda s: s.update({"22.heads.0.class_conv.2.weight": torch.ones(2_000_000, 1, 1, 1)}),
            "cannot be converted",
        ),
    ],
)
def test_other_tensors_are_refused(change, sentence, tmp_path):
    """In files without the auxiliary branch, which has half of the tensors, but for one."""
    main = without_auxiliary(state_of_narrow_s())
    state = {key: value.clone() for key, value in main.items()}
    change(state)
    file = save(tmp_path / "v9.pt", state)
    assert external_reader(unpickled_or_none(file)) is load_yolov9
    with pytest.raises(ValueError, match=sentence) as refused:
        load_yolov9(file)
    assert str(refused.value).startswith(str(file))


def test_other_files_are_not_taken_for_yolov9(tmp_path):
    raw_of_another = {"state_dict": {"ema.model.0.x": torch.ones(1)}}
    for content in ({"0.conv.weight": torch.ones(1)}, raw_of_another, [1]):
        file = save(tmp_path / "a.pt", content)
        assert external_reader(unpickled_or_none(file)) is not load_yolov9
    (tmp_path / "d.pt").write_bytes(b"no checkpoint")
    assert external_reader(unpickled_or_none(tmp_path / "d.pt")) is not load_yolov9


@pytest.mark.slow
def test_reach_of_the_published_bins():
    """14.99 strides, as the loss hands them to the assignment."""
    loss = build_loss(narrow_s().head, LossGains())
    reach = loss._reach(torch.tensor([[8.0], [32.0]]))
    torch.testing.assert_close(reach, torch.tensor([8 * 14.99, 32 * 14.99]))
    assert DistanceLoss((8, 16), 16)._reach(torch.ones(1, 1)) is None
