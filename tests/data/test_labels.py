"""Label files and COCO JSON: their boxes, and a problem with its line for each invalid row; the
flat arrays.
"""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.formats.base import ImageRows
from data.formats.coco_json import images_root, read_coco_annotations, rows_inside
from data.formats.yolo_txt import label_path, parse_label_file
from data.labels import LabelRow, Labels, LabelsBuilder
from data.report import (
    IMAGES_NOT_FOUND,
    NOTE,
    POLYGON_DROPPED,
    ROW_CLIPPED,
    ROW_DROPPED,
    ROW_DUPLICATE,
    ROW_WITHOUT_IMAGE,
)
from data.scan import scan

SIZE = (200, 100)  # width, height


def parse(text: str, classes: int = 3) -> tuple[list[LabelRow], list[tuple[str, str]]]:
    rows, problems, *_ = parse_label_file(text.encode(), "labels/0012.txt", SIZE, classes)
    assert all(p.where.startswith("labels/0012.txt line ") for p in problems)
    return rows, [
        (p.kind, f"{p.where.removeprefix('labels/0012.txt ')}: {p.reason}") for p in problems
    ]


def test_parse_box_row() -> None:
    (row,), problems = parse("2 0.5 0.5 0.25 0.5\n")
    # x = (0.5 - 0.125) * 200 = 75, y = (0.5 - 0.25) * 100 = 25, w = 50, h = 50
    assert row == LabelRow(2, (75.0, 25.0, 50.0, 50.0), 2500.0, False, None, 1)
    assert problems == []


def test_parse_polygon_row() -> None:
    (row,), problems = parse("1 0.1 0.2 0.3 0.2 0.2 0.6\n")
    assert row.box_xywh == pytest.approx((20, 20, 40, 40))  # x 20..60, y 20..60
    assert row.points is not None
    assert row.points.tolist() == pytest.approx(np.array([[20, 20], [60, 20], [40, 60]]))
    assert problems == []


def test_empty_label_file_gives_no_rows() -> None:
    assert parse("") == ([], [])
    assert parse("\n  \r\n\t\n") == ([], [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("0 0.5 0.5 0.1", "number of values is 4; a row is"),
        ("0 0.5 0.5 0.1 0.1 0.9", "number of values is 6"),
        (
            "0,0.5,0.5,0.1,0.1",
            "'0,0.5,0.5,0.1,0.1' has commas between the values, must have spaces",
        ),
        (
            "0, 0.5, 0.5, 0.1, 0.1",
            "'0, 0.5, 0.5, 0.1, 0.1' has commas between the values, must have spaces",
        ),
        (
            "0;0.5;0.5;0.1;0.1",
            "'0;0.5;0.5;0.1;0.1' has semicolons between the values, must have spaces",
        ),
        ("0 0,5 0,5 ,1 0,1", "'0 0,5 0,5 ,1 0,1' has decimal commas, must have points, as in 0.5"),
        (
            "0 0.5",
            "number of values is 2; a row is class cx cy w h, or class and at least 3 points x y; "
            "this one is '0 0.5'",
        ),
        ("0 0.5 x 0.1 0.1", "'x' is not a number"),
        ("0 0.5 1_0 0.1 0.1", "'1_0' is not a number"),
        ("0 0.5 nan 0.1 0.1", "NaN or infinite"),
        ("0 0.5 -inf 0.1 0.1", "NaN or infinite"),
        ("0 0.5 1e999 0.1 0.1", "NaN or infinite"),
        ("0.5 0.5 0.5 0.1 0.1", "class 0.5 is not a whole number"),
        ("0 0.5 1.02 0.1 0.1", "coordinate 1.02 is outside 0-1 by more than 1%"),
        ("0 -0.02 0.5 0.1 0.1", "coordinate -0.02 is outside"),
        ("0 320 240 64 48", "coordinate 320 is outside"),
        ("0 0.5 0.5 0 0.1", "box has width 0 and height 0.1, must be positive"),
        ("0 0.5 0.5 0.1 -0.001", "box has width 0.1 and height -0.001, must be positive"),
        ("0 0.5 0.5 1e-300 0.1", "empty inside the image"),
        ("0 1.01 0.5 0.01 0.1", "empty inside the image"),
        ("0 0.1 0.1 0.2 0.1 0.3 0.1", "empty inside the image"),
    ],
)
def test_invalid_label_row_is_dropped_and_others_are_kept(line: str, reason: str) -> None:
    rows, problems = parse(f"1 .5 .5 .1 .1\n{line}\n2 .5 .5 .1 .1\n")
    assert [row.class_index for row in rows] == [1, 2]
    ((kind, text),) = problems
    assert kind == ROW_DROPPED
    assert text.startswith("line 2: ")
    assert reason in text


