"""What is said before the training of data that look like a mistake, and --strict."""

import cv2
import numpy as np
import pytest
import torch

from data import Choices, open_dataset
from data.report import Report
from utils.distributed.world import World

CPU = World(torch.device("cpu"))
ROW = "0 .5 .5 .5 .5\n"


def data_set(root, images, labels):
    """A data YAML. labels: the text of each label file, by its name without suffix."""
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for name in images:
        cv2.imwrite(str(root / "images" / f"{name}.png"), np.zeros((8, 8, 3), np.uint8))
    for name, text in labels.items():
        (root / "labels" / f"{name}.txt").write_text(text)
    file = root / "data.yaml"
    file.write_text("train: images\nnames: [cat, dog]\n")
    return file


def said_of(file, *, splits=("train",), strict=False):
    """What is said while these splits are read."""
    said = []
    dataset = open_dataset(
        [str(file)],
        splits,
        CPU,
        said.append,
        download=False,
        single_class=False,
        cache_dir=str(file.parent / "cache"),
        choices=Choices(strict=strict),
    )
    for split in splits:
        dataset.read(split, said.append)
    return said


def test_label_files_without_an_image_are_named_with_the_likely_reason(tmp_path):
    labels = {"a": ROW, "a1b2c3d4-b": ROW, "C": ROW, "a1b2c3d4-a": ROW}
    file = data_set(tmp_path, ["a", "b", "c"], labels)
    warning = said_of(file)[1]
    assert warning == (
        f"train: {tmp_path}/images: 3 label files without an image, such as C.txt, "
        "a1b2c3d4-a.txt, a1b2c3d4-b.txt; 2 begin with a prefix such as a1b2c3d4-, no image does. "
        "2 of 3 images have no label file and teach that there is nothing to find."
    )
    assert said_of(file)[1] == warning  # also if the scan is read from the cache


def test_names_that_differ_in_capital_letters_are_said(tmp_path):
    file = data_set(tmp_path, ["a", "b"], {"a": ROW, "B": ROW})
    assert said_of(file)[1].endswith(
        "1 label file without an image, such as B.txt; 1 differ from an image's name in capital "
        "letters or accents only."
    )


def test_labels_whose_suffix_is_in_capital_letters_are_said(tmp_path):
    file = data_set(tmp_path, ["a", "b"], {"a": ROW})
    (tmp_path / "labels" / "b.TXT").write_text(ROW)
    assert "1 label file without an image, such as b.TXT; 1 differ from" in said_of(file)[1]


@pytest.mark.parametrize("splits", [("train",), ("train", "val")])
def test_label_files_without_an_image_are_said_where_images_are_held_out(tmp_path, splits):
    names = [str(number) for number in range(10)]
    file = data_set(tmp_path, names, dict.fromkeys([*names, "other"], ROW))
    said = said_of(file, splits=splits)
    assert sum("1 label file without an image, such as other.txt" in text for text in said) == 1
    with pytest.raises(ValueError, match=r"--strict: 'train' of .*1 label file without an image"):
        said_of(file, splits=splits, strict=True)


VOC = "<annotation><object><name>cat</name></object></annotation>"


@pytest.mark.parametrize("other", ["b.xml", "b.json", "../Annotations/b.xml"])
def test_labels_of_another_format_are_said(tmp_path, other):
    """The images beside them would be background."""
    file = data_set(tmp_path, ["a", "b", "c"], {"a": ROW})
    path = tmp_path / "images" / other
    path.parent.mkdir(exist_ok=True)
    path.write_text(VOC)
    warnings = " ".join(said_of(file))
    assert "1 image without a label file, but with one of another format. 2 of 3 images" in warnings
    assert f"{tmp_path}/images/b.png: has no {tmp_path}/labels/b.txt, but" in warnings
    with pytest.raises(ValueError, match=r"--strict: .* but with one of another format"):
        said_of(file, strict=True)


def test_lists_beside_the_labels_are_no_label_files(tmp_path):
    labels = {"a": ROW, "classes": "cat\ndog\n", "train": "images/a.png\n"}
    assert len(said_of(data_set(tmp_path, ["a"], labels))) == 1


def test_strict_refuses_what_is_said(tmp_path):
    file = data_set(tmp_path, ["a"], {"a": ROW, "b": ROW})
    with pytest.raises(ValueError, match=r"^--strict: 'train' of .*1 label file without an image"):
        said_of(file, strict=True)
    (tmp_path / "labels" / "b.txt").unlink()
    assert len(said_of(file, strict=True)) == 1


def test_coordinates_in_pixels_are_recognized(tmp_path):
    file = data_set(tmp_path, ["a"], {"a": "0 2 3 375 4\n" + ROW})
    assert "coordinate 375 is outside 0-1 by more than 1%; is it in pixels?" in said_of(file)[1]


def report(*counts, images=10, without_label_file=0):
    """A report with these numbers of boxes of classes."""
    return Report(
        images=images,
        background=without_label_file,
        without_label_file=without_label_file,
        instances=sum(counts),
        crowd=0,
        polygons=0,
        instances_per_class=tuple((f"class{index}", n) for index, n in enumerate(counts)),
        unreadable=(),
        no_usable_row=(),
        problem_counts=(),
        problems=(),
    )


