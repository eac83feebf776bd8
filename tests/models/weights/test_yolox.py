"""Checkpoints of YOLOX: the same outputs as its authors' code, and nothing else is accepted."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor

from models import build_model
from models.detector import Detector
from models.nms import non_max_suppression
from models.tables.find import load_model_table
from models.weights.coco_names import COCO_NAMES
from models.weights.external import unpickled_or_none
from models.weights.kestrel import external_reader, load_detector
from models.weights.yolox import load_yolox
from tests.support.boxes import to_xyxy
from tests.support.yolox import FIXTURES, SHARED, narrow_state, to_yolox_state
from utils.images.opencv import cv2

COCO128 = SHARED.parents[1] / "datasets" / "coco128"
needs_trained_weights = pytest.mark.skipif(
    not SHARED.is_dir(), reason="../shared/fixtures/yolox (YOLOX-Nano's weights) is missing"
)


def save(path: Path, state: object, **others: object) -> Path:
    torch.save({"model": state, "start_epoch": 300, **others}, path)
    return path


@pytest.fixture(params=["yolox_nano", "yolox_tiny"])
def model(request: pytest.FixtureRequest) -> Detector:
    torch.manual_seed(0)
    return build_model(request.param, 4).eval()


def narrow_model() -> Detector:
    """YOLOX at an eighth of the width, 5 classes."""
    table, _ = load_model_table("yolox_s")
    sizes = {"depth_multiple": 0.33, "width_multiple": 0.125}
    one_size = {key: value for key, value in table.items() if key != "scales"} | sizes
    return build_model(one_size, 5)


def test_outputs_of_random_weights_equal_those_of_its_authors(tmp_path):
    state = narrow_state(to_yolox_state(narrow_model()))
    model, saved = load_detector(save(tmp_path / "narrow.pth", state))
    assert len(saved["names"]) == model.num_classes == 5
    assert not model.training
    assert_outputs_equal(model, FIXTURES / "forward_narrow.npz")


@needs_trained_weights
def test_outputs_of_trained_weights_equal_those_of_its_authors():
    model, saved = load_detector(SHARED / "yolox_nano_coco.pth")
    assert len(saved["names"]) == model.num_classes == 80
    assert_outputs_equal(model, SHARED / "forward_nano.npz")


def assert_outputs_equal(model: Detector, file: Path) -> None:
    """The model gives the stored outputs for the stored images."""
    with np.load(file) as stored, torch.inference_mode():
        raw = model(torch.from_numpy(stored["images_u8_bgr"][:, ::-1].copy()).float() / 255)
        boxes, scores = model.decode(raw)
        expected, decoded = (torch.from_numpy(stored[key]) for key in ("raw", "decoded"))
    found = torch.cat([level.flatten(1, 2) for level in raw], 1)
    torch.testing.assert_close(found[..., :4], expected[..., :4], rtol=0, atol=1e-3)
    torch.testing.assert_close(found[..., 4:].sigmoid(), expected[..., 4:], rtol=0, atol=1e-4)
    torch.testing.assert_close(boxes, to_xyxy(decoded[..., :4]), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(scores, decoded[..., 4:5] * decoded[..., 5:], rtol=0, atol=1e-4)


@needs_trained_weights
def test_weights_trained_on_coco_have_its_names():
    _, names = load_yolox(SHARED / "yolox_nano_coco.pth")
    assert names == COCO_NAMES


@pytest.mark.parametrize("file", ["coco.yaml", "coco128.yaml"])
def test_coco_names_are_those_of_the_data(file):
    names = yaml.safe_load((Path(__file__).parents[3] / "data" / file).read_text())["names"]
    assert list(names.values() if isinstance(names, dict) else names) == COCO_NAMES


def test_written_state_is_read_back(model, tmp_path):
    path = save(tmp_path / "a.pth", to_yolox_state(model), optimizer={"state": {}})
    assert external_reader(unpickled_or_none(path)) is load_yolox
    loaded, names = load_yolox(path)
    assert names == ["0", "1", "2", "3"]
    assert loaded.table["nc"] == 4
    image = torch.rand(1, 3, 64, 96)
    with torch.inference_mode():
        for one, other in zip(loaded(image), model(image), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_state_alone_of_ddp_and_in_the_older_layout_are_read(tmp_path):
    state = to_yolox_state(narrow_model())
    torch.save(state, tmp_path / "alone.pth")
    save(tmp_path / "ddp.pth", {f"module.{key}": value for key, value in state.items()})
    expected = load_yolox(save(tmp_path / "a.pth", state))[0].state_dict()
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    for name in ("alone.pth", "ddp.pth", "old.pth"):
        found = load_detector(tmp_path / name)[0].state_dict()
        assert all(value.equal(expected[key]) for key, value in found.items())


@pytest.fixture(scope="module")
def nano_state() -> dict[str, torch.Tensor]:
    return to_yolox_state(build_model("yolox_nano", 4))


BN = "backbone.backbone.stem.conv.bn"
NO_CLASSES = "it has no convolution head.cls_preds.0.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda s: s | {"head.cls_preds.0.weight": s["head.cls_preds.0.weight"][:3]},
            "do not fit a YOLOX model",
        ),
        (lambda s: s | {"head.more.weight": torch.zeros(1)}, "do not fit a YOLOX model"),
        (lambda s: s | {"head.more.weight": torch.zeros(9, 0)}, "head.more.weight has no values"),
        (  # 3 x 6 x 6 values each in the model
            lambda s: (
                s | {"backbone.backbone.stem.conv.conv.weight": torch.zeros(1 << 10, 1, 1, 1)}
            ),
            "backbone.backbone.stem.conv.conv.weight is [1024, 1, 1, 1], expected [D, 12, 3, 3]",
        ),
        (
            lambda s: s | {"neck.weight": torch.zeros(1)},
            "a tensor neck.weight, which YOLOX's models do not have",
        ),
        (
            lambda s: {k: v for k, v in s.items() if not k.startswith("head.cls_preds.0")},
            NO_CLASSES,
        ),
        (lambda s: s | {"head.cls_preds.0.weight": torch.tensor(4.0)}, NO_CLASSES),
        (lambda s: s | {7: torch.zeros(1)}, "the name 7 of a tensor is not text"),
        (
            lambda s: s | {f"{BN}.running_var": -s[f"{BN}.running_var"]},
            "stem.conv.bn.running_v... has negative values",
        ),
        (
            lambda s: s | {"head.obj_preds.0.bias": torch.tensor([torch.nan])},
            "values that are not finite",
        ),
        (lambda s: s | {"head.obj_preds.0.bias": 7}, "something else where a tensor should be"),
        (
            lambda s: s | dict.fromkeys([f"head.{n}" for n in range(5000)], torch.zeros(1)),
            "more than 5000 tensors",
        ),
    ],
)
def test_other_states_are_refused(change, reason, nano_state, tmp_path):
    path = save(tmp_path / "a.pth", change(dict(nano_state)))
    with pytest.raises(ValueError, match=re.escape(reason)) as error:
        load_yolox(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [{}, {"model": []}, {"model": {"a": torch.zeros(1)}}, [1]])
def test_other_files_are_not_yolox(content, tmp_path):
    torch.save(content, tmp_path / "a.pth")
    assert external_reader(unpickled_or_none(tmp_path / "a.pth")) is not load_yolox
    assert external_reader(unpickled_or_none(tmp_path / "missing.pth")) is not load_yolox


def test_damaged_file_is_refused_in_one_sentence(nano_state, tmp_path):
    path = save(tmp_path / "a.pth", nano_state)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="without running it") as caught:
        load_yolox(path)
    reason = "is not a checkpoint that can be read without running it (File is not a zip file)"
    assert str(caught.value) == f"{path}: {reason}"


def top_left(image: np.ndarray, side: int) -> tuple[Tensor, float]:
    """The letterbox of YOLOX's authors, [1, 3, side, side] RGB in [0, 1], and its scale. image:
    BGR.
    """
    scale = side / max(image.shape[:2])
    height, width = (int(length * scale) for length in image.shape[:2])
    canvas = np.full((side, side, 3), 114, np.uint8)
    canvas[:height, :width] = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(
        canvas[None, :, :, ::-1].transpose(0, 3, 1, 2).copy()
    ).float() / 255, scale


@pytest.mark.slow
@needs_trained_weights
@pytest.mark.skipif(not COCO128.is_dir(), reason="../shared/datasets/coco128 is missing")
@pytest.mark.parametrize(("split", "expected"), [("val", 0.46061), ("test", 0.37867)])
def test_mean_average_precision_is_that_of_its_authors_code(split, expected):
    """416 px, confidence 0.001, IoU 0.65, 300 detections; by pycocotools. Kestrel's letterbox gives
    more (LOG.md).
    """
    model, _ = load_detector(SHARED / "yolox_nano_coco.pth")
    with redirect_stdout(io.StringIO()):
        truth = COCO(str(COCO128 / f"instances_{split}.json"))
        results = []
        for entry in truth.loadImgs(truth.getImgIds()):
            pixels, scale = top_left(
                cv2.imread(str(COCO128 / "images" / split / entry["file_name"])), 416
            )
            with torch.inference_mode():
                predictions = model.decode(model(pixels))
                (rows,) = non_max_suppression(
                    *predictions, confidence=0.001, iou=0.65, max_detections=300
                )
            for x1, y1, x2, y2, score, class_id in rows.tolist():
                box = [x1 / scale, y1 / scale, (x2 - x1) / scale, (y2 - y1) / scale]
                category = sorted(truth.getCatIds())[int(class_id)]
                results.append(
                    {"image_id": entry["id"], "category_id": category, "bbox": box, "score": score}
                )
        evaluator = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    assert evaluator.stats[0] == pytest.approx(expected, abs=0.002)
