"""Mutated label files: the same rows are read as by a slow second reader, and all others are
reported.
"""

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from data.formats.yolo_txt import parse_label_file
from data.labels import LabelRow
from data.report import ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE, Problem
from data.scan import scan
from tests.data.test_labels import assert_same
from tests.data.test_scan import with_checksum
from tests.support.fuzzing import (
    ODD_STEMS,
    assert_printable_line,
    assert_unchanged,
    line_number,
    mutate,
    result_or_error,
)

pytestmark = pytest.mark.slow

SIZE, CLASSES = (200, 100), 5
NAMES = tuple(f"class {k}" for k in range(CLASSES))
SEED = (
    b"0 0.5 0.5 0.25 0.5\n1 .1 .9 .2 .2\n4 0.123456 0.654321 0.2 0.1\n2 0.1 0.1 0.3 0.1 0.2 0.4\n\n"
    b"3 0.5 0.5 1 1\n0 0.25 0.25 0.1 0.1\n1 0 0 0 1 1 1 1 0 0.5 0.5\n2 0.7 0.3 0.06 0.9\n"
    b"4 .2 .2 .02 .02"
)
NUMBERS = (
    b"nan inf -inf 1e999 -1 5 0.5 1.01 1.011 -0.01 -0.011 320 1e-300 0 +1 00.5 1_0 0x1 ,0.5 1. . - "
    b"e5 1E-1 -0"
)
ROWS = (
    b"0 .5 .5 .1 .1",
    b"0 .5 .5 0 .1",
    b"1 0.95 0.5 0.3 0.1",
    b"3 .1 .1 .2 .2 .3 .1 .3",
    b"7 .5 .5 .1 .1",
)
SPACES = (
    b"\n",
    b"\r\n",
    b"\r",
    b" ",
    b"\t",
    b"\x0b",
    b"\x0c",
    b"\x1c",
    b"\x85",
    b"\xc2\xa0",
    b"\0",
    b"\xef\xbb\xbf",
)
LETTERS = (
    "٣".encode(),
    "é".encode(),
    b"\x1b[2J",
    b"\xff\xfe",
    b"#",
    b"9" * 400,
    b"0." + b"3" * 400,
)
PIECES = [*NUMBERS.split(), *(b"\n" + row + b"\n" for row in ROWS), *SPACES, *LETTERS]
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class Expected(NamedTuple):
    """The contents of a label file: rows by line, the problem of every other line, the line of a
    class out of range.
    """

    rows: dict[int, tuple[int, list[float], list[tuple[float, float]]]]
    problems: dict[int, str]
    refused: int | None


def read_slowly(data: bytes) -> Expected:
    """Read the documented format line by line and number by number."""
    if data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    rows, problems, seen = {}, {}, set()
    for line, text in enumerate(re.split(rb"\r\n|\r|\n", data), 1):
        words = [word for word in re.split(rb"[ \t\x0b\x0c]", text) if word]
        if not words:
            continue
        problems[line] = ROW_DROPPED
        if (
            len(words) < 5
            or len(words) % 2 == 0
            or not all(NUMBER.fullmatch(word) for word in words)
        ):
            continue
        values = tuple(float(word) for word in words)
        if any(math.isinf(value) for value in values) or values[0] != int(values[0]):
            continue
        if not 0 <= values[0] < CLASSES:
            return Expected(rows, problems, line)
        if values in seen:
            problems[line] = ROW_DUPLICATE
            continue
        seen.add(values)
        slack = 1 if len(values) == 9 else 0.01  # a turned rectangle has four corners
        if any(value < -slack or value > 1 + slack for value in values[1:]):
            continue
        box, points, excess = _shape(values[1:])
        if box is None:
            continue
        del problems[line]
        if excess > 1e-5:
            problems[line] = ROW_CLIPPED
        rows[line] = (int(values[0]), box, points)
    return Expected(rows, problems, None)


def _shape(
    values: tuple[float, ...],
) -> tuple[list[float] | None, list[tuple[float, float]], float]:
    """Return x, y, w, h in pixels (None: empty), the polygon in pixels, and how far it extended
    outside the image.
    """
    if len(values) == 4:
        cx, cy, w, h = values
        if w <= 0 or h <= 0:
            return None, [], 0
        xs, ys = [cx - w / 2, cx + w / 2], [cy - h / 2, cy + h / 2]
    else:
        xs, ys = list(values[::2]), list(values[1::2])
    excess = max(0, -min(xs), -min(ys), max(xs) - 1, max(ys) - 1)
    if excess > 1e-5 or len(values) > 4:
        xs, ys = [min(max(x, 0), 1) for x in xs], [min(max(y, 0), 1) for y in ys]
    box = [min(xs) * 200, min(ys) * 100, (max(xs) - min(xs)) * 200, (max(ys) - min(ys)) * 100]
    points = [(x * 200, y * 100) for x, y in zip(xs, ys, strict=True)] if len(values) > 4 else []
    return (None if min(box[2:]) < 0.001 else box), points, excess


