"""Where tools and users put images and their labels: each place is found, or answered."""

import json

import cv2
import numpy as np
import pytest

from data.formats.yolo_txt import label_path
from tests.support.data_sets import class_names_by_image, opened

ROW = "0 .5 .5 .5 .5\n"
XML = (
    "<annotation><size><width>8</width><height>8</height></size><object><name>cat</name><bndbox>"
    "<xmin>2</xmin><ymin>2</ymin><xmax>6</xmax><ymax>6</ymax></bndbox></object></annotation>"
)
SHAPE = {"label": "cat", "points": [[1, 1], [5, 5]], "shape_type": "rectangle"}
LABELME = json.dumps({"shapes": [SHAPE], "imageWidth": 8, "imageHeight": 8})


def draw(folder, count=4):
    """Images 0.png, 1.png, ..., all different."""
    folder.mkdir(parents=True)
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), noise)


def write_labels(folder, text, suffix, count=4):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}{suffix}").write_text(text)


@pytest.mark.parametrize(
    ("images", "labels", "text", "suffix"),
    [
        ("images", "labels", ROW, ".txt"),
        ("Images", "Labels", ROW, ".txt"),
        ("IMAGES", "labels", ROW, ".txt"),
        ("JPEGImages", "Annotations", XML, ".xml"),
        ("images", "labels", XML, ".xml"),
        ("photos", "xml", XML, ".xml"),
        ("images", "json", LABELME, ".json"),
        ("images", "labels", LABELME, ".json"),
        ("photos", "photos", LABELME, ".json"),
    ],
)
def test_labels_are_found_in_a_folder_beside_the_images(tmp_path, images, labels, text, suffix):
    draw(tmp_path / "set" / images)
    write_labels(tmp_path / "set" / labels, text, suffix)
    found = class_names_by_image(opened(tmp_path / "set", cache=tmp_path / "cache"))
    assert len(found) == 4
    assert set(map(tuple, found.values())) <= {("cat",), ("0",)}


def test_folder_of_a_class_called_train_is_no_split(tmp_path):
    """Of bus, car and train all images are used; of train beside one other folder only train's."""
    for name in ("bus", "car", "train"):
        draw(tmp_path / "vehicles" / name)
        write_labels(tmp_path / "vehicles" / name, ROW, ".txt")
    found = class_names_by_image(opened(tmp_path / "vehicles", cache=tmp_path / "cache"))
    assert len(found) == 12

    for name in ("more", "train"):
        draw(tmp_path / "two" / name)
        write_labels(tmp_path / "two" / name, ROW, ".txt")
    assert len(class_names_by_image(opened(tmp_path / "two", cache=tmp_path / "cache"))) == 4


def test_annotation_file_in_no_split_is_said(tmp_path):
    draw(tmp_path / "set" / "images")
    for file, numbers in (("train.json", (0, 1)), ("other.json", (2, 3))):
        boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 4, 4]} for n in numbers]
        content = {
            "images": [{"id": n, "file_name": f"{n}.png"} for n in numbers],
            "annotations": boxes,
            "categories": [{"id": 1, "name": "cat"}],
        }
        (tmp_path / "set" / file).write_text(json.dumps(content))
    said = []
    opened(tmp_path / "set", cache=tmp_path / "cache", said=said)
    assert f"not used, because they are in no split: {tmp_path}/set/other.json" in said


def test_labels_beside_images_in_a_folder_images_with_a_capital_letter(tmp_path):
    """Without a folder for the labels they are beside the image, as in YOLOv5."""
    image = tmp_path / "Images" / "a.png"
    assert label_path(image) == str(tmp_path / "Images" / "a.txt")
    (tmp_path / "labels").mkdir()
    assert label_path(image) == str(tmp_path / "labels" / "a.txt")


def test_text_files_in_another_folder_are_answered_with_its_name(tmp_path):
    draw(tmp_path / "set" / "images")
    write_labels(tmp_path / "set" / "yolo", ROW, ".txt")
    (tmp_path / "set" / "classes.txt").write_text("cat\n")
    sentence = r"does not exist; .*/set/yolo has a file \d\.txt: call that folder labels$"
    with pytest.raises(ValueError, match=sentence):
        opened(tmp_path / "set", cache=tmp_path / "cache")


# ---------------------------------------------------------------------- lists of images


def listed(root, text, suffix):
    """A folder with train.txt and val.txt, three and one of its four images."""
    draw(root / "images")
    write_labels(root / "labels", text, suffix)
    for name, numbers in (("train", (0, 1, 2)), ("val", (3,))):
        lines = [f"./images/{number}.png\n" for number in numbers]
        (root / f"{name}.txt").write_text("".join(lines))
    return root


@pytest.mark.parametrize(("text", "suffix"), [(ROW, ".txt"), (XML, ".xml"), (LABELME, ".json")])
def test_lists_in_the_folder_are_its_splits(tmp_path, text, suffix):
    root = listed(tmp_path / "set", text, suffix)
    said = []
    dataset = opened(root, cache=tmp_path / "cache", said=said)
    assert [len(dataset.labels[split].classes) for split in ("train", "val")] == [3, 1]
    assert dataset.labels["val"].path(0) == str(root / "images" / "3.png")
    assert ", with lists of images; 1 class: " in said[0]


def test_list_of_another_machine_is_no_split(tmp_path):
    root = listed(tmp_path / "set", ROW, ".txt")
    for name in ("train", "val"):
        (root / f"{name}.txt").write_text("/home/other/elsewhere.png\n")
    dataset = opened(root, cache=tmp_path / "cache", val_split=0.5)
    assert sum(map(len, dataset.labels.values())) == 4


def test_val_list_alone_is_no_split(tmp_path):
    root = listed(tmp_path / "set", ROW, ".txt")
    (root / "train.txt").unlink()
    dataset = opened(root, cache=tmp_path / "cache", val_split=0.5)
    assert sum(map(len, dataset.labels.values())) == 4


def test_csv_of_make_sense_is_read(tmp_path):
    """class, x, y, w, h, name, width and height of the image, without a header."""
    draw(tmp_path / "set")
    rows = [f"cat,1,2,3,4,{number}.png,8,8\n" for number in range(4)]
    (tmp_path / "set" / "labels_my-project.csv").write_text("".join(rows))
    labels = opened(tmp_path / "set", cache=tmp_path / "cache").labels["train"]
    assert labels.boxes_xywh[0].tolist() == [1, 2, 3, 4]