def test_rows_extending_outside_image_are_clipped_and_reported() -> None:
    rows, problems = parse("0 0.05 0.5 0.2 0.2\n0 1.005 0.5 0.2 0.2\n0 -0.01 0 1 0 1 0.5\n")
    assert rows[0].box_xywh == pytest.approx((0, 40, 30, 20))  # x -0.05..0.15 -> 0..0.15
    assert rows[1].box_xywh == pytest.approx((181, 40, 19, 20))  # x 0.905..1.105 -> 0.905..1
    assert rows[2].box_xywh == pytest.approx((0, 0, 200, 50))
    assert problems == [
        (ROW_CLIPPED, "line 1: was outside the image by 5.00% of its side"),
        (ROW_CLIPPED, "line 2: was outside the image by 10.50% of its side"),
        (ROW_CLIPPED, "line 3: was outside the image by 1.00% of its side"),
    ]


def test_rounding_error_at_image_edge_is_not_reported() -> None:
    (row,), problems = parse("0 0.166667 0.5 0.333335 1")
    assert row.box_xywh[0] == pytest.approx((0.166667 - 0.333335 / 2) * 200)
    assert problems == []


def test_duplicate_label_rows_are_dropped() -> None:
    rows, problems = parse("0 .5 .5 .1 .1\n1 .5 .5 .1 .1\n0 0.50 0.5 0.1 0.1\n")
    assert len(rows) == 2
    assert problems == [(ROW_DUPLICATE, "line 3: the same as line 1")]


@pytest.mark.parametrize("written", ["80", "-1", "80.0"])
def test_class_out_of_range_raises(written: str) -> None:
    number = written.removesuffix(".0")
    message = f"labels/0012.txt line 3: class {number}, but names has 80 classes (0-79)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse(f"0 .5 .5 .1 .1\n\n{written} .5 .5 .1 .1\n", classes=80)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
def test_empty_file_with_the_mark_of_an_encoding_has_no_row(encoding: str) -> None:
    """Windows programs write such files for images without objects: these are background."""
    assert parse_label_file("".encode(encoding), "a.txt", (20, 20), 2) == ImageRows([], [])
    assert parse_label_file("\r\n \n".encode(encoding), "a.txt", (20, 20), 2) == ImageRows([], [])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_rows_in_utf_16_are_dropped_with_the_reason(encoding: str) -> None:
    """As Windows' editors and PowerShell's `>` write them."""
    rows, problems, *_ = parse_label_file(
        "0 .5 .5 .1 .1\r\n\r\n1 .5 .5 .1 .1\r\n".encode(encoding), "a.txt", SIZE, 2
    )
    assert rows == []
    assert [(p.kind, str(p)) for p in problems] == [
        (ROW_DROPPED, "a.txt line 1: '0 .5 .5 .1 .1' is UTF-16 text, must be UTF-8"),
        (ROW_DROPPED, "a.txt line 3: '1 .5 .5 .1 .1' is UTF-16 text, must be UTF-8"),
    ]


@pytest.mark.parametrize(
    "data", [b"\xff\xfe0\0 \0", b"\x00" * 50, bytes(range(256)), "0 ٠ 1 1 1".encode()]
)
def test_binary_data_in_label_file_is_reported_as_dropped_rows(data: bytes) -> None:
    rows, problems, *_ = parse_label_file(data, "a.txt", SIZE, 1)
    assert rows == []
    assert {p.kind for p in problems} == {ROW_DROPPED}
    assert all(p.reason.isprintable() for p in problems)


def test_byte_order_mark_and_all_line_endings_are_accepted() -> None:
    rows, problems = parse("\ufeff0 .5 .5 .1 .1\r\n1 .5 .5 .1 .1\r2 .5 .5 .1 .1")
    assert [(row.class_index, row.number) for row in rows] == [(0, 1), (1, 2), (2, 3)]
    assert problems == []


