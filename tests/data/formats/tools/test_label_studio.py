"""Label Studio: percentages, rotated boxes, JSON-min, tasks that are skipped or done twice."""

from math import cos, radians, sin
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.formats.tools.label_studio import LabelStudio
from data.report import IMAGE_DROPPED, NOTE
from tests.data.formats.tools.test_painted_masks import encoded
from tests.support.tool_files import Read, draw, read_source, reasons, write_json

VALUE = {"x": 10, "y": 20, "width": 50, "height": 25, "rotation": 0}
# 10 % of 40 = 4, 20 % of 20 = 4, 50 % of 40 = 20, 25 % of 20 = 5
BOX = (4, 4, 24, 9)


def region(
    value: Any = VALUE, kind: str = "rectanglelabels", label: Any = "cat", **more: Any
) -> Any:
    """Return a region of an image of 40 x 20; label None: without labels."""
    labels = {} if label is None else {kind: [label]}
    size = {"original_width": 40, "original_height": 20, "image_rotation": 0}
    return {"type": kind, "id": "x", **size, "value": {**value, **labels}, **more}


def task(*regions: Any, image: str = "/data/upload/1/0123abcd-a.png", **more: Any) -> Any:
    annotation = {"id": 1, "completed_by": 2, "result": list(regions), "was_cancelled": False}
    return {"id": 1, "annotations": [annotation], "data": {"image": image}, **more}


def read_tasks(folder: Path, *tasks: Any) -> Read:
    draw(folder, "a.png", "b.png")
    return read_source(write_json(folder / "x.json", list(tasks)))


def rotated(degrees: float) -> tuple[float, float, float, float]:
    """Return the box of VALUE turned around its upper left corner, in pixels, 4, 4, 20 x 5."""
    angle = radians(degrees)
    corners = [(0, 0), (20, 0), (20, 5), (0, 5)]
    xs = [4 + x * cos(angle) - y * sin(angle) for x, y in corners]
    ys = [4 + x * sin(angle) + y * cos(angle) for x, y in corners]
    return min(xs), min(ys), max(xs), max(ys)


def test_box_is_in_percent(tmp_path: Path) -> None:
    read = read_tasks(tmp_path, task(region()))
    assert (read.title, read.names) == ("Label Studio JSON", ("cat",))
    assert read.boxes == {"a.png": [("cat", *BOX)]}


def test_box_is_turned_around_its_corner_in_pixels(tmp_path: Path) -> None:
    """A box of 20 x 5 pixels at 14, 4, turned by 30 degrees, clockwise.

    Its corners are 14, 4; 14 + 20 cos 30 = 31.321, 4 + 20 sin 30 = 14; the lower left one
    14 - 5 sin 30 = 11.5, 4 + 5 cos 30 = 8.330; the last 28.821, 18.330.
    """
    value = VALUE | {"x": 35, "rotation": 30}
    ((_, *box),) = read_tasks(tmp_path, task(region(value))).boxes["a.png"]
    assert box == pytest.approx([11.5, 4, 31.321, 18.330], abs=0.001)


@pytest.mark.parametrize("degrees", [10, 15.5, 350, 360, -10])
def test_rotated_boxes(tmp_path: Path, degrees: float) -> None:
    value = VALUE | {"rotation": degrees}
    ((_, *box),) = read_tasks(tmp_path, task(region(value))).boxes["a.png"]
    left, top, right, bottom = rotated(degrees)
    expected = max(left, 0), max(top, 0), min(right, 40), min(bottom, 20)
    assert box == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(
    ("value", "kind", "box"),
    [
        (
            {"points": [[10, 90], [25, 20], [50, 60]], "closed": True},
            "polygonlabels",
            (4, 4, 20, 18),
        ),
        # 50 % of 40 = 20, 50 % of 20 = 10; radii 25 % of 40 = 10, 10 % of 20 = 2
        ({"x": 50, "y": 50, "radiusX": 25, "radiusY": 10}, "ellipselabels", (10, 8, 30, 12)),
        (
            {"x": 50, "y": 50, "radiusX": 20, "radiusY": 10, "rotation": 90},
            "ellipselabels",
            (18, 2, 22, 18),
        ),
    ],
)
def test_shapes_become_boxes(tmp_path: Path, value: Any, kind: str, box: Any) -> None:
    read = read_tasks(tmp_path, task(region(value, kind)))
    ((_, *corners),) = read.boxes["a.png"]
    assert corners == pytest.approx(box, abs=0.01)


