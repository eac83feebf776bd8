"""VGG Image Annotator: JSON of versions 1 and 2, projects, CSV; shapes, attributes, bad regions."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from data.formats.tools.via import ViaCsv, ViaJson
from tests.support.tool_files import Read, draw, read_source, reasons, write_json

RECT = {"name": "rect", "x": 1, "y": 2, "width": 10, "height": 12}
BOX = (1, 2, 11, 14)


def region(shape: Any = RECT, **attributes: Any) -> dict[str, Any]:
    return {"shape_attributes": shape, "region_attributes": attributes}


def entry(name: str, regions: Any) -> dict[str, Any]:
    return {"filename": name, "size": 99, "regions": regions, "file_attributes": {}}


def as_json(folder: Path, regions: list[Any]) -> Path:
    return write_json(folder / "x.json", {"a.png99": entry("a.png", regions)})


def as_csv(folder: Path, regions: list[Any], mark: str = "") -> Path:
    """Write regions as VIA's CSV; version 1 has a mark before the first column."""
    header = ["filename", "file_size", "file_attributes", "region_count", "region_id"]
    header += ["region_shape_attributes", "region_attributes"]
    with open(folder / "x.csv", "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([mark + header[0], *header[1:]])
        for index, given in enumerate(regions):
            texts = [json.dumps(given[key]) for key in ("shape_attributes", "region_attributes")]
            writer.writerow(["a.png", 99, "{}", len(regions), index, *texts])
    return folder / "x.csv"


def read_regions(folder: Path, kind: str, *regions: Any) -> Read:
    draw(folder, "a.png")
    return read_source({"json": as_json, "csv": as_csv}[kind](folder, list(regions)))


@pytest.mark.parametrize("version", ["1", "2", "project", "csv 1", "csv 2"])
def test_versions(tmp_path: Path, version: str) -> None:
    draw(tmp_path, "a.png")
    regions = [region(type="cat"), region({**RECT, "x": 3}, type="dog")]
    if version.startswith("csv"):
        file = as_csv(tmp_path, regions, mark="#" if version == "csv 1" else "")
    elif version == "project":
        document = {"_via_settings": {}, "_via_img_metadata": {"a": entry("a.png", regions)}}
        file = write_json(tmp_path / "x.json", document | {"_via_attributes": {}})
    elif version == "1":
        old = entry("a.png", {"0": regions[0], "1": regions[1]})
        file = write_json(tmp_path / "x.json", {"a": {"base64_img_data": "A" * 9000} | old})
    else:
        file = as_json(tmp_path, regions)
    read = read_source(file)
    assert (read.names, read.problems) == (("cat", "dog"), [])
    assert read.boxes == {"a.png": [("cat", *BOX), ("dog", 3, 2, 13, 14)]}
    assert read.title == f"VGG Image Annotator {'CSV' if file.suffix == '.csv' else 'JSON'}"


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(
    ("shape", "box"),
    [
        (RECT, BOX),
        ({"name": "polygon", "all_points_x": [1, 5, 7], "all_points_y": [9, 3, 8]}, (1, 3, 7, 9)),
        ({"name": "polyline", "all_points_x": [1, 5], "all_points_y": [9, 3]}, (1, 3, 5, 9)),
        ({"name": "circle", "cx": 10, "cy": 9, "r": 5}, (5, 4, 15, 14)),
        ({"name": "ellipse", "cx": 10, "cy": 9, "rx": 5, "ry": 2}, (5, 7, 15, 11)),
        # a quarter turn, in radians
        (
            {"name": "ellipse", "cx": 10, "cy": 9, "rx": 5, "ry": 2, "theta": 1.5708},
            (8, 4, 12, 14),
        ),
    ],
)
def test_shapes_become_boxes(tmp_path: Path, kind: str, shape: Any, box: Any) -> None:
    read = read_regions(tmp_path, kind, region(shape, c="cat"))
    assert read.problems == []
    ((name, *corners),) = read.boxes["a.png"]
    assert (name, corners) == ("cat", pytest.approx(box, abs=0.01))


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({}, "object"),
        ({"anything": "cat"}, "cat"),
        ({"anything": " cat "}, "cat"),
        ({"blurred": "no", "Class": "cat"}, "cat"),
        ({"name": "x", "label": "cat"}, "cat"),
        ({"type": {"cat": True, "dog": False}}, "cat"),
        ({"type": 7}, "7"),
    ],
)
def test_attribute_with_the_class(
    tmp_path: Path, kind: str, attributes: dict[str, Any], name: str
) -> None:
    read = read_regions(tmp_path, kind, region(**attributes))
    assert read.boxes == {"a.png": [(name, *BOX)]}


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_several_attributes_without_a_usual_name_are_refused(tmp_path: Path, kind: str) -> None:
    expected = rf"x\.{kind}: regions have the attributes a, b\\n: name the one with the class"
    with pytest.raises(ValueError, match=expected):
        read_regions(tmp_path, kind, region(a="1"), region(**{"b\n": "2"}))