def test_label_path() -> None:
    assert label_path("/images/a/images/b.c.png") == "/images/a/labels/b.c.txt"
    assert label_path("/a/myimages/b.png") == "/a/myimages/b.txt"


# --- COCO JSON ---


def annotation(number: int, **changes: Any) -> dict[str, Any]:
    base = {
        "id": number,
        "image_id": 7,
        "category_id": 3,
        "bbox": [10, 20, 30.5, 40],
        "area": 600.25,
        "iscrowd": 0,
    }
    return {key: value for key, value in (base | changes).items() if value != "gone"}


def write_coco_json(folder: Path, annotations: list, **changes: Any) -> Path:
    """Write a COCO JSON with one image in the same folder. changes: other values; "gone" removes a
    key.
    """
    file = folder / "instances_val.json"
    (folder / "a.jpg").touch()
    document = {
        "images": [{"id": 7, "file_name": "a.jpg", "width": 200, "height": 100}],
        "annotations": annotations,
        "categories": [{"id": 3, "name": "dog"}, {"id": 9, "name": "cat"}],
    }
    file.write_text(json.dumps({k: v for k, v in (document | changes).items() if v != "gone"}))
    return file


def test_coco_values_are_read_exactly(tmp_path: Path) -> None:
    crowd = annotation(
        2, category_id=9, iscrowd=1, segmentation={"counts": [1, 2], "size": [100, 200]}
    )
    part = read_coco_annotations(
        write_coco_json(tmp_path, [annotation(1), crowd]), ["cat", "dog", "cow"]
    )
    ((first, second),) = part.rows
    assert first == LabelRow(
        1, (10.0, 20.0, 30.5, 40.0), 600.25, False, None, 1
    )  # dog is class 1 in names
    assert second == LabelRow(0, (10.0, 20.0, 30.5, 40.0), 600.25, True, None, 2)
    assert part.images == [(str(tmp_path / "a.jpg"), 7, (200, 100))]
    assert part.category_ids == [9, 3, 12]  # cow is not in the file: 9 + 1 + class 2
    assert part.problems == []


def test_coco_polygon_is_kept_only_if_it_spans_its_box(tmp_path: Path) -> None:
    outline = [10, 20, 40.5, 20, 40.5, 60]
    entries = [
        annotation(1, segmentation=[outline]),
        annotation(2, segmentation=[outline, outline]),
        annotation(3, segmentation=[[10, 20, 40, 20]]),
        annotation(4, segmentation=[[0, 0, 199, 0, 199, 99]]),
        annotation(5, segmentation=[[10, 20, None, 20, 40.5, 60]]),
        annotation(6, segmentation=[["x"] * 6]),
        annotation(7, segmentation=[]),
        annotation(8, segmentation=[[[10**30, 0]] * 3]),
        annotation(9, segmentation=[[str(value) for value in outline]]),
        annotation(10, segmentation=[[10, 20, [40.5], 20, 40.5, 60]]),
    ]
    for entry in entries[1:]:  # boxes that differ a little, since exact duplicates are dropped
        entry["bbox"] = [10, 20, 30.5, 40 + entry["id"] / 1000]
    part = read_coco_annotations(write_coco_json(tmp_path, entries), ["cat", "dog"])
    assert part.rows[0][0].points is not None
    assert part.rows[0][0].points.tolist() == [[10, 20], [40.5, 20], [40.5, 60]]
    assert all(row.points is None for row in part.rows[0][1:])
    assert [p.kind for p in part.problems] == [POLYGON_DROPPED] * 7
    assert [p.where.split()[-1] for p in part.problems] == ["3", "4", "5", "6", "8", "9", "10"]