def test_painted_mask_becomes_a_box(tmp_path: Path) -> None:
    rgba = np.zeros((20, 40, 4), np.uint8)
    rgba[5:9, 30:33] = 255
    painted = region({"format": "rle", "rle": encoded(rgba.ravel())}, "brushlabels")
    assert read_tasks(tmp_path, task(painted)).boxes == {"a.png": [("cat", 30, 5, 33, 9)]}


def test_json_min_is_read(tmp_path: Path) -> None:
    value = VALUE | {"rectanglelabels": ["cat"], "original_width": 40, "original_height": 20}
    tasks = [
        {"image": "/data/upload/1/a.png", "id": 1, "label": [value], "annotation_id": 3},
        {"image": "b.png", "id": 2, "annotator": 1, "annotation_id": 4, "choice": "x"},
    ]
    read = read_tasks(tmp_path, *tasks)
    assert read.boxes == {"a.png": [("cat", *BOX)], "b.png": []}
    turned = {**tasks[0], "label": [value | {"rotation": 10}, 5, value | {"x": None}]}
    read = read_tasks(tmp_path, turned)
    ((_, *box),) = read.boxes["a.png"]
    assert box == pytest.approx(rotated(10), abs=0.002)
    assert "x.json [0].label[1]: 'x' is None, must be a number" in reasons(read.problems, tmp_path)


def test_region_may_have_several_labels_and_labels_an_element_of_their_own(tmp_path: Path) -> None:
    both = region(label=None)
    both["value"]["rectanglelabels"] = ["cat", "dog"]
    shape = region(kind="rectangle", label=None, id="y")
    labels = region(kind="labels", label="cow", id="y")
    read = read_tasks(tmp_path, task(both, shape, labels))
    assert read.boxes == {"a.png": [(name, *BOX) for name in ("cat", "dog", "cow")]}
    assert [problem for problem in read.problems if problem.kind != NOTE] == []


def test_choices_texts_and_relations_are_no_objects(tmp_path: Path) -> None:
    others = [
        {"type": "choices", "value": {"choices": ["x"]}, "from_name": "c"},
        {"type": "textarea", "value": {**VALUE, "text": ["x"]}},
        {"type": "relation", "from_id": "x", "to_id": "y", "labels": ["near"]},
        {"type": "rating", "value": {"rating": 3}},
    ]
    read = read_tasks(tmp_path, task(*others, region()))
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    assert [problem for problem in read.problems if problem.kind != NOTE] == []


# ---------------------------------------------------------------------- annotations of a task


def annotation(label: str, **more: Any) -> Any:
    return {"result": [region(label=label)], "was_cancelled": False, **more}


@pytest.mark.parametrize(
    ("annotations", "label"),
    [
        ([annotation("cat"), annotation("dog")], "cat"),
        ([annotation("cat", was_cancelled=True), annotation("dog")], "dog"),
        ([annotation("cat"), annotation("dog", ground_truth=True)], "dog"),
    ],
)
def test_one_annotation_of_several_counts(tmp_path: Path, annotations: Any, label: str) -> None:
    read = read_tasks(tmp_path, {"annotations": annotations, "data": {"image": "a.png"}})
    assert read.boxes == {"a.png": [(label, *BOX)]}
    several = sum(not found["was_cancelled"] for found in annotations) > 1
    expected = (
        "x.json [0]: 1 task with several annotations, of which the ground truth counts, or else "
        "the first"
    )
    assert reasons(read.problems, tmp_path) == ([expected] if several else [])


def test_old_exports_call_annotations_completions(tmp_path: Path) -> None:
    skipped = {"completions": [annotation("dog", skipped=True)], "data": {"image": "b.png"}}
    read = read_tasks(
        tmp_path, {"completions": [annotation("cat")], "data": {"image": "a.png"}}, skipped
    )
    assert read.boxes == {"a.png": [("cat", *BOX)]}


def test_tasks_without_an_annotation_are_left_out_not_background(tmp_path: Path) -> None:
    prediction = {"model_version": "x", "result": [region(label="dog")]}
    tasks = [
        task(region()),
        {"annotations": [], "predictions": [prediction], "data": {"image": "b.png"}},
        {"predictions": [prediction], "data": {"image": "b.png"}},
        {"data": {"image": "b.png"}},
        {"annotations": [annotation("dog", was_cancelled=True)], "data": {"image": "b.png"}},
    ]
    read = read_tasks(tmp_path, *tasks)
    assert (read.names, list(read.boxes)) == (("cat",), ["a.png"])
    expected = "4 tasks without an annotation or skipped, whose images are left out"
    assert f"x.json [1]: {expected}" in reasons(read.problems, tmp_path)
    assert list(read_tasks(tmp_path, task()).boxes) == ["a.png"]  # annotated: nothing is there


