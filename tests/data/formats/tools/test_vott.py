"""VoTT's JSON: boxes and polygons, a region with several tags, entries that cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from data.formats.tools.vott import Vott
from tests.support.tool_files import draw, read_source, reasons, write_json

BOX = {"left": 1, "top": 2, "width": 3.5, "height": 4}
RECTANGLE = {"type": "RECTANGLE", "tags": ["cat"], "boundingBox": BOX, "points": []}
POLYGON = {
    "type": "POLYGON",
    "tags": ["dog", "cat"],
    "points": [{"x": 5, "y": 9}, {"x": 7, "y": 3}, {"x": 6, "y": 8}],
}


def project(*regions: Any, **asset: Any) -> dict[str, Any]:
    """Return an export with an image with these regions."""
    asset = {"name": "a.png", "size": {"width": 40, "height": 20}, **asset}
    tags = [{"name": "dog", "color": "#1"}, {"name": "cat", "color": "#2"}, {"name": "cow"}]
    return {"tags": tags, "assets": {"0d3": {"asset": asset, "regions": list(regions)}}}


def test_boxes_and_polygons_are_read(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    read = read_source(write_json(tmp_path / "x-export.json", project(RECTANGLE, POLYGON)))
    assert (read.title, read.names) == ("VoTT JSON", ("dog", "cat", "cow"))
    assert read.boxes == {
        "a.png": [("cat", 1, 2, 4.5, 6), ("dog", 5, 3, 7, 9), ("cat", 5, 3, 7, 9)]
    }
    assert read.problems == []


def test_name_may_be_an_address_and_image_without_regions_is_background(tmp_path: Path) -> None:
    draw(tmp_path, "a b.png")
    for asset in ({"name": "a%20b.png"}, {"path": "file:C:/photos/a%20b.png"}):
        document = project(**asset)
        if "path" in asset:
            del document["assets"]["0d3"]["asset"]["name"]
        assert read_source(write_json(tmp_path / "x.json", document)).boxes == {"a b.png": []}


@pytest.mark.parametrize(
    ("region", "problem"),
    [
        (3, "the region is 3, must be an object"),
        (RECTANGLE | {"tags": []}, "'tags' is [], must be a list of texts"),
        (RECTANGLE | {"tags": None}, "'tags' is None, must be a list of texts"),
        (RECTANGLE | {"tags": [1]}, "'tags' is 1, must be a text"),
        (RECTANGLE | {"boundingBox": [1]}, "'boundingBox' is [1], must be an object"),
        (RECTANGLE | {"boundingBox": BOX | {"top": None}}, "'top' is None, must be a number"),
        (RECTANGLE | {"boundingBox": BOX | {"width": -1}}, "box of -1 x 4, must have an area"),
        (RECTANGLE | {"boundingBox": BOX | {"width": 0}}, "box of 0 x 4, must have an area"),
        (RECTANGLE | {"type": "POINT"}, "'type' is 'POINT', boxes are made of RECTANGLE, SQUARE,"),
        (RECTANGLE | {"type": ["x"]}, "'type' is ['x'], boxes are made of"),
        (POLYGON | {"points": [[1, 2]]}, "a point is [1, 2], must be an object"),
        (POLYGON | {"points": [{"x": 1, "y": 2}]}, "a polygon with 1 point has no area"),
    ],
)
def test_regions_that_cannot_be_read_are_reported(
    tmp_path: Path, region: Any, problem: str
) -> None:
    draw(tmp_path, "a.png")
    read = read_source(write_json(tmp_path / "x.json", project(region, RECTANGLE)))
    assert read.boxes["a.png"][-1] == ("cat", 1, 2, 4.5, 6)
    found = reasons(read.problems, tmp_path)[0]
    assert found.startswith(f"x.json assets['0d3'].regions[0]: {problem}")


def test_faults_of_the_file_name_it(tmp_path: Path) -> None:
    for document, reason in (
        ([], "the document is [], must be an object"),
        ({"tags": []}, "'assets' is None, must be an object"),
        ({"tags": [{"name": ""}], "assets": {}}, "tags[0]: 'name' is '', must be a text"),
        ({"tags": [[]], "assets": {}}, "tags[0]: the entry is [], must be an object"),
    ):
        file = write_json(tmp_path / "x.json", document)
        with pytest.raises(ValueError, match=r"x\.json: ") as found:
            Vott().class_names(file)
        assert str(found.value) == f"{file}: {reason}"


def test_images_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    assets = {"a": 1, "b\n": {"asset": None}, "c": {"asset": {"name": 7}}}
    contents = Vott().read(write_json(tmp_path / "x.json", {"assets": assets}))
    assert contents.names is None
    assert reasons(contents.problems, tmp_path) == [
        "x.json assets['a']: the entry is 1, must be an object",
        "x.json assets['b\\n']: 'asset' is None, must be an object",
        "x.json assets['c']: 'name' is 7, must be a text",
    ]
