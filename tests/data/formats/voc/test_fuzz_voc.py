"""Mutated XML files of Pascal VOC: a slow second reader finds the same objects; all others are
reported by line.
"""

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest

from data.formats.base import ImageRows, UnreadableLabelsError
from data.formats.voc.reader import parse_xml_file
from data.report import ROW_CLIPPED
from data.scan import scan
from tests.data.test_labels import assert_same
from tests.support.fuzzing import (
    assert_printable_line,
    assert_unchanged,
    line_number,
    mutate,
    result_or_error,
)

pytestmark = pytest.mark.slow

SIZE, NAMES = (200, 100), ["cat", "dog", "é & ü"]
SEED = """<?xml version="1.0"?>
<annotation verified="yes">
  <folder>JPEGImages</folder><filename>a.jpg</filename><source><database>x</database></source>
  <size><width>200</width><height>100</height><depth>3</depth></size><segmented>0</segmented>
  <object><name>cat</name><pose>Left</pose><truncated>0</truncated><difficult>0</difficult>
    <bndbox><xmin>1</xmin><ymin>1</ymin><xmax>200</xmax><ymax>100</ymax></bndbox></object>
  <object><name>dog</name><difficult>1</difficult>
    <bndbox><xmax>20.5</xmax><xmin>10.25</xmin><ymin>7</ymin><ymax>9e1</ymax></bndbox>
    <part><name>head</name><bndbox><xmin>3</xmin><ymin>4</ymin><xmax>5</xmax><ymax>6</ymax></bndbox></part></object>
  <object><name> é &amp; &#252; </name><bndbox><xmin>0</xmin><ymin>50</ymin><xmax>210</xmax><ymax>50</ymax></bndbox>
  </object>
</annotation>
""".encode()  # noqa: E501
PIECES = [
    *(
        b"<",
        b">",
        b"/",
        b"&",
        b"</object>",
        b"<object>",
        b"<name>dog</name>",
        b"<name>cow</name>",
        b"<difficult>1",
    ),
    *(
        b"<bndbox>",
        b"</bndbox>",
        b"<xmin>",
        b"</xmin>",
        b"<!--",
        b"-->",
        b"<![CDATA[",
        b"]]>",
        b"<?x",
        b"?>",
        b"\r\n",
    ),
    *(
        b"&x;",
        b"&#0;",
        b"&#x110000;",
        b"&lt;",
        b"\0",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xe9",
        b"nan",
        b"-1",
        b"1e9",
    ),
    *(
        b"9" * 400,
        b"1_0",
        b"0x1",
        b"0.5",
        b"<a>" * 40,
        b"<a b='c' b='d'/>",
        b"\n" * 30,
        b"</annotation>",
        b" ",
    ),
    *(
        b"<!DOCTYPE a [<!ENTITY x 'y'>]>",
        b"<!ENTITY x SYSTEM '/etc/passwd'>",
        b"encoding='gbk'",
        b"\x1b[2J",
    ),
]
VALUES = [
    *(
        "0",
        "1",
        "2",
        "-1",
        "0.5",
        "1.5",
        "99.999",
        "100",
        "101",
        "199",
        "200",
        "201",
        "1e2",
        "1e9",
        "9e99",
        "nan",
    ),
    *(
        "inf",
        "1_0",
        "0x1",
        "+3",
        ".",
        "5.",
        ".5",
        "cat",
        "dog",
        "cow",
        "Cat",
        "",
        " ",
        "\n7\n",
        "a" * 5000,
    ),
    *("é & ü", "\u0663", "1,5", "1 2"),
]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Expected(NamedTuple):
    """The kept boxes as (class name, x, y, w, h, crowd), and the number of reported objects."""

    boxes: list[tuple[str, float, float, float, float, bool]]
    reported: int


def texts(parent: ElementTree.Element, path: str) -> list[str]:
    """Return the texts of all elements at a path, without those of elements inside them."""
    found = [
        (each.text or "") + "".join(inner.tail or "" for inner in each)
        for each in parent.findall(path)
    ]
    return [text.strip() for text in found]