@pytest.mark.parametrize(
    ("entry", "where", "reason"),
    [
        (annotation(5, bbox="gone"), "annotation 5", "bbox is None, must be four finite numbers"),
        (annotation(5, bbox=[1, 2, float("nan"), 3]), "annotation 5", "bbox is [1, 2, nan, 3]"),
        (annotation(5, bbox=[1, 2, 10**400, 3]), "annotation 5", "bbox is [1, 2, 1000000000"),
        (annotation(5, bbox=[1, 2, "3", 4]), "annotation 5", "bbox is [1, 2, '3', 4]"),
        (annotation(5, bbox=[[[]], 2, 3, 4]), "annotation 5", "bbox is [..., 2, 3, 4]"),
        (
            annotation(5, bbox=[1, 2, 0, 4]),
            "annotation 5",
            "bbox has width 0 and height 4, must be at least 0.001",
        ),
        (annotation(5, image_id=8), "annotation 5", "image_id 8 is not among the file's images"),
        (annotation(5, image_id=[7]), "annotation 5", "image_id is [7], must be a"),
        (
            annotation(5, category_id=4),
            "annotation 5",
            "category_id 4 is not among the file's categories",
        ),
        (annotation(5, category_id="gone"), "annotation 5", "category_id is None, must be a"),
        (annotation(5, iscrowd=2), "annotation 5", "iscrowd is 2, must be 0 or 1"),
        (annotation(5, id="gone", iscrowd=2), "annotations[1]", "iscrowd is 2, must be 0 or 1"),
        ("text", "annotations[1]", "not an object"),
    ],
)
def test_invalid_annotation_is_dropped_and_others_are_kept(
    tmp_path: Path, entry: Any, where: str, reason: str
) -> None:
    file = write_coco_json(tmp_path, [annotation(1), entry, annotation(6, category_id=9)])
    part = read_coco_annotations(file, ["dog", "cat"])
    assert [row.number for row in part.rows[0]] == [1, 6]
    (problem,) = part.problems
    assert problem.kind == (ROW_WITHOUT_IMAGE if "image_id" in reason else ROW_DROPPED)
    assert problem.where == f"{file} {where}"
    assert problem.reason.startswith(reason)


def test_annotations_without_a_usable_id_are_kept_and_named_by_their_place(tmp_path: Path) -> None:
    """Some exporters write no ids, or texts; no box depends on them."""
    entries = [
        annotation(5),
        *(annotation(5, id=text, bbox=[size, 2, 3, 4]) for size, text in enumerate(["gone", "a"])),
    ]
    outside = annotation(5, id=None, bbox=[300, 2, 3, 4])
    file = write_coco_json(tmp_path, [*entries, entries[1], outside])
    part = read_coco_annotations(file, ["dog", "cat"])
    assert [row.number for row in part.rows[0]] == [
        5,
        "annotations[1]",
        "annotations[2]",
        "annotations[4]",
    ]
    (problem,) = part.problems
    assert str(problem) == f"{file} annotations[3]: the same as annotations[1]"
    _, problems = rows_inside(part.rows[0], (200, 100), "a.json")
    assert [problem.where for problem in problems] == ["a.json annotations[4]"]


def test_image_whose_annotations_name_it_by_a_text_is_not_background(tmp_path: Path) -> None:
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in (7, 8)]
    file = write_coco_json(tmp_path, [annotation(1), annotation(2, image_id="8")], images=images)
    part = read_coco_annotations(file, ["dog", "cat"])
    assert (list(map(len, part.rows)), part.dropped_rows) == ([1, 0], [0, 1])


def test_one_file_under_two_spellings_has_the_boxes_of_both(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "./a.jpg"}]
    file = write_coco_json(
        tmp_path, [annotation(1), annotation(2, image_id=8, bbox=[1, 2, 3, 4])], images=images
    )
    part = read_coco_annotations(file, ["dog", "cat"])
    assert [[row.number for row in rows] for rows in part.rows] == [[1, 2]]


def test_annotations_with_the_same_id_are_all_kept(tmp_path: Path) -> None:
    """Exporters number annotations per image, or write 0 for all; no box depends on these ids."""
    images = [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}]
    entries = [
        annotation(0, bbox=[1, 2, 3, 4]),
        annotation(0, image_id=8),
        annotation(0, image_id=8, category_id=9),
        annotation(0, bbox=[5, 6, 7, 8], iscrowd=1),
    ]
    part = read_coco_annotations(write_coco_json(tmp_path, entries, images=images), ["dog", "cat"])
    assert [[row.class_index for row in rows] for rows in part.rows] == [[0, 0], [0, 1]]
    assert part.rows[0][1].crowd
    assert (part.dropped_rows, part.problems) == ([0, 0], [])


