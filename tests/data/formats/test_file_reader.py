"""Folders with a label file for each image: how they are recognized, files that cannot be used."""

import os
from pathlib import Path

import pytest

from data.formats.registry import format_of
from data.formats.tools.labelme import LabelMe
from data.report import IMAGE_DROPPED, NO_USABLE_ROW
from data.scan import scan
from tests.support.tool_files import draw, read_source, reasons, write_json

SHAPE = {"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}


def test_folder_is_recognized_although_files_are_empty_or_something_else(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png", "c.png", "d.png")
    (tmp_path / "a.json").touch()
    write_json(tmp_path / "b.json", [1])
    assert format_of(tmp_path).title == "YOLO"
    write_json(tmp_path / "c.json", {"shapes": [SHAPE]})
    assert format_of(tmp_path).title == "LabelMe JSON"


def test_empty_folder_is_not_of_a_tool(tmp_path: Path) -> None:
    assert format_of(tmp_path).title == "YOLO"
    assert not LabelMe().accepts(tmp_path / "absent")


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_pipe_beside_an_image_does_not_block(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    os.mkfifo(tmp_path / "a.json")
    assert format_of(tmp_path).title == "YOLO"
    assert LabelMe().class_names(tmp_path).names == ()


def test_image_with_an_unreadable_file_is_left_out_and_without_one_is_background(
    tmp_path: Path,
) -> None:
    draw(tmp_path, "a.png", "b.png", "c.png", "d.png", "e.png")
    write_json(tmp_path / "a.json", {"shapes": [SHAPE]})
    (tmp_path / "b.json").write_text('{"shapes": [}')
    write_json(tmp_path / "c.json", {"imagePath": "c.png"})
    write_json(tmp_path / "d.json", {"shapes": [SHAPE | {"points": []}]})
    labels, report = scan([tmp_path], ["cat"])
    assert (len(labels), len(labels.classes), report.without_label_file) == (2, 1, 1)
    kinds = dict(report.problem_counts)
    assert (kinds[IMAGE_DROPPED], kinds[NO_USABLE_ROW]) == (2, 1)
    found = reasons(report.problems, tmp_path)
    assert "b.png: b.json line 1: not JSON: Expecting value" in found
    assert "c.png: c.json: 'shapes' is None, must be a list" in found
    assert "d.json shapes[0]: a box with 0 points has no area" in found


def test_names_in_use_pass_over_files_that_cannot_be_read(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png")
    write_json(tmp_path / "a.json", {"shapes": [SHAPE]})
    (tmp_path / "b.json").write_text("{")
    assert LabelMe().class_names(tmp_path).names == ("cat",)


def test_classes_may_be_numbers(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write_json(tmp_path / "a.json", {"shapes": [SHAPE | {"label": "1"}]})
    assert read_source(tmp_path, ["cat", "dog"]).boxes == {"a.png": [("dog", 1, 2, 3, 4)]}
    assert read_source(tmp_path).names == ("1",)
