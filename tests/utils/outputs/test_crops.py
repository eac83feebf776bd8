"""Crops of detections: their pixels, and folder names made from any class name."""

import os

import cv2
import numpy as np
import pytest

from tests.support.detected import drawn_frame, found_boxes
from utils.images.detections import Frame
from utils.outputs.crops import Crops, class_folders, cut_out


def files(folder):
    return sorted(str(file.relative_to(folder / "crops")) for file in folder.rglob("*.jpg"))


def test_crop_has_the_pixels_of_the_image(tmp_path):
    image = np.zeros((48, 64, 3), np.uint8)
    image[8:24, 16:48] = (200, 100, 20)  # blue, green, red
    Crops(tmp_path, ["cat"]).write(Frame(image, "", "b/a.png"), found_boxes([[16, 8, 48, 24]]))
    crop = cv2.imread(str(tmp_path / "crops/cat/b/a.jpg"))
    assert crop.shape == (16, 32, 3)
    assert np.abs(crop.astype(int) - [200, 100, 20]).max() <= 3


def test_crops_of_one_image_are_numbered_per_class(tmp_path):
    output = Crops(tmp_path, ["cat", "dog"])
    output.write(drawn_frame("a.jpg"), found_boxes([[0, 0, 9, 9]] * 4, [0, 1, 0, 0]))
    output.write(drawn_frame("a_2.jpg"), found_boxes([[0, 0, 9, 9]]))
    output.write(drawn_frame("c.mp4", 3), found_boxes([[0, 0, 9, 9]], [9]))
    output.write(drawn_frame("b.jpg"), found_boxes())
    output.close()
    numbered = [
        "cat/a.jpg",
        "cat/a_2.jpg",
        "cat/a_2_2.jpg",
        "cat/a_3.jpg",
        "class_9/c_3.jpg",
        "dog/a.jpg",
    ]
    assert files(tmp_path) == numbered


def test_empty_boxes_are_left_out(tmp_path):
    boxes = [
        [5, 5, 5, 20],
        [5, 5, 20, 5],
        [9, 9, 3, 3],
        [100, 0, 200, 9],
        [np.nan, 0, 9, 9],
        [-9, -9, -1, -1],
    ]
    Crops(tmp_path, ["cat"]).write(drawn_frame(), found_boxes(boxes))
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("box", "shape"),
    [([-5, -5, 3, 2.5], (3, 3)), ([62.5, 47, 99, 99], (1, 2)), ([3.2, 3.2, 3.4, 3.4], (1, 1))],
)
def test_crops_are_clipped_to_the_image(box, shape):
    assert cut_out(np.zeros((48, 64, 3), np.uint8), np.array(box, np.float64)).shape[:2] == shape


ODD = [
    "..",
    "../../etc",
    "/abs",
    "a/b",
    "a\\b",
    "nul\0",
    "NUL",
    "con.x",
    "",
    " ",
    ".",
    "x" * 300,
    "ä\n",
    "C:",
    "a*?",
]


def test_odd_class_names_become_folders_inside_crops(tmp_path):
    (tmp_path / "run").mkdir()
    output = Crops(tmp_path / "run", ODD)
    output.write(drawn_frame("../a.jpg"), found_boxes([[0, 0, 9, 9]] * len(ODD), range(len(ODD))))
    folders = class_folders(ODD)
    assert files(tmp_path / "run") == sorted(f"{folder}/_/a.jpg" for folder in folders)
    assert os.listdir(tmp_path) == ["run"]
    assert os.listdir(tmp_path / "run") == ["crops"]
    assert not [
        folder for folder in folders if folder.startswith(".") or folder != folder.strip(" .")
    ]
    assert not [folder for folder in folders if set('/\\:*?"<>|\0\n') & set(folder)]


def test_class_folders_differ_even_without_case():
    names = ["cat", "Cat", "CAT", "cat_1", "a/b", "a_b", "é", "e\u0301", "ß", "ss", "", "class_10"]
    folders = class_folders(names)
    assert len({folder.casefold() for folder in folders}) == len(names)
    assert folders[:4] == ["cat", "Cat_1", "CAT_2", "cat_1_3"]
    assert class_folders([]) == []
