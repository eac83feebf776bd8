"""data/layouts/reasons/unread.py: labels of the same images that are not read."""

import json

import pytest

from data.layouts.reasons.unread import unread_labels
from tests.support.data_sets import image_folder, opened

SHAPE = {"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}
LABEL_ME = json.dumps({"shapes": [SHAPE]})


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("plain/0.json", LABEL_ME, "LabelMe JSON"),
        ("labelme/0.json", LABEL_ME, "YOLO"),
        ("plain/0.xml", "<annotation></annotation>", "YOLO"),
        ("Annotations/0.xml", "<annotation></annotation>", "YOLO"),
        ("ann/0.png.json", '{"objects": []}', "YOLO"),
    ],
)
def test_labels_of_another_format_are_said(tmp_path, name, text, title):
    source = image_folder(tmp_path / "plain")
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    (sentence,) = unread_labels([source])
    start = f"{source}: labels are read as {title}, not from other files such as "
    assert sentence.startswith(start)
    if title == "YOLO":
        assert sentence == f"{start}{file}"
        said = []
        opened(source, cache=tmp_path / "cache", said=said)
        assert said[1] == sentence
    else:  # which image is looked at first depends on the file system
        assert sentence.endswith(".txt")


def test_labels_beside_the_images_of_a_file_that_lists_them_are_said(tmp_path):
    source = image_folder(tmp_path / "set")
    file = source / "boxes.csv"
    file.write_text("filename,class,xmin,ymin,xmax,ymax\n0.png,cat,1,1,4,4\n")
    (sentence,) = unread_labels([file])
    assert f"{source}: labels are read as CSV with a box in each row, not from" in sentence


def test_nothing_is_said_without_other_labels(tmp_path):
    source = image_folder(tmp_path / "set")
    assert unread_labels([source, tmp_path / "absent", source / "0.png"]) == []