@pytest.mark.parametrize("kind", ["json", "csv"])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (region({"name": "point", "cx": 1, "cy": 2}, c="cat"), "a point has no area"),
        (region({"name": "star"}, c="cat"), "shape 'star' is none of rect, polygon, polyline,"),
        (region({"name": ["rect"]}, c="cat"), "shape ['rect'] is none of rect"),
        (region({"x": 1}, c="cat"), "shape None is none of rect"),
        (region(RECT | {"x": "1"}, c="cat"), "'x' is '1', must be a number"),
        (region(RECT | {"x": True}, c="cat"), "'x' is True, must be a number"),
        (region(RECT | {"x": 10**400}, c="cat"), "'x' is 1000"),
        (region(RECT | {"width": 0}, c="cat"), "box of 0 x 12, must have an area"),
        (region(RECT | {"width": -9}, c="cat"), "box of -9 x 12, must have an area"),
        (
            region({"name": "polygon", "all_points_x": [1, 2], "all_points_y": [1]}, c="cat"),
            "the polygon has 2 x and 1 y",
        ),
        (region({"name": "polygon", "all_points_x": 1}, c="cat"), "'all_points_x' is 1, must be"),
        (region(c=""), "attribute 'c' is '', no class"),
        (region(c=None), "attribute 'c' is None, no class"),
        (region(c={"cat": True, "dog": True}), "attribute 'c' has several classes: cat, dog"),
        (region(c={"cat": False}), "attribute 'c' is an object, no class"),
        (region(), "attribute 'c' is None, no class"),
    ],
)
def test_bad_regions_are_reported(tmp_path: Path, kind: str, given: Any, reason: str) -> None:
    read = read_regions(tmp_path, kind, given, region(c="cat"))
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    (problem,) = reasons(read.problems, tmp_path)
    place = "x.json ['a.png99'].regions[0]" if kind == "json" else "x.csv line 2"
    assert problem.startswith(f"{place}: {reason}")


def test_bad_entries_of_the_json_are_reported(tmp_path: Path) -> None:
    document = {"x\n": 1, "y": {"filename": 3}, "z": entry("z.png", 5), "w": entry("w.png", [None])}
    contents = ViaJson().read(write_json(tmp_path / "x.json", document))
    assert [image.name for image in contents.images] == ["w.png"]
    of_image = contents.images[0].problems
    assert reasons([*contents.problems, *of_image], tmp_path) == [
        "x.json ['x\\n']: the entry is 1, must be an object",
        "x.json ['y']: 'filename' is 3, must be a text",
        "x.json ['z']: 'regions' is 5, must be a list",
        "x.json ['w'].regions[0]: the region is None, must be an object",
    ]
    for other, reason in (
        ([], "the document is [], must be an object"),
        ({"_via_img_metadata": []}, "'_via_img_metadata' is [], must be an object"),
    ):
        with pytest.raises(ValueError, match=r"x\.json: ") as found:
            ViaJson().images(write_json(tmp_path / "x.json", other), [])
        assert str(found.value) == f"{tmp_path}/x.json: {reason}"


def test_bad_rows_of_the_csv_are_reported(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    header = "filename,region_shape_attributes,region_attributes\n"
    good = (
        'a.png,"{""name"":""rect"",""x"":1,""y"":2,""width"":10,""height"":12}","{""c"":""cat""}"'
    )
    rows = ["a.png", "a.png,{x,{}", "a.png,[],{}", f"a.png,{'[' * 100_000},{{}}", ",{},{}"]
    (tmp_path / "x.csv").write_text(header + "\n".join([*rows, "a.png,{},{}", good]))
    read = read_source(tmp_path / "x.csv")
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    found = sorted(reasons(read.problems, tmp_path))
    assert found == [
        "x.csv line 2: has 1 values, must have more than 1",
        "x.csv line 3: region_shape_attributes is '{x', must be JSON",
        "x.csv line 4: region_shape_attributes is [], must be an object",
        f"x.csv line 5: region_shape_attributes is '{40 * '['}...', must be JSON",
        "x.csv line 6: the row names no image",
    ]


def test_image_without_regions_is_background(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    assert read_source(as_json(tmp_path, [])).boxes == {"a.png": []}
    assert read_source(as_csv(tmp_path, [region({})])).boxes == {"a.png": []}


def test_csv_without_a_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("name,region_shape_attributes\n")
    with pytest.raises(ValueError, match=r"x\.csv line 1: has no column 'filename'$"):
        ViaCsv().images(tmp_path / "x.csv", [])
    (tmp_path / "x.csv").write_text("")
    with pytest.raises(ValueError, match=r"x\.csv line 1: has no column 'filename'$"):
        ViaCsv().images(tmp_path / "x.csv", [])
