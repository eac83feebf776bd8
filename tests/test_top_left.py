"""A model that takes images at the top left of the canvas, through every door: the same boxes from
val.py, detect.py, Python and an exported file, and from images that a test has placed itself.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest
import torch

import detect
import export
import train
import val
from models import load
from models.loading import load_backend
from models.nms import non_max_suppression
from models.tables.read import read_table
from tests.support.convolutions import images_convolved_alone
from tests.support.exporting import MICRO, NAMES, SIZE, lively_detector, save_checkpoint
from tests.support.launching import small_run_flags
from training import evaluation
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.images.letterbox import GRAY

CPU = torch.device("cpu")
SIZES = [(64, 40), (30, 64), (50, 50)]  # width, height; all are resized to 64 px
SETTINGS = {"confidence": 0.001, "iou": 0.6, "max_detections": 300}  # of val.py
FLAGS = ["--conf", "0.001", "--iou", "0.6", "--max-det", "300", "--save-json", "--nosave"]
# of each image and class: score, x, y, w, h; the best ones first
Rows = dict[tuple[str, int], np.ndarray]


@pytest.fixture(autouse=True)
def _one_thread_for_both() -> Iterator[None]:
    """val.py computes with all cores, detect.py shares them among its threads: that rounds in
    another way, and of many boxes another one is the last that is kept.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Three images with a box each, and their YAML."""
    root = tmp_path_factory.mktemp("data")
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    random = np.random.default_rng(0)
    for number, (width, height) in enumerate(SIZES):
        patches = random.integers(0, 255, (8, 8, 3)).astype(np.uint8)
        image = cv2.resize(patches, (width, height), interpolation=cv2.INTER_NEAREST)
        cv2.imwrite(str(root / "images" / f"{number}.png"), image)
        (root / "labels" / f"{number}.txt").write_text(f"{number} 0.5 0.5 0.4 0.4\n")
    file = root / "data.yaml"
    file.write_text(f"path: .\ntrain: images\nval: images\nnames: [{', '.join(NAMES)}]\n")
    return file


@pytest.fixture(scope="module")
def weights(tmp_path_factory, data) -> dict[str, Path]:
    """Checkpoints of the same weights, by their letterbox."""
    detector = lively_detector(read_table(MICRO))
    folder = tmp_path_factory.mktemp("weights")
    centered = save_checkpoint(folder / "center.pt", detector, data=str(data))
    detector.table["letterbox"] = "top_left"
    return {
        "center": centered,
        "top_left": save_checkpoint(folder / "corner.pt", detector, data=str(data)),
    }


@pytest.fixture(scope="module")
def exported(weights, data) -> Path:
    """The file of the corner's model, which was compared with torch on the data's images."""
    flags = ["--include", "torchscript", "--data", str(data), "--workers", "0"]
    export.run_script(["--weights", str(weights["top_left"]), *flags])
    return weights["top_left"].with_suffix(".torchscript")


def rows_of(folder: Path) -> Rows:
    """The rows of predictions.json."""
    found: dict[tuple[str, int], list[list[float]]] = {}
    for row in json.loads((folder / "predictions.json").read_text()):
        key = (row["file_name"], row["category_id"] - 1)
        found.setdefault(key, []).append([row["score"], *row["bbox"]])
    return {key: np.array(sorted(rows, reverse=True)) for key, rows in found.items()}


def assert_same(found: Rows, expected: Rows, atol: float = 1e-3) -> None:
    assert found.keys() == expected.keys()
    assert sum(map(len, expected.values())) > 20
    for key, rows in expected.items():
        np.testing.assert_allclose(found[key], rows, rtol=0, atol=atol)


@pytest.fixture
def rows_by(data, tmp_path):
    """rows_by(val, weights, ...): what val.py or detect.py writes."""

    def run(script: Any, weights: Path, *flags: str) -> Rows:
        paths = ["--project", str(tmp_path), "--name", script.__name__, "--exist-ok"]
        given = ["--weights", str(weights), "--device", "cpu", *paths, *flags]
        if script is detect:
            source = ["--source", str(data.parent / "images"), *FLAGS]
            detect.main(detect.parse_args([*given, *source]))
        else:
            own = ["--data", str(data), "--save-json", "--workers", "0", "--batch", "2"]
            with mock.patch.object(val, "draw_results"):
                val.main(val.parse_args([*given, *own])[0], World(CPU))
        return rows_of(tmp_path / script.__name__)

    return run


def by_hand(weights: Path, data: Path) -> Rows:
    """The boxes of the images at the top left of a canvas of SIZE x SIZE."""
    backend = load_backend(weights, CPU).backend
    found: Rows = {}
    for file in sorted((data.parent / "images").iterdir()):
        image = read_image(str(file))
        height, width = image.shape[:2]
        scale = SIZE / max(height, width)
        resized = cv2.resize(image, (round(width * scale), round(height * scale)))
        canvas = np.full((SIZE, SIZE, 3), GRAY, np.uint8)
        canvas[: resized.shape[0], : resized.shape[1]] = resized
        pixels = np.ascontiguousarray(canvas[..., ::-1].transpose(2, 0, 1)[None])
        boxes, scores, _ = backend.predict(torch.from_numpy(pixels) / 255)
        (rows,) = non_max_suppression(boxes, scores, **SETTINGS)
        corners = (rows[:, :4].double().numpy() / scale).clip(0, [width, height] * 2)
        sides = corners[:, 2:] - corners[:, :2]
        score = rows[:, 4:5].double().numpy()
        table = np.concatenate([score, corners[:, :2], sides], 1)
        for class_id in set(rows[:, 5].int().tolist()):
            own = table[rows[:, 5].numpy() == class_id].tolist()
            found[file.name, class_id] = np.array(sorted(own, reverse=True))
    return found


@images_convolved_alone()
def test_images_are_placed_as_by_hand(weights, data, rows_by):
    square = rows_by(detect, weights["top_left"], "--img", str(SIZE), str(SIZE))
    assert_same(square, by_hand(weights["top_left"], data), 0.02)  # rounded in the file
    assert_same(rows_by(val, weights["top_left"], "--square"), square)


@pytest.mark.slow
@images_convolved_alone()
def test_val_detect_and_python_find_the_same(weights, data, rows_by):
    """On rectangular canvases, which are larger than the images. The center finds other boxes."""
    found = rows_by(val, weights["top_left"])
    assert_same(rows_by(detect, weights["top_left"], "--batch", "2"), found)

    images = sorted((data.parent / "images").iterdir())
    detector = load(weights["top_left"], device="cpu", multi_label=True, **SETTINGS)
    for image, result in zip(images, detector(images), strict=True):
        for class_id in range(len(NAMES)):
            scores = np.sort(result.scores[result.class_ids == class_id])[::-1]
            expected = found.get((image.name, class_id), np.zeros((0, 5)))[:, 0]
            np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-3)

    with pytest.raises(AssertionError):
        assert_same(rows_by(val, weights["center"]), found)


@pytest.mark.slow
def test_exported_file_keeps_the_letterbox(exported, weights, rows_by):
    backend = load_backend(exported, CPU).backend
    assert (backend.letterbox, backend.canvas) == ("top_left", (SIZE, SIZE))
    expected = rows_by(val, weights["top_left"], "--square")
    assert_same(rows_by(val, exported), expected, 0.02)
    assert_same(rows_by(detect, exported), expected, 0.02)


def test_classes_are_added_to_a_model_that_is_validated_there(weights, data, tmp_path):
    """Only --add-classes trains such a model; after the epoch, and from best.pt."""
    new = data.with_name("new.yaml")
    new.write_text("path: .\ntrain: images\nval: images\nnames: [new, newer, newest]\n")
    words = f"--add-classes --weights {weights['top_left']} --batch 1 --nosave".split()
    flags = small_run_flags(new, "", tmp_path, *words)
    real = evaluation.detections_in_images
    with mock.patch.object(evaluation, "detections_in_images", wraps=real) as found:
        train.main(train.parse_args(flags)[0], World(CPU))
    placements = [placement for call in found.call_args_list for placement in call.args[2]]
    assert [placement.shift_xy.tolist() for placement in placements] == [[0, 0]] * 6


@pytest.mark.slow
@images_convolved_alone()
def test_test_time_augmentation_and_tiles_find_the_same(weights, rows_by):
    for flags in (["--augment"], ["--tile", "40", "--tile-overlap", "0.3"]):
        found = rows_by(val, weights["top_left"], *flags)
        assert_same(rows_by(detect, weights["top_left"], *flags), found)


def test_ensemble_of_both_is_refused_with_one_sentence(weights, rows_by):
    both = [str(weights["top_left"])]
    with pytest.raises(ValueError, match="must take images at the same place of the canvas"):
        rows_by(detect, weights["center"], "--weights", str(weights["center"]), *both)