def test_annotation_with_class_and_bbox_of_another_one_is_dropped(tmp_path: Path) -> None:
    entries = [
        annotation(1),
        annotation(
            2, area=5, segmentation=[[1, 2, 3, 4, 5, 6]]
        ),  # only class, bbox and iscrowd are compared
        annotation(1),
        annotation(3, bbox=[10, 20, 30.5, 40.001]),
        annotation(4, iscrowd=1),
        annotation(5, category_id=9),
    ]
    part = read_coco_annotations(write_coco_json(tmp_path, entries), ["dog", "cat"])
    assert [row.number for row in part.rows[0]] == [1, 3, 4, 5]
    assert part.dropped_rows == [0]  # their box is there
    duplicates = [(p.where.split()[-1], p.reason) for p in part.problems if p.kind == ROW_DUPLICATE]
    assert duplicates == [
        ("2", "the same as annotation 1"),
        ("1", "the same as another one with this id"),
    ]


def test_unusable_annotations_are_counted_for_their_image(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}]
    unusable = [
        annotation(1, bbox=[1]),
        annotation(2, iscrowd=2),
        annotation(3, category_id=4),
        annotation(4, image_id=99),
        5,
    ]
    part = read_coco_annotations(
        write_coco_json(tmp_path, [*unusable, annotation(9, image_id=8)], images=images), ["dog"]
    )
    assert part.dropped_rows == [3, 0]
    assert list(map(len, part.rows)) == [0, 1]


def test_image_listed_under_two_ids_has_the_annotations_of_both(tmp_path: Path) -> None:
    images = [
        {"id": 7, "file_name": "a.jpg"},
        {"id": 8, "file_name": "b.jpg"},
        {"id": 9, "file_name": "a.jpg"},
    ]
    entries = [
        annotation(1),
        annotation(2, image_id=9, bbox=[1, 2, 3, 4]),
        annotation(3, image_id=9),
    ]
    part = read_coco_annotations(write_coco_json(tmp_path, entries, images=images), ["dog"])
    assert [Path(image.path).name for image in part.images] == ["a.jpg", "b.jpg"]
    assert [image.image_id for image in part.images] == [7, 8]
    assert [[row.number for row in rows] for rows in part.rows] == [[1, 2], []]
    note, duplicate = part.problems
    assert str(note).endswith(
        "images[2]: 'a.jpg' was already listed, with id 7; it has the boxes of both entries"
    )
    assert (note.kind, duplicate.kind) == (NOTE, ROW_DUPLICATE)


def test_annotation_of_an_image_id_that_two_files_have_is_refused(tmp_path: Path) -> None:
    images = [{"id": 7, "file_name": "a.jpg"}, {"id": 7, "file_name": "b.jpg"}]
    file = write_coco_json(tmp_path, [annotation(5)], images=images)
    message = f"{file} annotation 5: image_id 7 is the id of both 'a.jpg' and 'b.jpg' in 'images'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_coco_annotations(file, ["dog"])


def test_invalid_area_is_replaced_and_reported(tmp_path: Path) -> None:
    part = read_coco_annotations(
        write_coco_json(
            tmp_path, [annotation(1, area=-1), annotation(2, area="gone", category_id=9)]
        ),
        ["dog", "cat"],
    )
    assert [row.area for row in part.rows[0]] == [1220.0, 1220.0]  # 30.5 * 40
    assert [(p.kind, p.where.split()[-1]) for p in part.problems] == [(NOTE, "1")]


def test_invalid_image_entries_are_dropped(tmp_path: Path) -> None:
    images = [
        {"id": 7, "file_name": "a.jpg"},
        {"id": 7, "file_name": "b.jpg"},
        {"id": 8, "file_name": "a.jpg", "width": 5, "height": 5},
        {"id": "9", "file_name": "c.jpg"},
        {"id": 10},
        {"id": 11, "file_name": "\ud800"},
        3,
        {"id": 12, "file_name": "d.jpg", "width": "x", "height": -1},
    ]
    part = read_coco_annotations(write_coco_json(tmp_path, [], images=images), ["dog", "cat"])
    assert [(image.image_id, image.declared_size) for image in part.images] == [
        (7, None),
        (12, None),
    ]
    assert [p.where.split()[-1] for p in part.problems] == [
        f"images[{i}]" for i in (1, 2, 3, 4, 5, 6)
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": "gone"}, "has no list 'images'"),
        ({"annotations": {}}, "has no list 'annotations'"),
        ({"categories": None}, "has no list 'categories'"),
        (
            {"categories": [{"id": 3}]},
            "categories[0] must have a whole number 'id' and a text 'name'",
        ),
        ({"categories": [5]}, "categories[0] must have"),
        (
            {"categories": [{"id": 3, "name": "a"}, {"id": 3, "name": "b"}]},
            "categories[1]: id 3 or name 'b' appears twice",
        ),
        (
            {"categories": [{"id": 3, "name": "a"}, {"id": 4, "name": "a"}]},
            "categories[1]: id 4 or name 'a' appears twice",
        ),
    ],
)
def test_coco_json_with_invalid_structure_is_rejected(
    tmp_path: Path, changes: dict, message: str
) -> None:
    file = write_coco_json(tmp_path, **({"annotations": []} | changes))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_coco_annotations(file, ["dog", "cat"])
    assert str(caught.value).startswith(str(file))


