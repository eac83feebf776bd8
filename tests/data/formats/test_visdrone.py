"""VisDrone's text files: rows, ignore regions, clipped and dropped rows, and which folders are read
so.
"""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.formats import registry as formats
from data.formats.visdrone import VisDrone, parse_visdrone
from data.formats.yolo_txt import YoloText
from data.report import ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE
from data.scan import scan
from tests.support.fuzzing import assert_printable_line, line_number, mutate, result_or_error

NAMES = tuple("abcdefghij")
SIZE = (40, 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return images/ with a.jpg and b.jpg, beside annotations/a.txt."""
    for name in "ab":
        (tmp_path / "images").mkdir(exist_ok=True)
        picture = cv2.imencode(".jpg", np.full((SIZE[1], SIZE[0], 3), 99, np.uint8))[1].tobytes()
        (tmp_path / "images" / f"{name}.jpg").write_bytes(picture)
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "a.txt").write_text(
        "1,2,3,4,1,10,0,0\n5,6,7,8,0,1,0,2,\r\n0,0,40,20,0,0,0,0\n"
    )
    return tmp_path / "images"


def test_rows_and_ignore_regions_are_read(folder: Path) -> None:
    labels, report = scan([folder], NAMES)
    assert labels.classes.tolist() == [9, 0, *range(10)]
    assert labels.boxes_xywh.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], *[[0, 0, 40, 20]] * 10]
    assert labels.crowd.tolist() == [False, *[True] * 11]
    assert (report.images, report.without_label_file, report.instances, report.crowd) == (
        2,
        1,
        1,
        11,
    )


def test_other_objects_are_ignore_regions_of_every_class() -> None:
    rows = parse_visdrone(b"1,1,2,2,1,11,0,0", "a.txt", SIZE).rows
    assert [(row.class_index, row.crowd, row.number, row.area) for row in rows] == [
        (k, True, 1, 4) for k in range(10)
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,2,3,0,1,4,0,0", "box has width 3 and height 0, must be positive"),
        ("40,2,3,4,1,4,0,0", "box 40,2,3,4 is outside its image of 40x20"),
        ("1,2,3,4,1,4,0", "'1,2,3,4,1,4,0' is not a row of eight whole numbers with commas"),
        (
            "1,2,3.5,4,1,4,0,0",
            "'1,2,3.5,4,1,4,0,0' is not a row of eight whole numbers with commas",
        ),
        ("0 .5 .5 .1 .1", "'0 .5 .5 .1 .1' is not a row of eight whole numbers with commas"),
    ],
)
def test_malformed_row_is_dropped_and_reported(line: str, reason: str) -> None:
    found = parse_visdrone(f"{line}\n\n1,1,2,2,1,1,0,0".encode(), "a.txt", SIZE)
    assert [row.number for row in found.rows] == [3]
    assert [tuple(problem) for problem in found.problems] == [(ROW_DROPPED, "a.txt line 1", reason)]


def test_row_outside_the_image_is_clipped_and_reported() -> None:
    found = parse_visdrone(b"-2,10,10,15,1,4,0,0", "a.txt", SIZE)
    assert found.rows[0].box_xywh == (0, 10, 8, 10)
    assert [tuple(problem) for problem in found.problems] == [
        (ROW_CLIPPED, "a.txt line 1", "was outside the image by 5 pixels")
    ]


def test_unknown_category_and_other_number_of_names_are_refused(folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"images has labels of VisDrone, .* 10 classes, but names has 2: use"
    ):
        scan([folder], NAMES[:2])
    (folder.parent / "annotations" / "b.txt").write_text("1,1,2,2,1,12,0,0")
    with pytest.raises(ValueError, match=r"b.txt line 1: category 12, but VisDrone has 0-11$"):
        scan([folder], NAMES)


def test_folder_with_yolo_labels_or_other_text_files_stays_yolo(folder: Path) -> None:
    assert isinstance(formats.format_of(folder), VisDrone)
    (folder.parent / "annotations" / "a.txt").write_text("0 .5 .5 .1 .1\n")
    assert isinstance(formats.format_of(folder), YoloText)
    (folder.parent / "annotations" / "a.txt").write_text("1,1,2,2,1,1,0,0")
    (folder.parent / "labels").mkdir()
    (folder.parent / "labels" / "b.txt").touch()
    assert isinstance(formats.format_of(folder), YoloText)


def test_empty_file_is_background() -> None:
    assert parse_visdrone(b"", "a.txt", SIZE).rows == []


def test_mutated_files_are_read_or_reported_row_by_row(tmp_path: Path) -> None:
    """Each line that is not empty gives rows or is dropped, or ends the scan because of its
    category.
    """
    random, file = np.random.default_rng(0), tmp_path / "a.txt"
    seed = b"1,2,3,4,1,10,0,0\n5,6,7,8,0,1,0,2,\n0,0,40,20,0,0,0,0\n-3,-3,100,100,1,11,0,0\n"
    pieces = [
        b",",
        b"\n",
        b"-",
        b"12",
        b"99999999",
        b"\xff",
        b"\x1b[2J",
        b" ",
        b"\r",
        b"\0",
        b"1e3",
        "٣".encode(),
    ]
    read = 0
    for _ in range(500):
        data = mutate(seed, random, pieces)
        found = result_or_error(lambda: parse_visdrone(data, str(file), SIZE), file)  # noqa: B023
        if isinstance(found, str):
            assert re.search(r" line \d+: category -?\d+, but VisDrone has 0-11$", found)
            continue
        without_rows = (ROW_DROPPED, ROW_DUPLICATE)
        dropped = [
            line_number(problem.where, file)
            for problem in found.problems
            if problem.kind in without_rows
        ]
        lines = [number for number, line in enumerate(data.splitlines(), 1) if line.strip()]
        assert sorted({*dropped} | {row.number for row in found.rows}) == lines
        assert not {*dropped} & {row.number for row in found.rows}
        for problem in found.problems:
            assert_printable_line(str(problem))
        read += 1
    assert read > 250


def test_rows_after_a_mark_are_read_and_utf_16_is_named() -> None:
    row = "10,10,20,20,1,4,0,0\n"
    marked = parse_visdrone(row.encode("utf-8-sig"), "a.txt", (64, 64))
    assert ([labels.box_xywh for labels in marked.rows], marked.problems) == (
        [(10, 10, 20, 20)],
        [],
    )
    for encoding in ("utf-16", "utf-16-le"):
        found = parse_visdrone(row.encode(encoding), "a.txt", (64, 64))
        assert found.rows == []
        assert [str(problem) for problem in found.problems] == [
            "a.txt line 1: '10,10,20,20,1,4,0,0' is UTF-16 text, must be UTF-8"
        ]