def read_slowly(root: ElementTree.Element) -> Expected | None:
    """Read the documented format from a parsed tree; None if a class is unknown."""
    boxes, reported, seen = [], 0, set()
    for element in root.findall("object"):
        fields = {
            side: texts(element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")
        }
        names, difficult = texts(element, "name"), texts(element, "difficult")
        if max(map(len, (names, difficult, *fields.values()))) > 1 or names in ([], [""]):
            reported += 1
            continue
        if names[0] not in NAMES:
            return None
        given = ["".join(values) for values in fields.values()]
        if not all(NUMBER.fullmatch(text) and abs(float(text)) < 1e7 for text in given):
            reported += 1
            continue
        x1, y1, x2, y2 = map(float, given)
        if x2 < x1 or y2 < y1:
            reported += 1
            continue
        if difficult not in ([], [""], ["0"], ["1"]):
            reported += 1
            continue
        key = (names[0], x1, y1, x2, y2, difficult == ["1"])
        if key in seen:
            reported += 1
            continue
        seen.add(key)
        left, top, right, bottom = (
            max(x1 - 1, 0),
            max(y1 - 1, 0),
            min(x2, SIZE[0]),
            min(y2, SIZE[1]),
        )
        if right - left < 0.001 or bottom - top < 0.001:
            reported += 1
            continue
        reported += (left, top, right, bottom) != (x1 - 1, y1 - 1, x2, y2)
        boxes.append((names[0], left, top, right - left, bottom - top, difficult == ["1"]))
    return Expected(boxes, reported)


def deepest(element: ElementTree.Element) -> int:
    return 1 + max(map(deepest, element), default=0)


def wanted_of(data: bytes) -> Expected | str | None:
    """Return what must be read, the reason why nothing can be, or None if a class is unknown."""
    try:
        root = ElementTree.fromstring(data)  # noqa: S314  # the data are our own
    except (ElementTree.ParseError, ValueError, LookupError):
        return "not XML"
    if b"<!DOCTYPE" in data and "<!DOCTYPE" not in "".join(root.itertext()):
        return "perhaps a DTD"  # or it is in a comment or an attribute
    if root.tag != "annotation" or deepest(root) > 32:
        return "not an annotation"
    return read_slowly(root)


def compare_readers(data: bytes, file: Path) -> bool:
    """Compare the reader with the second reader on one file; return whether it was read without
    error.
    """
    found = result_or_error(lambda: parse_xml_file(data, str(file), SIZE, NAMES), file)
    wanted = wanted_of(data)
    if isinstance(found, str):
        assert not isinstance(wanted, Expected), (data, found)
        assert wanted is not None or "is not in 'names' of the data YAML" in found, (data, found)
        return False
    if wanted in (
        "not XML",
        "perhaps a DTD",
    ):  # it declares an encoding that is not its own, or a comment says DTD
        assert b"encoding=" in data or b"<!--" in data or b"<?" in data, data
        return True
    assert isinstance(wanted, Expected), data
    boxes = [(NAMES[row.class_index], *row.box_xywh, row.crowd) for row in found.rows]
    assert boxes == wanted.boxes, data
    _assert_reported(found, wanted.reported, file)
    return True


def _assert_reported(found: ImageRows, expected: int, file: Path) -> None:
    """Check that there is one problem for each object that was dropped or clipped, with its
    line.
    """
    for problem in found.problems:
        assert_printable_line(str(problem))
        assert line_number(problem.where, file) > 0
    assert len(found.problems) == expected
    assert Counter(problem.kind for problem in found.problems)[ROW_CLIPPED] <= len(found.rows)


def try_mutated(file: Path, count: int, seed: int) -> int:
    """Return how many of `count` mutated files are read without error."""
    random = np.random.default_rng(seed)
    return sum(compare_readers(mutate(SEED, random, PIECES), file) for _ in range(count))


def test_unmodified_file_is_read_completely(tmp_path: Path) -> None:
    assert compare_readers(SEED, tmp_path / "a.xml")
    found = parse_xml_file(SEED, "a.xml", SIZE, NAMES)
    assert [row.class_index for row in found.rows] == [0, 1, 2]
    assert [problem.kind for problem in found.problems] == [ROW_CLIPPED]
    assert found.declared_size == SIZE


def test_mutated_files_match_slow_reader(tmp_path: Path) -> None:
    assert try_mutated(tmp_path / "a.xml", 3000, seed=0) > 100


def altered(random: np.random.Generator) -> bytes:
    """Return the seed with one to four elements changed, removed or doubled; it is still XML."""
    root = ElementTree.fromstring(SEED)  # noqa: S314  # the data are our own
    for _ in range(int(random.integers(1, 5))):
        inside = [(parent, child) for parent in root.iter() for child in parent]
        parent, child = inside[int(random.integers(len(inside)))]
        kind = int(random.integers(6))
        if kind == 0:
            parent.remove(child)
        elif kind == 1:
            parent.append(child)
        else:
            child.text = VALUES[int(random.integers(len(VALUES)))]
    return ElementTree.tostring(root)


def test_altered_files_match_slow_reader(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    assert sum(compare_readers(altered(random), tmp_path / "a.xml") for _ in range(1500)) > 1000


@pytest.mark.parametrize(
    "data",
    [
        b"<annotation>" + b"<object>" * 400_000,
        b"<annotation>" + b"<object/>" * 400_000 + b"</annotation>",
        b"<annotation " + b" ".join(b"a%d=''" % k for k in range(300_000)) + b"/>",
        b"<annotation><object><name>" + b"&amp;" * 800_000 + b"</name></object></annotation>",
        b"<annotation>" + b"<!---->" * 500_000 + b"</annotation>",
        b"<" * 4_000_000,
        b"<annotation><!--" + b"-" * 4_000_000,
        b"<annotation a='" + b"&lt;" * 900_000,
    ],
    ids=range(8),
)
def test_file_of_4_mib_is_read_or_refused_quickly(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.xml"  # 2.5 s alone on a core; a reader of quadratic time would take hours
    result = result_or_error(lambda: parse_xml_file(data, str(file), SIZE, NAMES), file, seconds=40)
    assert isinstance(result, str) or result.rows == []


def test_scans_of_mutated_files_refuse_or_report_and_change_no_file(tmp_path: Path) -> None:
    random, folder = np.random.default_rng(1), tmp_path / "two\nlines"
    folder.mkdir()
    for name in ("a", "b"):
        picture = cv2.imencode(".png", np.full((100, 200, 3), 9, np.uint8))[1].tobytes()
        (folder / f"{name}.png").write_bytes(picture)
        (folder / f"{name}.xml").write_bytes(SEED)
    read = 0
    for number in range(40):
        (folder / "b.xml").write_bytes(mutate(SEED, random, PIECES))
        with assert_unchanged(folder):
            fresh = result_or_error(lambda: scan([folder], NAMES), folder)
            again = result_or_error(
                lambda: scan([folder], NAMES, cache_dir=tmp_path / str(number)),  # noqa: B023
                folder,
            )
        if isinstance(fresh, str):
            assert again == fresh
        else:
            assert_same(again[0], fresh[0])
            read += 1
    assert read > 20
    with pytest.raises(UnreadableLabelsError):
        parse_xml_file(b"", "a.xml", SIZE, NAMES)