@pytest.mark.parametrize(
    ("found", "warnings"),
    [
        (report(99, 2), ["98% of the boxes are of class 'class0'"]),  # 99 / 101 = 0.980
        (report(98, 3), []),  # 98 / 101 = 0.970
        (report(60, 1), []),  # too few to tell
        (report(500), []),  # the only class
        (report(), []),
        (
            report(5, 5, without_label_file=6),
            ["6 of 10 images have no label file and teach that there is nothing to find"],
        ),
        (report(5, 5, without_label_file=5), []),
    ],
)
def test_warnings_follow_from_the_counts(found, warnings):
    assert found.warnings() == warnings


def test_images_without_a_usable_row_are_said_and_refused(tmp_path):
    file = data_set(tmp_path, ["a", "b"], {"a": ROW, "b": "cat .5 .5 .5 .5\n"})
    said = said_of(file)
    assert said[1] == "train: 1 image left out, because none of their label rows can be used."
    start = f"train: the first problem is {tmp_path}/labels/b.txt line 1: 'cat' is not a number"
    assert said[2].startswith(start)
    with pytest.raises(ValueError, match="none of their label rows can be used"):
        said_of(file, strict=True)


def test_labels_that_all_have_a_prefix_are_refused_with_it(tmp_path):
    file = data_set(tmp_path, ["a"], {"a1b2c3d4-a": ROW})
    message = (
        r"a\.txt, which does not exist; 1 label file .*; 1 begin with a prefix such as a1b2c3d4-"
    )
    with pytest.raises(ValueError, match=message):
        said_of(file)


def test_rows_that_may_be_corners_are_said(tmp_path):
    rows = "0 .1 .1 .9 .9\n1 .1 .1 .8 .8\n0 .2 .2 .99 .99\n"
    file = data_set(tmp_path, ["a"], {"a": rows})
    assert said_of(file)[1] == (
        f"train: {tmp_path}/images: 3 boxes of 3 reach out of the image or end before they begin; "
        "none would if rows were corners in place of center and size; look at some; if they "
        "are wrong, export the labels again as their format has them."
    )
    (tmp_path / "labels/a.txt").write_text(f"{rows}0 .5 .5 .1 .1\n")  # no corners
    assert "rows were corners" not in str(said_of(file))


def test_class_numbers_that_begin_at_1_are_asked_about(tmp_path):
    """Two names: class 2 is none, and class 0 is not used."""
    file = data_set(tmp_path, ["a", "b"], {"a": "1 .5 .5 .5 .5\n", "b": "2 .5 .5 .5 .5\n"})
    message = (
        r"b\.txt line 1: class 2, but names has 2 classes \(0-1\); .* do they begin at 1\? Then"
    )
    with pytest.raises(ValueError, match=message):
        said_of(file)
    for row in ("0 .5 .5 .5 .5\n", "3 .5 .5 .5 .5\n"):
        (tmp_path / "labels/a.txt").write_text(row)
        with pytest.raises(ValueError, match=r"but names has 2 classes \(0-1\)$"):
            said_of(file)


def test_images_in_both_splits_are_counted(tmp_path):
    file = data_set(tmp_path, ["a", "b"], {"a": ROW, "b": ROW})
    (tmp_path / "val.txt").write_text("images/b.png\n")
    file.write_text("train: images\nval: val.txt\nnames: [cat, dog]\n")
    assert len(said_of(file)) == 1
    said = said_of(file, splits=("train", "val"))
    assert said[2] == "val: 1 of 1 image also in train: new images will give worse metrics"


def test_copies_in_both_splits_are_counted(tmp_path):
    file = data_set(tmp_path, ["a", "b", "c"], {"a": ROW, "b": ROW, "c": ROW})
    cv2.imwrite(str(tmp_path / "images" / "c.png"), np.full((8, 8, 3), 9, np.uint8))
    (tmp_path / "train.txt").write_text("images/a.png\n")
    (tmp_path / "val.txt").write_text("images/b.png\nimages/c.png\n")
    file.write_text("train: train.txt\nval: val.txt\nnames: [cat, dog]\n")
    said = said_of(file, splits=("train", "val"))
    line = "val: 1 of 2 images also in train, 1 as copies: new images will give worse metrics"
    assert line in said


def test_trained_classes_without_a_val_box_are_named(tmp_path):
    dog = "1 .5 .5 .5 .5\n"
    file = data_set(tmp_path, ["a", "b", "c"], {"a": ROW, "b": dog, "c": ROW})
    (tmp_path / "train.txt").write_text("images/a.png\nimages/b.png\n")
    (tmp_path / "val.txt").write_text("images/c.png\n")
    file.write_text("train: train.txt\nval: val.txt\nnames: [cat, dog]\n")
    said = said_of(file, splits=("train", "val"))
    assert said[-1] == "val: no box of 1 trained class: dog"


def test_images_that_are_in_both_splits_by_a_link_are_counted(tmp_path):
    file = data_set(tmp_path, ["a", "b"], {"a": ROW, "b": ROW})
    (tmp_path / "val").symlink_to("images")
    (tmp_path / "val" / "a.txt").write_text(ROW)
    file.write_text("train: images\nval: val\nnames: [cat, dog]\n")
    said = said_of(file, splits=("train", "val"))
    assert "val: 2 of 2 images also in train: new images will give worse metrics" in said
