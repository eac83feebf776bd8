"""Supervisely: each geometry, the classes of meta.json, objects that cannot be read."""

import base64
import zlib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.support.tool_files import Read, draw, read_source, reasons, write_json

META = {"classes": [{"title": "dog", "shape": "rectangle"}, {"title": "cat", "shape": "polygon"}]}


def figure(kind: str, exterior: Any = None, **more: Any) -> dict[str, Any]:
    points = {"exterior": exterior, "interior": []}
    return {"classTitle": "cat", "geometryType": kind, "points": points, **more}


def bitmap(width: int, height: int) -> dict[str, Any]:
    """Return a mask as Supervisely writes it."""
    png = cv2.imencode(".png", np.full((height, width), 255, np.uint8))[1].tobytes()
    data = base64.b64encode(zlib.compress(png)).decode()
    return {"data": data, "origin": [5, 6]}


def read_objects(project: Path, *objects: Any) -> Read:
    """Return what is read of an image with these objects."""
    draw(project / "ds0" / "img", "a.png")
    write_json(project / "meta.json", META)
    size = {"width": 40, "height": 20}
    write_json(project / "ds0" / "ann" / "a.png.json", {"size": size, "objects": list(objects)})
    return read_source(project / "ds0" / "img")


@pytest.mark.parametrize(
    ("given", "box"),
    [
        # Corners are pixels: columns 1 to 3 are from 1 to 4.
        (figure("rectangle", [[1, 2], [3, 4]]), (1, 2, 4, 5)),
        (figure("rectangle", [[3, 4], [1, 2]]), (1, 2, 4, 5)),
        # The last column is 39; a corner of 40 is the side of the image.
        (figure("rectangle", [[1, 2], [39, 19]]), (1, 2, 40, 20)),
        (figure("rectangle", [[1, 2], [40, 20]]), (1, 2, 40, 20)),
        (figure("polygon", [[1, 9], [5, 3], [7, 8]]), (1, 3, 7, 9)),
        (figure("line", [[1, 9], [5, 3]]), (1, 3, 5, 9)),
        (
            figure("graph", nodes={"x": {"loc": [1, 2]}, "y": {"loc": [5, 9], "disabled": True}}),
            (1, 2, 5, 9),
        ),
        # It begins at 5, 6.
        (figure("bitmap", bitmap=bitmap(7, 3)), (5, 6, 12, 9)),
    ],
)
def test_geometries_become_boxes(tmp_path: Path, given: Any, box: Any) -> None:
    read = read_objects(tmp_path, given)
    assert (read.title, read.names, read.problems) == ("Supervisely", ("dog", "cat"), [])
    assert read.boxes == {"a.png": [("cat", *box)]}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "the object is None, must be an object"),
        (
            figure("point", [[1, 2]]),
            "geometryType is 'point', boxes are made of rectangle, polygon",
        ),
        (figure({}, []), "geometryType is an object, boxes are"),  # type: ignore[arg-type]
        (figure("polygon", 3), "'exterior' is 3, must be a list"),
        (figure("polygon", [[1, "2"]]), "'exterior' has [1, '2'], must be pairs x, y"),
        (figure("rectangle", [[1, 2]]), "a box with 1 point has no area"),
        (figure("graph", nodes=[]), "'nodes' is [], must be an object"),
        (figure("graph", nodes={"a": {}}), "'loc' has None, must be pairs x, y"),
        (figure("graph", nodes={}), "a set of keypoints with 0 points has no area"),
        (figure("bitmap"), "'bitmap' is None, must be an object"),
        (
            figure("bitmap", bitmap={"data": "A" * 4, "origin": [1, 2]}),
            "the mask is no PNG that zlib has compressed",
        ),
        (figure("bitmap", bitmap={"data": "é", "origin": [1, 2]}), "the mask is no PNG"),
        (figure("bitmap", bitmap=bitmap(1, 1) | {"origin": 1}), "'origin' has 1, must be pairs"),
        (figure("rectangle", [[1, 2], [3, 4]], classTitle=1), "'classTitle' is 1, must be a text"),
    ],
)
def test_objects_that_cannot_be_read_are_reported(tmp_path: Path, given: Any, reason: str) -> None:
    read = read_objects(tmp_path, given, figure("rectangle", [[1, 2], [3, 4]]))
    assert read.boxes == {"a.png": [("cat", 1, 2, 4, 5)]}
    (problem,) = reasons(read.problems, tmp_path / "ds0")
    assert problem.startswith(f"ann/a.png.json objects[0]: {reason}")


def test_meta_json_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    read_objects(tmp_path)
    for document, reason in (
        ([], "the document is [], must be an object"),
        ({}, "'classes' is None, must be a list"),
        ({"classes": [{"title": "a"}, {}]}, "classes[1]: 'title' is None, must be a text"),
    ):
        write_json(tmp_path / "meta.json", document)
        with pytest.raises(ValueError, match=r"meta\.json: ") as found:
            read_source(tmp_path / "ds0" / "img")
        assert str(found.value) == f"{tmp_path}/meta.json: {reason}"


def test_names_in_use_without_meta_json(tmp_path: Path) -> None:
    read_objects(tmp_path, figure("rectangle", [[1, 2], [3, 4]]))
    (tmp_path / "meta.json").unlink()
    assert read_source(tmp_path / "ds0" / "img").names == ("cat",)