def test_ids_that_are_no_whole_numbers_are_named(tmp_path: Path) -> None:
    images = [{"id": value, "file_name": f"{value}.jpg"} for value in (2**60, "7", None, 2**53 - 1)]
    file = write_coco_json(tmp_path, [annotation(5, category_id="3")], images=images)
    part = read_coco_annotations(file, ["dog", "cat"])
    assert [image.image_id for image in part.images] == [2**53 - 1]
    reasons = [problem.reason for problem in part.problems if problem.kind != IMAGES_NOT_FOUND]
    assert reasons == [
        f"id is {2**60}, larger than 2**53: other programs do not keep it exactly",
        "id is the text '7', must be a whole number",
        "id is None, must be a whole number",
        "image_id 7 is not among the file's images",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1: not JSON"),
        (b'{\n"a": [1,\n}', "line 3: not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "no"),
        (b"\xff\xff{", "not UTF-8 text"),
        (b"[]", "is not a COCO JSON"),
        (
            b'{"images": [], "images": [{"id": 1}]}',
            "the object with the id None has the key 'images' twice",
        ),
        (
            b'{"a": [{"id": 5, "b\\u001b[2J": 0, "b\\u001b[2J": 1}]}',
            r"id 5 has the key 'b\x1b[2J' twice",
        ),
    ],
)
def test_invalid_json_is_rejected(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_coco_annotations(file, ["a"])
    assert str(caught.value).startswith(str(file))


def test_only_used_categories_must_be_in_names(tmp_path: Path) -> None:
    file = write_coco_json(tmp_path, [annotation(1)])
    assert read_coco_annotations(file, ["dog"]).category_ids == [3]
    with pytest.raises(
        ValueError,
        match="annotation 1: category 3 is 'dog', which is not in 'names' of the data YAML",
    ):
        read_coco_annotations(file, ["cat"])


def test_boxes_outside_image_are_dropped() -> None:
    inside = LabelRow(0, (-5.0, 90.0, 10.0, 20.0), 1.0, False, None, 1)
    outside = [
        LabelRow(0, (200.0, 0.0, 5.0, 5.0), 1.0, False, None, 2),
        LabelRow(0, (-9.0, 0.0, 9.0, 5.0), 1.0, False, None, 3),
    ]
    kept, problems = rows_inside([inside, *outside], SIZE, "x.json")
    assert kept == [inside]
    assert [p.where for p in problems] == ["x.json annotation 2", "x.json annotation 3"]


def test_images_root_finds_the_image_folder(tmp_path: Path) -> None:
    places = (
        "a",
        "images/a",
        "images/val/a",
        "val/a",
        "../images/a",
        "../images/val/a",
        "../val/a",
    )
    for number, place in enumerate(places):
        base = tmp_path / str(number) / "annotations"
        base.mkdir(parents=True)
        image = base / f"{place}.jpg"
        image.parent.resolve().mkdir(parents=True, exist_ok=True)
        image.parent.resolve().joinpath("a.jpg").touch()
        root = images_root(base / "instances_val.json", ["a.jpg", "missing.jpg"])
        assert root.resolve() == image.parent.resolve()
    assert images_root(tmp_path / "x.json", []) == tmp_path


def test_missing_coco_images_are_reported_with_folders_tried(tmp_path: Path) -> None:
    file = write_coco_json(tmp_path, [annotation(1)], images=[{"id": 7, "file_name": "b.jpg"}])
    (problem,) = read_coco_annotations(file, ["dog"]).problems
    places = "., images, images/val, val, ../images, ../images/val, ../val"
    assert str(problem) == (
        f"{file}: 1 image tried, such as b.jpg: not found; folders tried in {tmp_path}: {places}"
    )
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "b.jpg").touch()
    assert read_coco_annotations(file, ["dog"]).problems == []
    assert read_coco_annotations(write_coco_json(tmp_path, [], images=[]), ["dog"]).problems == []


