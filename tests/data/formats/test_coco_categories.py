"""Categories of a COCO JSON: parents with the name of a class, and those that only some use."""

import json
import re

import pytest

from data.formats.coco_categories import read_categories
from tests.support.data_sets import opened
from tests.support.tool_files import draw

DOG = {"id": 1, "name": "dog", "supercategory": "dog"}
ROOT = {"id": 0, "name": "dog", "supercategory": "none"}
ANIMALS = [
    {"id": 0, "name": "animal", "supercategory": "none"},
    {"id": 1, "name": "cat", "supercategory": "animal"},
    {"id": 2, "name": "dog", "supercategory": "animal"},
]


def document(categories, used):
    annotations = [{"category_id": category_id} for category_id in used]
    return {"categories": categories, "annotations": annotations, "images": []}


@pytest.mark.parametrize(
    ("categories", "used", "names"),
    [
        ([ROOT, DOG], [1, 1], {1: "dog"}),
        ([DOG, ROOT], [1], {1: "dog"}),
        ([ROOT, DOG], [0], {0: "dog"}),
        ([ROOT, DOG], [], {1: "dog"}),
        ([DOG, ROOT], [], {1: "dog"}),
        ([DOG], [], {1: "dog"}),
        ([], [], {}),
    ],
)
def test_an_unused_parent_with_the_name_of_its_class_is_left_out(tmp_path, categories, used, names):
    found = read_categories(tmp_path / "a.json", document(categories, used))
    assert found.names == names


@pytest.mark.parametrize(
    ("categories", "used", "message"),
    [
        ([ROOT, DOG], [0, 1], "categories[1]: ids 0 and 1 are both 'dog', and both have annotat"),
        ([ROOT, {**ROOT, "id": 1}], [1], "categories[1]: id 1 or name 'dog' appears twice"),
        ([ROOT, {**DOG, "id": 0}], [], "categories[1]: id 0 or name 'dog' appears twice"),
        ([DOG, {"id": 2, "name": ""}], [1], "categories[1]: 'name' is empty: name the class, or"),
        ([DOG, {"id": "2", "name": "a"}], [1], "categories[1] must have a whole number 'id'"),
    ],
)
def test_other_repetitions_and_empty_names_are_refused(tmp_path, categories, used, message):
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/a.json {message}")):
        read_categories(tmp_path / "a.json", document(categories, used))


def coco_split(folder, categories, used):
    """A split as Roboflow exports it: the images beside a JSON, each with a box of a category."""
    draw(folder, *(f"{number}.png" for number in range(len(used))))
    images = [
        {"id": n, "file_name": f"{n}.png", "width": 40, "height": 20} for n in range(len(used))
    ]
    boxes = []
    for number, category_id in enumerate(used):
        box = {"id": number, "image_id": number, "category_id": category_id, "iscrowd": 0}
        boxes.append({**box, "bbox": [1, 2, 10, 12], "area": 120})
    content = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "_annotations.coco.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("train", "val", "names"),
    [
        ([1, 2], [1, 0], ["animal", "cat", "dog"]),
        ([0, 2], [1], ["animal", "cat", "dog"]),
        ([1, 2], [1], ["cat", "dog"]),
    ],
)
def test_a_parent_that_one_split_uses_is_a_class_of_all(tmp_path, train, val, names):
    coco_split(tmp_path / "set" / "train", ANIMALS, train)
    coco_split(tmp_path / "set" / "valid", ANIMALS, val)
    assert opened(tmp_path / "set", cache=tmp_path / "cache").names == names


def test_annotations_of_images_that_are_not_listed_are_refused_by_strict(tmp_path):
    folder = tmp_path / "set"
    coco_split(folder, ANIMALS, [1, 2, 1, 2, 1])
    file = folder / "_annotations.coco.json"
    content = json.loads(file.read_text())
    for box in content["annotations"][3:]:
        box["image_id"] += 100
    file.write_text(json.dumps(content))
    text = "train: _annotations.coco.json\nval: _annotations.coco.json\nnames: [cat, dog]\n"
    (folder / "data.yaml").write_text(text)
    said = []
    opened(folder, cache=tmp_path / "cache").read("train", said.append)
    sentence = "not used: 2 annotations of images that their file does not list"
    assert f"train: {sentence}." in said
    with pytest.raises(ValueError, match=f"^--strict: 'train' of .*: {sentence}$"):
        opened(folder, cache=tmp_path / "cache", strict=True)
