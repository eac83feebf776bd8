"""Mutated COCO JSONs: a slow second reader keeps the same entries; all others are reported by id or
position.
"""

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.formats.coco_json import CocoFile, read_coco_annotations
from data.report import IMAGE_DROPPED, ROW_DROPPED, ROW_DUPLICATE, ROW_WITHOUT_IMAGE
from data.scan import scan
from tests.data.test_labels import assert_same
from tests.support.fuzzing import assert_printable_line, assert_unchanged, mutate, result_or_error
from utils.printable import printable

pytestmark = pytest.mark.slow

NAMES = ("cat", "dog", "é\n\x1b[2J")
SEED: dict[str, Any] = {
    "info": {"year": 2026},
    "images": [{"id": k, "file_name": f"{k} ä.png", "width": 40, "height": 20} for k in (7, 3, 12)],
    "annotations": [
        {
            "id": 1,
            "image_id": 7,
            "category_id": 3,
            "bbox": [1, 2, 10.5, 10],
            "area": 77,
            "iscrowd": 0,
        },
        {
            "id": 2,
            "image_id": 7,
            "category_id": 9,
            "bbox": [0, 0, 40, 20],
            "area": 800,
            "iscrowd": 1,
        },
        {
            "id": 5,
            "image_id": 3,
            "category_id": 3,
            "bbox": [5, 5, 5, 5],
            "segmentation": [[5, 5, 10, 5, 10, 10]],
        },
        {
            "id": 4,
            "image_id": 12,
            "category_id": 1,
            "bbox": [30, 10, 20, 20],
            "segmentation": [[1, 2, 3, 4]],
        },
        {"id": 6, "image_id": 12, "category_id": 9, "bbox": [0.5, 0.5, 1, 1], "area": None},
    ],
    "categories": [{"id": 3, "name": "dog"}, {"id": 9, "name": "cat"}, {"id": 1, "name": NAMES[2]}],
}
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        9,
        1.5,
        3.0,
        1e308,
        10**30,
        2**53,
        10**400,
        -1e-9,
        1e7,
        0.0005,
    ),
    *(
        math.nan,
        math.inf,
        -math.inf,
        "",
        "3",
        "x\n\x1b[31m",
        "\ud800",
        "a" * 5000,
        "../a.png",
        "/etc/hostname",
        "\0",
    ),
    *(
        [],
        {},
        [[]],
        [1, 2, 3],
        [1, 2, 3, 4],
        [0, 0, 0, 0],
        [1, 2, "3", 4],
        [1, 2, None, 4],
        [[1, 2, 3, 4, 5, 6]],
        {"id": 1},
    ),
    *([1, 2, math.nan, 4], [1e8, 0, 1, 1], [39.9999, 0, 1, 1], [-5, -5, 10, 10]),
]
PIECES = [
    b"null",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b'"id"',
    b'"',
    b"\\u0000",
    b"\\ud800",
    b"[" * 3000,
    b"{",
    b"},{",
]
PIECES += [
    b'"id": 1, ',
    b'"bbox": [1, 2, 3, 4], ',
    b"// ",
    b"\xff",
    b"\xef\xbb\xbf",
    b"'",
    b",",
    b"]",
    b"\n\n",
]


