"""Objects that a file marks as ignored: how many, why, and how to use them."""

import json
from pathlib import Path

import pytest

from data import Choices, open_dataset
from data.scan import scan
from tests.data.balance.test_mixing import CPU
from tests.data.sanity.test_box_units import images
from tests.support.data_sets import image_folder

HOW = (
    "They have iscrowd 1, as CVAT writes it for masks that were painted or found by SAM; to train "
    'on them, replace "iscrowd": 1 by "iscrowd": 0 in the file'
)


def coco(root: Path, crowds: list[object]) -> Path:
    """Write a COCO JSON with an image and an object for each value of iscrowd."""
    names = images(root)[: len(crowds)]
    annotations = []
    for number, crowd in enumerate(crowds):
        box = {"bbox": [10, 10, 40, 40], "image_id": number, "category_id": 1, "iscrowd": crowd}
        annotations.append({"id": number, **box})
    document = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(names)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cat"}],
    }
    file = root / "boxes.json"
    file.write_text(json.dumps(document))
    return file


def test_a_file_of_nothing_else_is_refused_with_the_reason(tmp_path):
    file = coco(tmp_path / "set", [1, 1, True])
    with pytest.raises(ValueError) as refusal:
        scan([file], ["cat"])
    assert str(refusal.value) == (
        f"no object to learn from in 3 images: {file}: 3 of 3 objects marked as ignored: "
        f"neither learned nor counted as missed. {HOW}"
    )
    labels, report = scan([file], ["cat"], require_labels=False)
    assert labels.crowd.all()
    assert len(report.warnings()) == 1


def test_a_file_of_nothing_else_beside_others_is_a_warning(tmp_path):
    file = coco(tmp_path / "set", [1, 1])
    _, report = scan([file, image_folder(tmp_path / "others", row="0 .5 .5 .5 .5")], ["cat"])
    (warning,) = report.warnings()
    assert warning.startswith(f"{file}: 2 of 2 objects marked as ignored")


def test_some_are_said_and_not_refused(tmp_path):
    file = coco(tmp_path / "set", [1, 0] * 10)
    for _ in range(2):  # the second time from the cache
        said: list[str] = []
        dataset = open_dataset(
            [str(file)], ("train",), CPU, said.append, download=False, single_class=False,
            cache_dir=str(tmp_path / "cache"), choices=Choices(val_split=0, strict=True),
        )  # fmt: skip
        dataset.read("train", said.append)
        note = f"{file}: 10 of 20 objects marked as ignored: neither learned nor counted as missed"
        assert said[-1] == f"{note}. {HOW}"
        assert dataset.reports["train"].about_label_files() == [said[-1]]  # of data.check


def test_few_crowds_say_nothing(tmp_path):
    _, report = scan([coco(tmp_path / "set", [1] + [0] * 19)], ["cat"])
    assert (report.crowd, report.about_label_files()) == (1, [])


def test_null_and_false_are_0(tmp_path):
    labels, report = scan([coco(tmp_path / "set", [None, False, 0])], ["cat"])
    assert (labels.crowd.tolist(), report.problems) == ([False] * 3, ())
