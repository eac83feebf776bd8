"""data/formats/yolo_values.py: rows of keypoints, polygons, and boxes with a sixth value."""

import re

import cv2
import numpy as np
import pytest

from data.formats.yolo_values import box_row_length, rows_of_files
from data.scan import scan
from tests.support.data_sets import opened

BOX = "0 .5 .5 .2 .2"


def numbers(text):
    return [[float(value) for value in row.split()] for row in text.split("\n")]


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        (BOX, 0),
        ("", 0),
        # keypoints, with and without their visibility, one not labeled
        (f"{BOX} .45 .45 2 .55 .55 1", 11),
        (f"{BOX} .45 .45 2 0 0 0\n{BOX}", 11),
        (f"{BOX} .45 .45 .55 .55", 9),
        # outside the box 0.4 to 0.6, and its tolerance of 0.01
        (f"{BOX} .45 .45 2 .62 .5 1", 0),
        # no visibility
        (f"{BOX} .45 .45 .3 .55 .55 .3", 0),
        # rows of several lengths are polygons
        (f"{BOX} .45 .45 .55 .55\n{BOX} .45 .45", 0),
        # one polygon away from the box of its first values decides for all
        (f"{BOX} .45 .45 .55 .55\n0 .1 .1 .2 .1 .2 .2 .1 .2", 0),
        # oriented boxes of small objects lie in the boxes of their first values, too
        ("0 .5 .6 .6 .6 .6 .66 .5 .66\n0 .4 .4 .43 .38 .45 .42 .42 .44", 0),
        ("0 .5 .5 .6 .5 .55 .6", 0),
        # sides that cross, and a second point far away
        ("0 .5 .6 .6 .6 .5 .66 .6 .66", 9),
        ("0 .5 .6 .6 .6 .6 .66 .5 .66\n0 .5 .5 .2 .3 .52 .5 .5 .52", 9),
        # a confidence, if all rows have it
        (f"{BOX} .9\n{BOX} .3", 6),
        (f"{BOX} .9\n{BOX}", 0),
    ],
)
def test_rows_decide_together(rows, length):
    assert box_row_length(numbers(rows)) == length


def test_rows_that_are_no_numbers_do_not_count():
    found = list(rows_of_files([b"0 .5 .5 .2 .2 .9\nx y\nnan 1\n", b"\n", b"1 2\n"]))
    assert found == [[0, 0.5, 0.5, 0.2, 0.2, 0.9], [1, 2]]


def folder(root, *label_files):
    for number, text in enumerate(label_files):
        cv2.imwrite(str(root / f"{number}.png"), np.zeros((10, 10, 3), np.uint8))
        (root / f"{number}.txt").write_text(text)
    return root


def test_keypoints_are_left_out_and_said(tmp_path):
    rows = f"{BOX} .45 .45 2 .55 .55 1\n"
    labels, report = scan([folder(tmp_path, rows, rows)], ["person"])
    np.testing.assert_allclose(labels.boxes_xywh, [[4, 4, 2, 2]] * 2)
    assert len(labels.points) == 0
    assert report.sentences == (
        f"{tmp_path}: rows of 11 values are boxes with keypoints, since all points lie in the "
        "boxes: the keypoints are left out; kpt_shape in a data YAML decides it",
    )


def test_yaml_decides(tmp_path):
    """Two points outside the box: polygons, unless kpt_shape says that they are keypoints."""
    source = folder(tmp_path, "0 .5 .5 .2 .2 .9 .9 .1 .1\n")
    polygon, _ = scan([source], ["person"])
    assert len(polygon.points) == 4
    keypoints, report = scan([source], ["person"], keypoints=(2, 2))
    np.testing.assert_allclose(keypoints.boxes_xywh, [[4, 4, 2, 2]])
    assert report.sentences == ()


def test_sixth_value_is_left_out_only_if_all_rows_have_it(tmp_path):
    (tmp_path / "a").mkdir()
    labels, report = scan([folder(tmp_path / "a", f"{BOX} .9\n", f"{BOX} .8\n")], ["person"])
    assert len(labels.classes) == 2
    assert "the sixth, a confidence or a track number, is left out" in report.sentences[0]

    (tmp_path / "b").mkdir()
    labels, report = scan([folder(tmp_path / "b", f"{BOX} .9\n{BOX}\n")], ["person"])
    assert len(labels.classes) == 1
    assert "number of values is 6; a row is class cx cy w h" in report.first_problem()


def test_splits_whose_rows_are_read_otherwise_are_refused(tmp_path):
    """One keypoint outside its box in the val split would make polygons of all its rows."""
    keypoints = "0 .5 .5 .2 .2 .55 .55 .45 .45\n"
    sources = []
    for split, other in (("train", keypoints), ("val", "0 .5 .5 .2 .2 .7 .7 .4 .4\n")):
        (tmp_path / split).mkdir()
        sources.append(folder(tmp_path / split, keypoints, other))
    message = "are boxes with keypoints in {}, but polygons in {}: kpt_shape in a data YAML says"
    with pytest.raises(ValueError, match=re.escape(message.format(*sources))):
        scan(sources, ["person"])
    with pytest.raises(ValueError, match=message.format("'train'", "'val'")):
        opened(tmp_path, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match=message.format("'train'", "'val'")):
        opened(tmp_path, cache=tmp_path / "cache")  # from the cache

    file = tmp_path / "data.yaml"
    file.write_text("train: train\nval: val\nnames: [person]\nkpt_shape: [2, 2]\n")
    for labels in opened(file, cache=tmp_path / "cache").labels.values():
        np.testing.assert_allclose(labels.boxes_xywh, [[4, 4, 2, 2]] * 2)
