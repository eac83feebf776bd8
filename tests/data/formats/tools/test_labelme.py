"""LabelMe: each shape, old files, shapes that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from data.formats.tools.labelme import LabelMe
from data.report import IMAGE_DROPPED
from data.scan import scan
from tests.support.tool_files import draw, read_source, reasons, write_json


def shape(kind: str | None, points: Any, label: Any = "cat") -> dict[str, Any]:
    return {"label": label, "points": points, "shape_type": kind, "flags": {}, "group_id": None}


def read_shapes(folder: Path, *shapes: Any) -> Any:
    """Return what is read of an image with these shapes."""
    draw(folder, "a.png")
    document = {"version": "5.0.1", "flags": {}, "shapes": list(shapes), "imageData": None}
    document |= {"imagePath": "..\\a.png", "imageHeight": 20, "imageWidth": 40}
    write_json(folder / "a.json", document)
    return read_source(folder)


@pytest.mark.parametrize(
    ("kind", "points", "box"),
    [
        ("rectangle", [[1, 2], [11.5, 12]], (1, 2, 11.5, 12)),
        ("rectangle", [[11.5, 2], [1, 12]], (1, 2, 11.5, 12)),  # drawn from the upper right
        ("rectangle", [[1, 2], [11, 2], [11, 12], [1, 12]], (1, 2, 11, 12)),
        ("polygon", [[1, 9], [5, 3], [7, 8]], (1, 3, 7, 9)),
        (None, [[1, 9], [5, 3], [7, 8]], (1, 3, 7, 9)),
        ("linestrip", [[1, 9], [5, 3], [7, 8]], (1, 3, 7, 9)),
        ("line", [[1, 9], [5, 3]], (1, 3, 5, 9)),
        ("points", [[1, 9], [5, 3]], (1, 3, 5, 9)),
        ("rotation", [[5, 1], [9, 5], [5, 9], [1, 5]], (1, 1, 9, 9)),
        # The distance from 10, 10 to 13, 14 is 5, the radius.
        ("circle", [[10, 10], [13, 14]], (5, 5, 15, 15)),
        # The first and the last pixel: columns 3 to 5 are from 3 to 6.
        ("mask", [[3, 4], [5, 9]], (3, 4, 6, 10)),
    ],
)
def test_shapes_become_boxes(tmp_path: Path, kind: str | None, points: Any, box: Any) -> None:
    read = read_shapes(tmp_path, shape(kind, points))
    assert (read.title, read.problems) == ("LabelMe JSON", [])
    ((name, *corners),) = read.boxes["a.png"]
    assert name == "cat"
    assert corners == pytest.approx(box, abs=1e-3)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (4, "the shape is 4, must be an object"),
        (shape("point", [[1, 2]]), "shape_type is 'point', boxes are made of rectangle, polygon,"),
        (shape(["x"], []), "shape_type is ['x'], boxes are made of"),  # type: ignore[arg-type]
        (shape("points", [[1, 2]]), "a set of keypoints with 1 point has no area"),
        (shape("circle", [[1, 2]]), "a circle has 1 points, must have two: center, outline"),
        (shape("polygon", None), "'points' is None, must be a list"),
        (shape("polygon", [[1, 2], [3]]), "'points' has [3], must be pairs x, y"),
        (shape("polygon", [[1, 2], [3, None]]), "'points' has [3, None], must be pairs x, y"),
        (shape("polygon", [[1, 2], [3, 10**400]]), "'points' has [3, 10000000000000000000..."),
        (shape("rectangle", [[1, 2], [3, 4]], ""), "'label' is '', must be a text"),
        (shape("rectangle", [[1, 2], [3, 4]], 7), "'label' is 7, must be a text"),
        (shape("rectangle", [[50, 2], [60, 4]]), "box [50, 2, 60, 4] is outside its image"),
    ],
)
def test_shapes_that_cannot_be_read_are_reported(tmp_path: Path, given: Any, reason: str) -> None:
    read = read_shapes(tmp_path, given, shape("rectangle", [[1, 2], [3, 4]]))
    assert read.boxes == {"a.png": [("cat", 1, 2, 3, 4)]}
    (problem,) = reasons(read.problems, tmp_path)
    assert problem.startswith(f"a.json shapes[0]: {reason}")


def test_nan_is_no_coordinate(tmp_path: Path) -> None:
    text = '{"shapes": [{"label": "a", "points": [[NaN, 1], [2, 2]], "shape_type": "rectangle"}]}'
    image = LabelMe().read(text.encode(), "a.json")
    assert [str(problem) for problem in image.problems] == [
        "a.json shapes[0]: 'points' has [nan, 1], must be pairs x, y"
    ]


def test_old_files_begin_with_the_image(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    write_json(
        tmp_path / "a.json",
        {"imageData": "A" * 9000, "shapes": [{"label": "cat", "points": [[1, 2], [3, 4], [1, 4]]}]},
    )
    assert read_source(tmp_path).boxes == {"a.png": [("cat", 1, 2, 3, 4)]}


def test_image_of_another_size_is_left_out(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png")
    box = [shape("rectangle", [[1, 2], [3, 4]])]
    write_json(tmp_path / "a.json", {"shapes": box, "imageWidth": 20, "imageHeight": 40})
    write_json(tmp_path / "b.json", {"shapes": box, "imageWidth": None, "imageHeight": "x"})
    labels, report = scan([tmp_path], ["cat"])
    assert len(labels) == 1
    assert [problem.kind for problem in report.problems] == [IMAGE_DROPPED]


def test_annotations_without_shapes_are_background(tmp_path: Path) -> None:
    assert read_shapes(tmp_path).boxes == {"a.png": []}


def test_files_in_another_encoding_are_refused(tmp_path: Path) -> None:
    # The bytes of the first name are those of "è" in UTF-8.
    for image, label in (("a", "猫"), ("b", "狗")):
        draw(tmp_path, f"{image}.png")
        text = json.dumps({"shapes": [shape("rectangle", [[1, 2], [9, 9]], label)]}, indent=1)
        (tmp_path / f"{image}.json").write_bytes(
            text.encode().decode("unicode-escape").encode("gbk")
        )
    with pytest.raises(ValueError, match=r"b\.json line 4: not UTF-8 text: save it as UTF-8$"):
        LabelMe().class_names(tmp_path)