def entries_of(value: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside, recursively."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    )
    return [entry for key in keys for entry in [(value, key), *entries_of(value[key])]]


def alter_document(random: np.random.Generator) -> dict[str, Any]:
    """Return the seed with one to three entries replaced, removed or duplicated."""
    document = copy.deepcopy(SEED)
    for _ in range(int(random.integers(1, 4))):
        found = entries_of(document)
        container, key = found[int(random.integers(len(found)))]
        kind = int(random.integers(4))
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(VALUES[int(random.integers(len(VALUES)))])
    return document


def exact_integer(value: Any) -> int | None:
    """Return a JSON value as an int if it is a integer number that is exact in every reader,
    otherwise None.
    """
    if (
        type(value) not in (int, float)
        or value != value
        or abs(value) >= 2**53
        or value != int(value)
    ):
        return None
    return int(value)


Annotation = tuple[int | str, int, str, list[float], float, bool]


def kept_annotations(document: dict[str, Any]) -> list[Annotation]:
    """Return (id or place, image id, category name, box, area, crowd) of the valid ones, the first
    of equal ones.
    """
    images = kept_images(document)
    names = {exact_integer(entry["id"]): entry["name"] for entry in document["categories"]}
    kept: list[Annotation] = []
    for position, entry in enumerate(document["annotations"]):
        if not isinstance(entry, dict):
            continue
        number = exact_integer(entry.get("id"))
        if number is None:
            number = f"annotations[{position}]"
        image, category = (
            exact_integer(entry.get("image_id")),
            exact_integer(entry.get("category_id")),
        )
        box, crowd, area = entry.get("bbox"), entry.get("iscrowd"), entry.get("area")
        crowd = 0 if crowd is None else crowd
        if image not in images or category not in names or type(box) is not list or len(box) != 4:
            continue
        if any(type(side) not in (int, float) or not -1e7 < side < 1e7 for side in box):
            continue
        if (
            box[2] < 0.001
            or box[3] < 0.001
            or type(crowd) not in (int, float, bool)
            or crowd not in (0, 1)
        ):
            continue
        known = type(area) in (int, float) and 0 <= area < 1e14
        first_id = next(key for key, name in images.items() if name == images[image])
        found = (
            number,
            first_id,
            names[category],
            box,
            area if known else box[2] * box[3],
            bool(crowd),
        )
        if not any(found[1:4] == other[1:4] and found[5] == other[5] for other in kept):
            kept.append(found)
    return kept


def kept_images(document: dict[str, Any]) -> dict[int, str]:
    """Return id -> file name of the valid images. A name with two ids is one image, if both have
    the same size.
    """
    kept: dict[int, str] = {}
    sizes: dict[str, Any] = {}
    for entry in document["images"]:
        number = exact_integer(entry.get("id")) if isinstance(entry, dict) else None
        name = entry.get("file_name") if isinstance(entry, dict) else None
        valid = (
            isinstance(name, str)
            and name != ""
            and not re.search("[\ud800-\udc7f\udd00-\udfff]", name)
        )
        if number is None or not valid or kept.get(number, name) != name:
            continue
        sides = [exact_integer(entry.get(side)) for side in ("width", "height")]
        size = sides if all(side and side > 0 for side in sides) else None
        if sizes.setdefault(name, size) == size:
            kept[number] = name
    return kept


def compare_readers(file: Path) -> bool:
    """Compare the reader with the second reader on one JSON; return whether it was read without
    error.
    """
    found = result_or_error(lambda: read_coco_annotations(file, NAMES), file)
    assert str(result_or_error(lambda: read_coco_annotations(file, NAMES), file)) == str(found)
    if isinstance(found, str):
        return False
    document = json.loads(file.read_bytes())
    wanted = kept_annotations(document)
    images = kept_images(document)
    first_ids = [
        key
        for position, key in enumerate(images)
        if images[key] not in list(images.values())[:position]
    ]
    assert [image.image_id for image in found.images] == first_ids
    read = [
        (
            row.number,
            image.image_id,
            NAMES[row.class_index],
            list(row.box_xywh),
            row.area,
            row.crowd,
        )
        for image, rows in zip(found.images, found.rows, strict=True)
        for row in rows
    ]
    assert read == sorted(
        wanted, key=lambda row: first_ids.index(row[1])
    )  # by image, in the order of the file
    _assert_reported(found, document, file)
    return True


def _assert_reported(found: CocoFile, document: dict[str, Any], file: Path) -> None:
    """Check that there is one problem for each dropped entry, with the file and an id or a
    position.
    """
    for problem in found.problems:
        assert_printable_line(str(problem))
        entry = problem.where.removeprefix(printable(file))
        assert re.fullmatch(r" ((images|annotations)\[\d+\]|(image|annotation) -?\d+)", entry)
    kinds = [problem.kind for problem in found.problems]
    joined = sum(" was already listed, with id " in problem.reason for problem in found.problems)
    assert kinds.count(IMAGE_DROPPED) + joined == len(document["images"]) - len(found.images)
    dropped = kinds.count(ROW_DROPPED) + kinds.count(ROW_WITHOUT_IMAGE)
    without_row = dropped + kinds.count(ROW_DUPLICATE)
    assert without_row == len(document["annotations"]) - sum(map(len, found.rows))
    assert sum(found.dropped_rows) <= dropped


def try_altered(folder: Path, count: int, seed: int) -> int:
    """Return how many of `count` altered documents are read without error."""
    random, file = np.random.default_rng(seed), folder / "instances val.json"
    read = 0
    for _ in range(count):
        file.write_text(json.dumps(alter_document(random)))
        read += compare_readers(file)
    return read


def try_mutated(folder: Path, count: int, seed: int) -> int:
    """Return how many of `count` mutated texts are read without error."""
    random, file = np.random.default_rng(seed), folder / "instances val.json"
    text = json.dumps(SEED).encode()
    read = 0
    for _ in range(count):
        file.write_bytes(mutate(text, random, PIECES))
        read += compare_readers(file)
    return read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three images, for the JSON."""
    (tmp_path / "two\nlines").mkdir()
    for k in (7, 3, 12):
        picture = cv2.imencode(".png", np.full((20, 40, 3), k, np.uint8))[1].tobytes()
        (tmp_path / "two\nlines" / f"{k} ä.png").write_bytes(picture)
    return tmp_path / "two\nlines"


def test_unmodified_coco_json_is_read_completely(folder: Path) -> None:
    file = folder / "a.json"
    file.write_text(json.dumps(SEED))
    assert (
        result_or_error(lambda: len(read_coco_annotations(file, NAMES).problems), file) == 1
    )  # annotation 4's polygon
    assert [row[0] for row in kept_annotations(SEED)] == [1, 2, 5, 4, 6]


def test_altered_coco_documents_match_slow_reader(folder: Path) -> None:
    assert try_altered(folder, 300, seed=0) > 150


def test_mutated_coco_texts_match_slow_reader(folder: Path) -> None:
    assert try_mutated(folder, 200, seed=0) > 10


def test_cached_coco_scans_equal_fresh_scans_and_change_no_file(
    folder: Path, tmp_path: Path
) -> None:
    random, file = np.random.default_rng(5), folder / "a.json"
    scanned = 0
    for number in range(40):
        file.write_text(json.dumps(alter_document(random)))
        cache = tmp_path / str(number)
        with assert_unchanged(folder):
            fresh = result_or_error(lambda: scan([file], NAMES), folder)
            for _ in range(2):
                again = result_or_error(lambda: scan([file], NAMES, cache_dir=cache), folder)  # noqa: B023
                if isinstance(fresh, str):
                    assert again == fresh
                else:
                    assert_same(again[0], fresh[0])
                    assert again[1].with_cache("") == fresh[1].with_cache("")
                    scanned += 1
    assert scanned > 30
