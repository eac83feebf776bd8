"""data/layouts/recognize.py: what lies at a path, and what is said of what cannot be used."""

import json
import os
import re

import cv2
import numpy as np
import pytest

from data.layouts import recognize

ROW = "0 .5 .5 .5 .5\n"
COCO = {
    "images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4]}],
    "categories": [{"id": 1, "name": "cat"}],
}
VOC = (
    "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax>"
    "<ymax>4</ymax></bndbox></object></annotation>"
)


def write(root, files):
    """Write files by their paths; the content of an image is drawn."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def found_in(root):
    """The title, and the sources of each split relative to the folder."""
    layout = recognize(root)
    sources = {}
    for split, paths in layout.splits.items():
        sources[split] = [str(path.relative_to(root)) for path in paths]
    return layout.title, sources


@pytest.mark.parametrize(
    ("files", "title", "splits"),
    [
        ({"a.png": 0, "a.txt": ROW}, "YOLO", {"": ["."]}),
        ({"images/a.png": 0, "labels/a.txt": ROW}, "YOLO", {"": ["."]}),
        (
            {"train/images/a.png": 0, "valid/images/b.png": 0, "train/labels/a.txt": ROW},
            "YOLO",
            {"train": ["train"], "val": ["valid"]},
        ),
        (
            {"images/train/a.png": 0, "images/val/b.png": 0, "labels/train/a.txt": ROW},
            "YOLO",
            {"train": ["images/train"], "val": ["images/val"]},
        ),
        ({"a.png": 0, "a.xml": VOC}, "Pascal VOC", {"": ["."]}),
        (
            {
                "JPEGImages/a.png": 0,
                "Annotations/a.xml": VOC,
                "ImageSets/Main/train.txt": "a\n",
                "ImageSets/Main/val.txt": "a\n",
                "ImageSets/Main/trainval.txt": "a\n",
                "ImageSets/Main/cat_train.txt": "a 1\n",
            },
            "Pascal VOC, with lists of images",
            {"train": ["ImageSets/Main/train.txt"], "val": ["ImageSets/Main/val.txt"]},
        ),
        ({"result.json": COCO, "images/a.png": 0}, "COCO JSON", {"": ["result.json"]}),
        (
            {
                "annotations/instances_val2017.json": COCO,
                "annotations/instances_train2017.json": COCO,
            },
            "COCO JSON",
            {
                "train": ["annotations/instances_train2017.json"],
                "val": ["annotations/instances_val2017.json"],
            },
        ),
        (
            {
                "obj.data": "classes = 1\ntrain = data/train.txt\nnames = data/obj.names\n",
                "obj.names": "cat\n",
                "train.txt": "data/obj_train_data/a.png\n",
                "obj_train_data/a.png": 0,
            },
            "Darknet",
            {"train": ["train.txt"]},
        ),
    ],
)
def test_folder_is_recognized_with_its_splits(tmp_path, files, title, splits):
    assert found_in(write(tmp_path, files)) == (title, splits)


JSON_OF_TOOLS = [
    ("COCO JSON", "x.json", '{"images": [], "annotations": [], "categories": []}'),
    ("VGG Image Annotator JSON", "x.json", '{"_via_img_metadata": {}}'),
    ("Label Studio JSON", "x.json", '[{"annotations": [{"result": []}]}]'),
    ("LabelMe JSON", "a.json", '{"shapes": [], "imagePath": "a.png"}'),
]


@pytest.mark.parametrize(("title", "name", "text"), JSON_OF_TOOLS)
def test_json_in_utf_16_is_recognized(tmp_path, title, name, text):
    write(tmp_path, {"a.png": ""})
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / name).write_text(text, encoding=encoding)
        assert recognize(tmp_path).title == title


def test_data_yaml_in_a_folder_is_used(tmp_path):
    files = {"a/data.yaml": "train: .\nnames: [cat]\n", "other.yaml": "x: 1\n", "a/a.png": 0}
    layout = recognize(write(tmp_path, files))
    assert layout.is_yaml
    assert layout.path == tmp_path / "a" / "data.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: a\nnames: [cat, dog]\nnc: 3\n", r"line 3: 'nc' is 3, but 'names' has 2 classes"),
        ("train: a\nnames: [cat, dog]\nwriter: me\n", "line 3: unknown key 'writer'"),
        ("train: a\nnames: [cat, dog\n", "not YAML"),
        ("train: a\nclasses: [cat]\n", "did you mean names"),
    ],
)
def test_data_yaml_with_an_error_is_not_passed_over(tmp_path, text, message):
    """The labels beside it would be read with classes 0, 1, 2, or those of another list."""
    write(tmp_path / "a", {"a.png": 0, "a.txt": ROW})
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        recognize(tmp_path)

    # Another one that is right is used, and other YAML files are no data.
    (tmp_path / "b.yaml").write_text("train: a\nnames: [cat]\n")
    assert recognize(tmp_path).path == tmp_path / "b.yaml"
    (tmp_path / "b.yaml").write_text("lr0: 0.1\n")
    (tmp_path / "data.yaml").write_text("names: [cat\n")
    assert recognize(tmp_path).title == "YOLO"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("name", ["train.txt", "boxes.json", "boxes.csv", "data.yaml", "obj.data"])
def test_pipe_in_a_folder_is_not_read(tmp_path, name):
    """Reading it would never end."""
    write(tmp_path, {"a.png": 0, "a.txt": ROW})
    os.mkfifo(tmp_path / name)
    assert recognize(tmp_path).title == "YOLO"


def test_several_data_sets_are_refused_with_a_command_for_each(tmp_path):
    text = "train: .\nnames: [cat]\n"
    write(tmp_path, {"one/data.yaml": text, "two words/data.yaml": text})
    with pytest.raises(ValueError) as refusal:
        recognize(tmp_path)
    assert str(refusal.value) == (
        f"{tmp_path} has 2 data sets: choose one"
        f"\n    --data {tmp_path}/one/data.yaml  (data YAML)"
        f"\n    --data '{tmp_path}/two words/data.yaml'  (data YAML)"
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "it is empty"),
        ({"notes.md": "x"}, "it has notes.md"),
        (
            {"labels/a.txt": ROW, "labels/b.txt": ROW},
            "2 label files and no image; export it with the images, put them beside the labels, "
            "in a folder images/, or give both as --data images labels",
        ),
        (
            {"a.gif": "x", "b.GIF": "x", "a.txt": ROW, "b.txt": ROW},
            "photographs as .gif are not read: convert them, as with 'magick mogrify -format jpg "
            "*.gif'",
        ),
        (
            {"images/a.cr2": "x", "labels/a.txt": ROW},
            "photographs as .cr2 are not read: convert them, as with 'magick mogrify -format jpg "
            "*.cr2'",
        ),
        (
            {"train/x.tfrecord": "x"},
            "1 TFRecord file; TFRecord is not read; export the data set as COCO JSON or YOLO",
        ),
    ],
)
def test_folder_without_data_is_refused_with_what_to_do(tmp_path, files, message):
    write(tmp_path, files)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))} has no data set: "):
        recognize(tmp_path)
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        recognize(tmp_path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_folder_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "a").mkdir(mode=0)
    with pytest.raises(ValueError, match=r"a has no data set: it cannot be read: Permission"):
        recognize(tmp_path / "a")
    write(tmp_path, {"labels/a.txt": ROW, "labels/b.txt": ROW})
    with pytest.raises(ValueError, match=r"no data set: its folder a cannot be read: Permission"):
        recognize(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tfrecord", "x", "TFRecord is not read; export the data set as COCO JSON or YOLO"),
        ("a.json", "{}", "is not a file of labels that is known: give a data YAML, a folder, "),
        ("obj.data", "x = 1\n", "is not a file of labels that is known"),
    ],
)
def test_file_that_is_unknown_is_refused(tmp_path, name, content, message):
    write(tmp_path, {name: content})
    with pytest.raises(ValueError, match=re.escape(message)):
        recognize(tmp_path / name)


def test_path_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere does not exist$"):
        recognize(tmp_path / "nowhere")


def test_darknet_file_that_names_a_missing_list_is_refused(tmp_path):
    write(tmp_path, {"obj.data": "train = data/train.txt\nnames = obj.names\n", "obj.names": "a\n"})
    with pytest.raises(ValueError, match=r"obj.data names data/train.txt, which does not exist$"):
        recognize(tmp_path)