def compare_readers(data: bytes, file: Path) -> None:
    """Compare the reader with the second reader on one label file."""
    wanted = read_slowly(data)
    found = result_or_error(lambda: parse_label_file(data, str(file), SIZE, CLASSES), file)
    if isinstance(found, str):
        assert found.startswith(f"{file} line {wanted.refused}: class "), data
        return
    rows, problems, *_ = found
    assert wanted.refused is None, data
    assert _kinds_by_line(problems, file) == wanted.problems, data
    assert [row.number for row in rows] == list(wanted.rows), data
    for row in rows:
        _assert_row(row, *wanted.rows[row.number])


def _kinds_by_line(problems: list[Problem], file: Path) -> dict[int, str]:
    for problem in problems:
        assert_printable_line(str(problem))
    kinds = {line_number(problem.where, file): problem.kind for problem in problems}
    assert len(kinds) == len(problems)
    return kinds


def _assert_row(
    row: LabelRow, kind: int, box: list[float], points: list[tuple[float, float]]
) -> None:
    assert (row.class_index, row.crowd) == (kind, False)
    assert row.box_xywh == pytest.approx(box, abs=1e-9)
    assert row.area == pytest.approx(box[2] * box[3])
    drawn = np.zeros((0, 2)) if row.points is None else row.points
    assert drawn == pytest.approx(np.array(points).reshape(-1, 2), abs=1e-4)


def mutated_files(count: int, seed: int) -> list[bytes]:
    random = np.random.default_rng(seed)
    return [mutate(SEED, random, PIECES) for _ in range(count)]


def test_slow_reader_reads_unmodified_label_file() -> None:
    wanted = read_slowly(SEED)
    assert list(wanted.rows) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert wanted.rows[1][:2] == (0, [75.0, 25.0, 50.0, 50.0])
    assert (wanted.problems, wanted.refused) == ({9: ROW_CLIPPED}, None)


def test_mutated_label_files_match_slow_reader() -> None:
    for data in mutated_files(600, seed=0):
        compare_readers(data, Path("labels/a.txt"))


def test_very_long_numbers_and_rows_match_slow_reader() -> None:
    for token in (
        b"9" * 10**6,
        b"0." + b"1" * 10**6,
        b"1e" + b"9" * 10**6,
        b"-" * 10**6,
        b"1" * 10**6 + b".5e-999999",
    ):
        compare_readers(SEED + b"\n0 .5 .5 .1 " + token + b"\n1 .3 .3 .1 .1", Path("labels/a.txt"))
    compare_readers(b"0 " * 10**6 + b"\n0 .5 .5 .1 .1", Path("labels/a.txt"))
    compare_readers(b"\n" * 10**6, Path("labels/a.txt"))


def write_odd_dataset(root: Path, count: int) -> tuple[Path, list[bytes]]:
    """Create a folder of images of SIZE with odd names and mutated label files, none of which is
    rejected.
    """
    texts = [
        data for data in mutated_files(3 * count, seed=1) if read_slowly(data).refused is None
    ][:count]
    oddities = [*ODD_STEMS, " ", "a..b"]
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    picture = cv2.imencode(".png", np.zeros((SIZE[1], SIZE[0], 3), np.uint8))[1].tobytes()
    for number, text in enumerate(texts):
        stem = f"{oddities[number % len(oddities)]}{number}"
        (root / "images" / f"{stem}.png").write_bytes(picture)
        (root / "labels" / f"{stem}.txt").write_bytes(text)
    return root / "images", texts


def test_cached_scan_of_mutated_labels_equals_fresh_and_changes_no_file(tmp_path: Path) -> None:
    source, texts = write_odd_dataset(tmp_path / "odd\nset \x1b[2J", 60)
    with assert_unchanged(source.parent):
        fresh, report = scan([source], NAMES)
        for state in ("cached now", "from cache"):
            labels, again = scan([source], NAMES, cache_dir=tmp_path / "cache", threads=2)
            assert_same(labels, fresh)
            assert again == report.with_cache(state)
    wanted = [read_slowly(text) for text in texts]
    unusable = sum(not each.rows and ROW_DROPPED in each.problems.values() for each in wanted)
    assert len(report.no_usable_row) == unusable > 0
    assert len(fresh) == len(texts) - unusable
    assert len(fresh.classes) == sum(len(read_slowly(text).rows) for text in texts)
    reported = sum(count for kind, count in report.problem_counts if kind != "note")
    assert reported == sum(len(each.problems) for each in wanted) + unusable
    for problem in report.problems:
        assert_printable_line(str(problem))


def test_mutated_scan_cache_never_changes_the_result(tmp_path: Path) -> None:
    source, _ = write_odd_dataset(tmp_path / "set", 8)
    fresh, _ = scan([source], NAMES, cache_dir=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    intact, random = file.read_bytes(), np.random.default_rng(3)
    for number in range(60):
        damaged = mutate(intact, random)
        if number % 2:  # with the correct checksum of the damaged contents
            damaged = with_checksum(mutate(intact[:-32], random))
        file.write_bytes(damaged)
        labels, report = result_or_error(
            lambda: scan([source], NAMES, cache_dir=tmp_path / "cache"), file
        )
        assert_same(labels, fresh)
        assert_printable_line(report.cache)
        assert report.cache.startswith("damaged cache rebuilt: ") or damaged == intact or number % 2
        assert os.listdir(file.parent) == [file.name]
