"""data/layouts/separate.py: several data sets in one folder, and one in several subfolders."""

import json

import pytest

from data.layouts import recognize
from tests.data.layouts.test_recognize import COCO, ROW, VOC, found_in, write

LABEL_ME = {"shapes": [{"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}]}
CSV = "filename,class,xmin,ymin,xmax,ymax\na.png,cat,1,1,4,4\n"
YAML = "train: .\nnames: [cat]\n"


def refused(root):
    """The paths and formats of the data sets among which one is to be chosen."""
    with pytest.raises(ValueError, match="data sets: choose one") as refusal:
        recognize(root)
    lines = str(refusal.value).splitlines()[1:]
    return [line.removeprefix(f"    --data {root}/") for line in lines]


def test_data_sets_of_different_formats_in_subfolders_are_several(tmp_path):
    files = {
        "one/a.png": 0,
        "one/a.json": LABEL_ME,
        "two/a.png": 0,
        "two/boxes.csv": CSV,
        "three/train/a.png": 0,
        "three/train/boxes.json": COCO,
        "three/valid/b.png": 0,
        "three/valid/boxes.json": COCO,
        "more/four/images/a.png": 0,
        "more/four/labels/a.txt": ROW,
        "more/five/a.png": 0,
        "more/five/data.yaml": YAML,
        "unlabeled/c.png": 0,
        "only_labels/c.txt": ROW,
    }
    assert refused(write(tmp_path, files)) == [
        "more/five/data.yaml  (data YAML)",
        "more/four  (YOLO)",
        "one  (LabelMe JSON)",
        "three  (COCO JSON)",
        "two/boxes.csv  (CSV with a box in each row)",
    ]
    for name in ("one", "two", "three", "more/four"):  # each command is ready
        recognize(tmp_path / name)


def test_images_whose_labels_are_in_another_subfolder_are_one_of_several(tmp_path):
    files = {"images/a.png": 0, "labels/a.txt": ROW, "via/b.png": 0, "via/boxes.csv": CSV}
    assert refused(write(tmp_path, files)) == [
        "images  (YOLO)",
        "via/boxes.csv  (CSV with a box in each row)",
    ]


@pytest.mark.parametrize(
    ("files", "title"),
    [
        # Files that describe the whole folder.
        ({"data.yaml": YAML, "a/a.png": 0, "a/a.txt": ROW, "b/b.png": 0, "b/b.xml": VOC}, "data"),
        ({"c/data.yaml": "train: ../a\nnames: [cat]\n", "a/a.png": 0, "b/b.png": 0}, "data"),
        ({"boxes.csv": CSV, "a/a.png": 0, "a/a.txt": ROW, "b/b.png": 0, "b/b.xml": VOC}, "CSV"),
        # A YAML beside images that names others.
        (
            {
                "a/data.yaml": "train: ../b\nnames: [cat]\n",
                "a/a.png": 0,
                "b/a.png": 0,
                "b/a.txt": ROW,
            },
            "data",
        ),
        # The same images with labels of two formats.
        ({"annotations/x.json": COCO, "images/a.png": 0, "labels/a.txt": ROW}, "COCO"),
        (
            {"annotations/x.json": COCO, "train/a.png": 0, "train/a.txt": ROW, "val/b.png": 0},
            "COCO",
        ),
        ({"images/a.png": 0, "labels/a.txt": ROW, "labelme/a.json": LABEL_ME}, "YOLO"),
        # One format, and splits.
        ({"a/a.png": 0, "a/a.txt": ROW, "b/b.png": 0, "b/b.txt": ROW}, "YOLO"),
        ({"a/a.png": 0, "a/boxes.csv": CSV, "b/a.png": 0, "b/boxes.csv": CSV}, "CSV"),
        ({"train/a.png": 0, "train/a.txt": ROW, "val/b.png": 0, "val/b.xml": VOC}, "YOLO"),
        ({"a/a.png": 0, "a/a.txt": ROW, "unlabeled/b.png": 0}, "YOLO"),
    ],
)
def test_files_that_belong_together_are_one_data_set(tmp_path, files, title):
    assert found_in(write(tmp_path, files))[0].startswith(title)


def test_yaml_with_an_error_in_a_subfolder_is_said(tmp_path):
    files = {"a/a.png": 0, "a/a.json": json.dumps(LABEL_ME), "b/b.png": 0}
    write(tmp_path, files | {"b/data.yaml": "train: .\nnames: [cat]\nwriter: me\n"})
    with pytest.raises(ValueError, match="unknown key 'writer'"):
        recognize(tmp_path)
