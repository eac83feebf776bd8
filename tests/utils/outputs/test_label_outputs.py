"""Label files of detections: rows as val.py writes them, for images and frames of videos."""

import numpy as np
import pytest

from tests.support.detected import drawn_frame, found_boxes
from utils.metrics.label_files import write_label_files
from utils.metrics.records import Detections
from utils.outputs.label_files import VOC, LabelFiles

BOXES, CLASSES = [[10, 10, 30, 20], [0, 0, 64, 48]], [2, 0]


def read_all(folder):
    return {str(f.relative_to(folder)): f.read_text() for f in sorted(folder.rglob("*.txt"))}


def test_yolo_rows_by_hand(tmp_path):
    output = LabelFiles(tmp_path, scores=True)
    output.write(drawn_frame("b/a.jpg"), found_boxes(BOXES, CLASSES))  # 64 x 48
    # 20 / 64 = 0.3125, 15 / 48 = 0.3125, 20 / 64 = 0.3125, 10 / 48 = 0.208333
    text = "2 0.3125 0.3125 0.3125 0.208333 0.9\n0 0.5 0.5 1 1 0.89\n"
    assert read_all(tmp_path) == {"labels/b/a.txt": text}


def test_voc_rows_by_hand(tmp_path):
    LabelFiles(tmp_path, text_format=VOC).write(
        drawn_frame(), found_boxes([[10.25, 1, 30, 20]], [3])
    )
    assert read_all(tmp_path) == {"labels/a.txt": "3 10.25 1 30 20\n"}


def test_rows_equal_those_of_val(tmp_path):
    random = np.random.default_rng(0)
    low = random.uniform(0, 30, (9, 2))
    boxes = np.concatenate([low, low + random.uniform(0, 15, (9, 2))], 1)
    found = found_boxes(boxes.tolist(), range(9))
    LabelFiles(tmp_path, scores=True).write(drawn_frame("a.jpg"), found)
    xywh = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
    rows = Detections(np.ones(9), found.class_ids, xywh, found.scores)
    size = np.array([[64, 48]], np.int32)
    write_label_files(tmp_path / "val", rows, ["x/a.jpg"], np.array([1]), size, scores=True)
    assert (tmp_path / "labels/a.txt").read_bytes() == (tmp_path / "val/a.txt").read_bytes()


def test_image_without_detections_has_an_empty_file(tmp_path):
    LabelFiles(tmp_path).write(drawn_frame(), found_boxes())
    LabelFiles(tmp_path, text_format=VOC, scores=True).write(drawn_frame("b.jpg"), found_boxes())
    assert read_all(tmp_path) == {"labels/a.txt": "", "labels/b.txt": ""}


def test_frames_and_equal_stems_have_files_of_their_own(tmp_path):
    output = LabelFiles(tmp_path)
    for frame in (
        drawn_frame("c.mp4", 1),
        drawn_frame("c.mp4", 12),
        drawn_frame("a.jpg"),
        drawn_frame("a.png"),
    ):
        output.write(frame, found_boxes())
    output.write(drawn_frame("c_1.jpg"), found_boxes())
    output.write(drawn_frame("../ä\n.jpg"), found_boxes())
    output.close()
    files = {
        "labels/c_1.txt",
        "labels/c_12.txt",
        "labels/a.txt",
        "labels/a.png.txt",
        "labels/c_1.jpg.txt",
    }
    assert set(read_all(tmp_path)) == files | {"labels/_/ä_.txt"}


def test_unknown_format_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"^--save-format 2: choose 0 \(YOLO\) or 1 \(VOC\)$"):
        LabelFiles(tmp_path, text_format=2)
