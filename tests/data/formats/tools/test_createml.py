"""CreateML: boxes by their centre, images without objects, entries that cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from data.formats.registry import format_of
from data.formats.tools.createml import CreateMl
from data.report import IMAGE_DROPPED, ROW_DROPPED
from tests.support.tool_files import draw, read_source, reasons, write_json

BOX = {"x": 20, "y": 10, "width": 8, "height": 4}  # left 20 - 8 / 2 = 16, top 10 - 4 / 2 = 8


def test_boxes_are_read(tmp_path: Path) -> None:
    draw(tmp_path, "a.png", "b.png", "c.png")
    objects = [{"label": "dog", "coordinates": BOX}, {"label": "cat", "coordinates": BOX}]
    document = [
        {"image": "b.png", "annotations": []},
        {"image": "a.png", "annotations": objects},
        # as Apple's documentation has it
        {"imagefilename": "c.png", "annotation": objects[:1]},
    ]
    read = read_source(write_json(tmp_path / "x.json", document))
    assert (read.title, read.names, read.problems) == ("CreateML JSON", ("cat", "dog"), [])
    box = (16, 8, 24, 12)
    assert read.boxes == {
        "a.png": [("dog", *box), ("cat", *box)],
        "b.png": [],
        "c.png": [("dog", *box)],
    }


@pytest.mark.parametrize(
    ("entry", "kind", "problem"),
    [
        (5, IMAGE_DROPPED, "[1]: the entry is 5, must be an object"),
        ({}, IMAGE_DROPPED, "[1]: it has no 'image', only []"),
        ({"image": 3, "annotations": []}, IMAGE_DROPPED, "[1]: 'image' is 3, must be a text"),
        ({"image": "a.png"}, IMAGE_DROPPED, "[1]: it has no 'annotations', only ['image']"),
        (
            {"image": "a.png", "annotations": {}},
            IMAGE_DROPPED,
            "[1]: 'annotations' is an object, must be a list",
        ),
        (
            {"image": "a.png", "annotations": [7]},
            ROW_DROPPED,
            "[1].annotations[0]: the entry is 7, must be an object",
        ),
        (
            {"image": "a.png", "annotations": [{"label": "x"}]},
            ROW_DROPPED,
            "[1].annotations[0]: 'coordinates' is None, must be an object",
        ),
        (
            {"image": "a.png", "annotations": [{"label": "x", "coordinates": BOX | {"x": "1"}}]},
            ROW_DROPPED,
            "[1].annotations[0]: 'x' is '1', must be a number",
        ),
        (
            {
                "image": "a.png",
                "annotations": [{"label": "x", "coordinates": BOX | {"y": 10**400}}],
            },
            ROW_DROPPED,
            f"[1].annotations[0]: 'y' is 1{39 * '0'}..., must be a number",
        ),
        (
            {"image": "a.png", "annotations": [{"coordinates": BOX}]},
            ROW_DROPPED,
            "[1].annotations[0]: 'label' is None, must be a text",
        ),
        (
            {"image": "a.png", "annotations": [{"label": "\ud800", "coordinates": BOX}]},
            ROW_DROPPED,
            "[1].annotations[0]: 'label' is '\\ud800', which is no text in UTF-8",
        ),
    ],
)
def test_entries_that_cannot_be_read_are_reported(
    tmp_path: Path, entry: Any, kind: str, problem: str
) -> None:
    draw(tmp_path, "a.png", "b.png")
    first = {"image": "b.png", "annotations": [{"label": "cat", "coordinates": BOX}]}
    read = read_source(write_json(tmp_path / "x.json", [first, entry]))
    assert read.boxes["b.png"] == [("cat", 16, 8, 24, 12)]
    assert [found.kind for found in read.problems] == [kind]
    assert reasons(read.problems, tmp_path) == [f"x.json {problem}"]


def test_name_may_come_after_many_boxes(tmp_path: Path) -> None:
    draw(tmp_path, "a.png")
    objects = [{"label": f"class {number}", "coordinates": BOX} for number in range(200)]
    file = write_json(tmp_path / "x.json", [{"annotations": objects, "imagefilename": "a.png"}])
    read = read_source(file)
    assert (read.title, len(read.boxes["a.png"])) == ("CreateML JSON", 200)


def test_other_json_is_not_createml(tmp_path: Path) -> None:
    for document in ({}, [], [{"image": "a.png"}], {"image": "a", "coordinates": 1}, [[1]]):
        assert format_of(write_json(tmp_path / "x.json", document)).title == "COCO JSON"
    with pytest.raises(ValueError, match=r"x\.json: the document is an object, must be a list$"):
        CreateMl().images(write_json(tmp_path / "x.json", {}), [])