# --- the flat arrays ---


def example_labels() -> Labels:
    """Return labels of three images with 2, 0 and 1 rows; the last row is a triangle."""
    triangle = np.array([[0, 0], [4, 0], [4, 5]], np.float32)
    builder = LabelsBuilder()
    builder.add_image(
        "/x/ä b.jpg",
        (10, 20),
        5,
        [
            LabelRow(0, (1, 2, 3, 4), 12, False, None, 1),
            LabelRow(1, (0, 0, 9, 9), 50, True, None, 2),
        ],
    )
    builder.add_image("/x/\udcff.jpg", (30, 40), 6, [])
    builder.add_image("/x/c.jpg", (50, 60), 7, [LabelRow(1, (0, 0, 4, 5), 20, False, triangle, 1)])
    return builder.build([11, 22])


def test_labels_are_looked_up_by_image_index() -> None:
    labels = example_labels()
    assert len(labels) == 3
    assert [labels.path(i) for i in range(3)] == ["/x/ä b.jpg", "/x/\udcff.jpg", "/x/c.jpg"]
    assert [labels.rows(i) for i in (0, 1, 2, -1)] == [
        slice(0, 2),
        slice(2, 2),
        slice(2, 3),
        slice(2, 3),
    ]
    assert labels.sizes.tolist() == [[10, 20], [30, 40], [50, 60]]
    assert labels.row_points(2).tolist() == [[0, 0], [4, 0], [4, 5]]
    assert labels.row_points(0).shape == (0, 2)
    with pytest.raises(IndexError):
        labels.path(3)


@pytest.mark.parametrize("indices", [[], [2], [2, 0], [1, 1, 2], [-1]])
def test_subset_equals_newly_built_labels(indices: list[int]) -> None:
    labels = example_labels()
    part = labels.subset(indices)
    builder = LabelsBuilder()
    for i in indices:
        rows = [
            LabelRow(
                int(labels.classes[r]),
                tuple(labels.boxes_xywh[r]),
                labels.areas[r],
                labels.crowd[r],
                labels.row_points(r),
                0,
            )
            for r in range(*labels.rows(i).indices(len(labels.classes)))
        ]
        builder.add_image(labels.path(i), tuple(labels.sizes[i]), labels.image_ids[i], rows)
    assert_same(part, builder.build([11, 22]))


def assert_same(first: Labels, second: Labels) -> None:
    for name, array in first.arrays().items():
        other = second.arrays()[name]
        assert array.dtype == other.dtype
        assert np.array_equal(array, other), name


def test_labels_digest_depends_on_contents_not_on_folder() -> None:
    labels = example_labels()
    arrays = labels.arrays()
    assert labels.digest().startswith("3 images with 3 boxes, ")
    moved = Labels(
        **arrays
        | {"path_bytes": np.frombuffer(bytes(arrays["path_bytes"]).replace(b"/x", b"/y"), np.uint8)}
    )
    assert moved.path(2) == "/y/c.jpg"
    assert moved.digest() == labels.digest()
    other = Labels(**arrays | {"boxes_xywh": np.nextafter(arrays["boxes_xywh"], 1e3)})
    named = Labels(
        **arrays
        | {
            "path_bytes": np.frombuffer(
                bytes(arrays["path_bytes"]).replace(b"c.j", b"d.j"), np.uint8
            )
        }
    )
    parts = (labels.subset([0, 1]), labels.subset([1, 0, 2]), labels.subset([]))
    assert (
        len({part.digest() for part in (labels, other, named, *parts, labels.with_single_class())})
        == 7
    )


def test_single_class_labels_survive_pickling() -> None:
    single = example_labels().with_single_class()
    assert single.classes.tolist() == [0, 0, 0]
    assert single.category_ids.tolist() == [11]
    assert_same(pickle.loads(pickle.dumps(single)), single)  # noqa: S301


