"""The pictures of the worst errors: which ones, what they show, where the boxes are, all sizes."""

from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from training.report import pictures
from training.report.pictures import choose, error_pictures
from utils.metrics.errors import error_kinds
from utils.metrics.records import Detections, GroundTruth

NAMES = ("cat", "dog")


def labels_of(folder: Path, number: int) -> SimpleNamespace:
    """Gray images of 200 x 100 px: what error_pictures needs of Labels."""
    for image_id in range(1, number + 1):
        cv2.imwrite(str(folder / f"{image_id}.png"), np.full((100, 200, 3), 128, np.uint8))
    ids = np.arange(1, number + 1)
    return SimpleNamespace(image_ids=ids, path=lambda index: str(folder / f"{index + 1}.png"))


def truth_of(rows: list[list[float]]) -> GroundTruth:
    """Rows: image, class, x, y, width, height."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    areas = table[:, 4] * table[:, 5]
    return GroundTruth(table[:, 0], table[:, 1], table[:, 2:], areas, np.zeros(len(table), bool))


def detections_of(rows: list[list[float]]) -> Detections:
    """Rows: image, class, x, y, width, height, score."""
    table = np.array(rows, np.float64).reshape(-1, 7)
    return Detections(table[:, 0], table[:, 1], table[:, 2:6], table[:, 6])


def made(labels, truth, detections):
    ids = labels.image_ids
    errors = error_kinds(truth, detections, image_ids=ids, class_ids=[0, 1])
    return error_pictures(errors, truth, detections, labels, NAMES)


def test_each_kind_of_error_has_its_picture_and_its_sentence(tmp_path):
    """One image for each kind, worked out by hand.

    Image 1: the cat's box, called a dog. 2: a cat, IoU 20 * 40 / (2 * 1600 - 800) = 1 / 3. 3: the
    second detection of a cat. 4: nothing there. 5: a cat and a dog are missed.
    """
    truth = truth_of(
        [
            [1, 0, 20, 20, 40, 40],
            [2, 0, 20, 20, 40, 40],
            [3, 0, 20, 20, 40, 40],
            [5, 0, 20, 20, 40, 40],
            [5, 1, 100, 20, 20, 20],
        ]
    )
    detections = detections_of(
        [
            [1, 1, 20, 20, 40, 40, 0.9],
            [2, 0, 40, 20, 40, 40, 0.8],
            [3, 0, 20, 20, 40, 40, 0.95],
            [3, 0, 22, 20, 40, 40, 0.7],
            [4, 0, 120, 50, 40, 40, 0.6],
            [4, 0, 10, 50, 40, 40, 0.5],
            [4, 0, 60, 10, 20, 20, 0.1],  # not confident: neither counted nor shown
        ]
    )
    found = {entry["kind"]: entry for entry in made(labels_of(tmp_path, 5), truth, detections)}
    assert {kind: "".join(entry["text"]) for kind, entry in found.items()} == {
        "classification": "dog 0.90, labeled cat",
        "localization": "cat 0.80, its label is elsewhere",
        "duplicate": "cat 0.70, found twice",
        "background": "cat 0.60, nothing is labeled; 1 more in this image",
        "missed": "1 × cat, 1 × dog",
    }
    assert found["classification"]["text"] == ["", "dog", " 0.90, labeled ", "cat", ""]
    assert found["classification"]["classes"] == [0, 1]
    assert found["classification"]["file"] == "1.png"

    # The box of 40 px with 24 px on each side is 88 px, shown in at least 128 x 96 px: from
    # x 40 - 64 < 0 and y 40 - 48 < 0, so from 0, 0. The picture is not enlarged.
    entry = found["classification"]
    assert (entry["width"], entry["height"]) == (128, 96)
    image = cv2.imdecode(np.frombuffer(entry["image"], np.uint8), cv2.IMREAD_COLOR)
    assert image.shape == (96, 128, 3)
    boxes = [(box["truth"], box["main"], box["box"].tolist()) for box in entry["boxes"]]
    assert boxes == [(True, True, [20, 20, 60, 60]), (False, True, [20, 20, 60, 60])]
    assert [box["title"] for box in entry["boxes"]] == ["label: cat", "detection 0.90: dog"]

    # the duplicate's picture marks both detections
    mains = [box["title"] for box in found["duplicate"]["boxes"] if box["main"]]
    assert mains == ["label: cat", "detection 0.95: cat", "detection 0.70: cat"]


def test_without_errors_or_images_there_are_no_pictures(tmp_path):
    nothing = truth_of([]), detections_of([])
    assert made(labels_of(tmp_path, 0), *nothing) == []
    right = truth_of([[1, 0, 9, 9, 9, 9]]), detections_of([[1, 0, 9, 9, 9, 9, 0.5]])
    assert made(labels_of(tmp_path, 1), *right) == []


def test_image_that_is_gone_is_left_out(tmp_path):
    labels = labels_of(tmp_path, 2)
    truth = truth_of([[1, 0, 9, 9, 9, 9], [2, 0, 9, 9, 9, 9]])
    (tmp_path / "1.png").unlink()
    assert [entry["file"] for entry in made(labels, truth, detections_of([]))] == ["2.png"]


@pytest.fixture
def many():
    """300 images, each with a missed object of class 0, and 5 of class 1 that rank last."""
    rows = [[image, 0, 9, 9, 20, 20] for image in range(1, 301)]
    rows += [[image, 1, 9, 9, 5, 5] for image in range(301, 306)]
    truth = truth_of(rows)
    nothing = detections_of([])
    return (
        truth,
        nothing,
        error_kinds(truth, nothing, image_ids=np.arange(1, 306), class_ids=[0, 1]),
    )


def test_rare_classes_have_pictures_too(many):
    truth, nothing, errors = many
    chosen = [picture.image_id for picture in choose(errors, truth, nothing)]
    assert chosen[:12] == [*range(1, 13)]
    assert chosen[12:] == [301, 302, 303, 304]  # four of class 1; class 0 has four in the first 12


def test_all_pictures_together_are_limited(many, tmp_path, monkeypatch):
    truth, nothing, errors = many
    monkeypatch.setattr(pictures, "MAX_PICTURES", 3)
    assert len(choose(errors, truth, nothing)) == 3
    labels = labels_of(tmp_path, 305)
    size = len(made(labels, truth, nothing)[0]["image"])
    monkeypatch.setattr(pictures, "MAX_BYTES", 2 * size * 4 / 3 + 1)
    assert len(made(labels, truth, nothing)) == 2