# ---------------------------------------------------------------------- images


@pytest.mark.parametrize(
    ("data", "upload", "image"),
    [
        ({"image": "a.png"}, None, "a.png"),
        ({"anything": "s3://bucket/x/a.png"}, None, "a.png"),
        ({"image": "/data/local-files/?d=set%2Fa.png"}, None, "a.png"),
        ({"image": "https://x.org/a.png?token=1"}, None, "a.png"),
        ({"image": "a.png", "thumbnail": "b.png"}, None, "a.png"),
        ({"url": "https://x.org/a"}, None, "a.png"),
        ({"left": "c.png", "right": "d.png"}, "0123abcd-a.png", "a.png"),
        ({"pdf": "x.pdf"}, "a.png", "a.png"),
    ],
)
def test_name_of_the_image(tmp_path: Path, data: Any, upload: Any, image: str) -> None:
    given = task(region()) | {"data": data, "file_upload": upload}
    assert read_tasks(tmp_path, given).boxes == {image: [("cat", *BOX)]}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (7, "[1]: the task is 7, must be an object"),
        (task() | {"data": {}}, "[1]: the data name 0 images, must name one"),
        (task() | {"data": {"a": "x.png", "b": "y.png"}}, "[1]: the data name 2 images, must name"),
        (task() | {"data": [1]}, "[1]: 'data' is [1], must be an object"),
        ({"annotations": 3}, "[1]: 'annotations' is 3, must be a list"),
        ({"annotations": [3]}, "[1]: annotations[0] is 3, must be an object"),
        ({"annotations": [{"result": 3}]}, "[1]: annotations[0].result is 3, must be a list"),
    ],
)
def test_bad_tasks_are_reported(tmp_path: Path, given: Any, problem: str) -> None:
    read = read_tasks(tmp_path, task(region()), given)
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    dropped = [found for found in read.problems if found.kind == IMAGE_DROPPED]
    assert len(dropped) == 1
    assert reasons(dropped, tmp_path)[0].startswith(f"x.json {problem}")


# ---------------------------------------------------------------------- regions


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (5, "the region is 5, must be an object"),
        (region() | {"value": 5}, "'value' is 5, must be an object"),
        (region(VALUE | {"x": "1"}), "'x' is '1', must be a number"),
        (region(VALUE | {"x": 10**400}), "'x' is 1000"),
        (region(VALUE | {"width": 0}), "box of 0 x 0.25, must have an area"),
        (region(VALUE | {"width": -5}), "box of -2 x 5, must have an area"),
        (region(VALUE | {"rotation": "x"}), "'rotation' is 'x', must be a number of degrees"),
        (
            region(VALUE | {"rotation": 9}, original_width=None),
            "a rotated region needs original_width and original_height",
        ),
        (region(VALUE, label=7), "'rectanglelabels' is 7, must be a text"),
        (region(VALUE, label=None) | {"type": "rectangle"}, "the region has no label"),
        (region(VALUE | {"rectanglelabels": []}, label=None), "'rectanglelabels' is [], must be a"),
        (region(VALUE | {"labels": {}}, label=None), "'labels' is an object, must be a list of"),
        (region({"x": 1, "y": 2, "width": 1}, "keypointlabels"), "a keypoint has no area"),
        (region({"points": [[1, 2], 3]}, "polygonlabels"), "'points' has 3, must be pairs x, y"),
        (region({"points": []}, "polygonlabels"), "a polygon with 0 points has no area"),
        (region({"rle": "x"}, "brushlabels"), "'rle' is 'x', must be a list"),
        (region({"rle": [256]}, "brushlabels"), "'rle' is [256], must be bytes"),
        (region({"rle": [1]}, "brushlabels"), "the mask ends too early"),
        (
            region({"rle": [1]}, "brushlabels", original_width="40"),
            "a painted region needs original_width and original_height",
        ),
    ],
)
def test_bad_regions_are_reported(tmp_path: Path, given: Any, reason: str) -> None:
    read = read_tasks(tmp_path, task(given, region(id=["y"])))
    assert read.boxes == {"a.png": [("cat", *BOX)]}
    found = [text for text in reasons(read.problems, tmp_path) if "annotations" in text]
    assert len(found) == 1
    assert found[0].startswith(f"x.json [0].annotations[0].result[0]: {reason}")


def test_document_must_be_a_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.json: the document is an object, must be a list$"):
        LabelStudio().images(write_json(tmp_path / "x.json", {"result": []}), [])
    assert LabelStudio().images(write_json(tmp_path / "x.json", []), []).images == []