def test_box_sizes_by_hand() -> None:
    builder = LabelsBuilder()
    box, region = (
        LabelRow(0, (1, 2, 20, 10), 200, False, None, 1),
        LabelRow(0, (0, 0, 50, 50), 2500, True, None, 2),
    )
    builder.add_image("a.png", (200, 100), 1, [box, region])
    builder.add_image("b.png", (64, 32), 2, [])
    builder.add_image("c.png", (30, 60), 3, [LabelRow(1, (0, 0, 6, 15), 90, False, None, 1)])
    labels = builder.build([1, 2])
    # Long sides 200 and 60 become 100 px: half of 20 x 10, and 5 / 3 of 6 x 15. The ignore region
    # is left out.
    assert labels.box_sizes(100).tolist() == pytest.approx(np.array([[10, 5], [10, 25]]))
    # 2, 0 and 1 boxes: the median is 1, and halfway from it to the maximum is 1.5, which is rounded
    # down.
    assert [labels.boxes_per_image(percent) for percent in (0, 50, 75, 100)] == [0, 1, 1, 2]
    assert labels.subset([1]).box_sizes(100).shape == (0, 2)
    assert labels.subset([1]).boxes_per_image(95) == 0


def test_empty_labels() -> None:
    empty = LabelsBuilder().build([1])
    assert len(empty) == 0
    assert_same(empty.subset([]), empty)


def test_inconsistent_label_arrays_are_rejected() -> None:
    arrays = example_labels().arrays()
    for name, wrong, message in (
        ("offsets", np.array([0, 2, 1, 3]), "offsets must increase from 0 to 3"),
        ("classes", np.array([0, 1, 2], np.int32), "classes must be in 0-1"),
        ("sizes", np.zeros((3, 2), np.int64), "sizes is int64"),
        ("crowd", np.zeros(2, bool), "crowd is bool"),
    ):
        with pytest.raises(ValueError, match=message):
            Labels(**(arrays | {name: wrong}))


def test_corners_of_a_turned_rectangle_are_clipped_as_in_dota(tmp_path: Path) -> None:
    """A corner is a tenth of the image outside: the object is kept, and clipped."""
    corners = [(0.9, 0.2), (1.1, 0.4), (1.0, 0.5), (0.8, 0.3)]
    rows = []
    for name, scale, text in (("yolo", (1, 1), "0 {}"), ("dota", SIZE, "{} cat 0")):
        folder = tmp_path / name / "images"
        folder.mkdir(parents=True)
        cv2.imwrite(str(folder / "a.png"), np.zeros((SIZE[1], SIZE[0], 3), np.uint8))
        labels = folder.with_name("labels" if name == "yolo" else "labelTxt")
        labels.mkdir()
        values = [
            value * side for point in corners for value, side in zip(point, scale, strict=True)
        ]
        (labels / "a.txt").write_text(text.format(" ".join(f"{value:g}" for value in values)))
        found, report = scan([folder], ["cat"])
        assert dict(report.problem_counts) == {ROW_CLIPPED: 1}
        assert report.problems[0].reason == "was outside the image by 10.00% of its side"
        rows.append(found)
    yolo, dota = rows
    assert yolo.boxes_xywh.round(6).tolist() == [[160, 20, 40, 30]]
    assert dota.boxes_xywh.round(6).tolist() == [[160, 20, 40, 30]]
    np.testing.assert_allclose(yolo.points, [(180, 20), (200, 40), (200, 50), (160, 30)], atol=1e-4)
    np.testing.assert_allclose(dota.points, yolo.points, atol=1e-4)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0 -.1 .1 .2 .1 .2 .3 .1 .3 .1 .2", "coordinate -0.1 is outside 0-1 by more than 1%"),
        ("0 .1 .1 .2 .1 .2 .3 2.5 .3", "outside 0-1 by more than 100%; is it in pixels?"),
        ("0 1.1 .1 1.2 .1 1.2 .3 1.1 .3", "empty inside the image"),
    ],
)
def test_other_corners_outside_are_dropped(row: str, reason: str) -> None:
    rows, problems = parse(row)
    assert rows == []
    ((kind, text),) = problems
    assert kind == ROW_DROPPED
    assert reason in text
