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


@pytest.mark.parametrize(
    ("own", "title"),
    [
        ("plain/{}.txt", "YOLO"),
        ("plain/{}.xml", "Pascal VOC"),
        ("plain/{}.json", "LabelMe JSON"),
    ],
)
@pytest.mark.parametrize(
    "neighbor", ["labelme/{}.json", "json/{}.json", "ann/{}.png.json", "Annotations/{}.xml"]
)
def test_labels_beside_the_images_come_before_those_of_a_neighboring_folder(
    tmp_path: Path, own: str, title: str, neighbor: str
) -> None:
    """One image of two has labels of its own: the other is background, not the neighbor's."""
    draw(tmp_path / "plain", "a.png", "b.png")
    write_label_file(tmp_path / own.format("a"), "own")
    for name in ("a", "b"):
        write_label_file(tmp_path / neighbor.format(name), "neighbor")
    assert format_of(tmp_path / "plain").title == title
    names = format_of(tmp_path / "plain").class_names(tmp_path / "plain").names
    assert names == (("0",) if title == "YOLO" else ("own",))

    # Without labels of their own, the images have those of the neighboring folder.
    (tmp_path / own.format("a")).unlink()
    reader = format_of(tmp_path / "plain")
    assert reader.title != "YOLO"
    assert reader.class_names(tmp_path / "plain").names == ("neighbor",)


@pytest.mark.parametrize(
    ("image", "own", "title"),
    [
        ("images/a.png", "labels/a.txt", "YOLO"),
        ("JPEGImages/a.png", "Annotations/a.xml", "Pascal VOC"),
        ("img/a.png", "ann/a.png.json", "Supervisely"),
        ("images/a.png", "labelTxt/a.txt", "DOTA, oriented boxes"),
    ],
)
def test_labels_in_the_place_of_their_layout_come_before_those_of_a_neighboring_folder(
    tmp_path: Path, image: str, own: str, title: str
) -> None:
    folder, name = image.split("/")
    draw(tmp_path / folder, name)
    write_label_file(tmp_path / own, "own")
    write_label_file(tmp_path / "labelme/a.json", "neighbor")
    assert format_of(tmp_path / folder).title == title
    (tmp_path / own).unlink()
    assert format_of(tmp_path / folder).title == "LabelMe JSON"


def write_label_file(file: Path, name: str) -> None:
    """Write a box of a class: the format is that of the suffix, or of the folder."""
    file.parent.mkdir(exist_ok=True)
    if file.parent.name == "labelTxt":
        file.write_text(f"1 1 9 1 9 9 1 9 {name} 0\n")
    elif file.suffix == ".txt":
        file.write_text("0 .5 .5 .5 .5\n")
    elif file.suffix == ".xml":
        corners = "<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>"
        box = f"<name>{name}</name><bndbox>{corners}</bndbox>"
        file.write_text(f"<annotation><object>{box}</object></annotation>")
    elif file.parent.name == "ann":
        exterior = {"exterior": [[1, 1], [4, 4]]}
        entry = {"classTitle": name, "geometryType": "rectangle", "points": exterior}
        write_json(file, {"size": {"width": 40, "height": 20}, "objects": [entry]})
    else:
        write_json(file, {"shapes": [SHAPE | {"label": name}]})


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
