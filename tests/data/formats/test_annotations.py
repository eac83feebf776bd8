"""Objects as tools write them: their boxes, what is dropped, their classes."""

import math
from pathlib import Path

import pytest

from data.formats.annotations import (
    BOX,
    KEYPOINTS,
    POLYGON,
    AnnotatedImage,
    Annotation,
    AnnotationFile,
    class_indices,
    label_rows,
    rows_in_image,
    sorted_names,
)
from data.formats.base import ClassNames
from data.labels import LabelRow
from data.report import ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE

NAMES = ("cat", "dog")
INDICES = class_indices(NAMES)


def test_box_is_the_extent_of_the_points_and_outlines_of_polygons_are_kept() -> None:
    triangle = Annotation("dog", [(1, 8), (4, 2), (3, 9)], 2, POLYGON)
    corners = Annotation("cat", [(11, 22), (1, 2)], 1)  # lower right first
    read = label_rows([corners, triangle], INDICES, "a.json")
    assert [(row.class_index, row.box_xywh, row.area) for row in read.rows] == [
        (0, (1, 2, 10, 20), 200),
        (1, (1, 2, 3, 7), 21),
    ]
    assert read.rows[0].points is None
    assert read.rows[1].points is not None
    assert read.rows[1].points.tolist() == [[1, 8], [4, 2], [3, 9]]
    assert read.converted == {"polygon": 1}


def test_no_objects_have_no_rows() -> None:
    assert label_rows([], INDICES, "a.json") == ([], [], True, None, {}, [])
    assert rows_in_image([], (40, 20), "a.json") == ([], [])
    assert sorted_names([]) == ()


@pytest.mark.parametrize(
    ("points", "shape", "reason"),
    [
        ([], POLYGON, "a polygon with 0 points has no area"),
        ([(1, 1)], KEYPOINTS, "a set of keypoints with 1 point has no area"),
        ([(1, 1), (1, 5)], BOX, "box of 0 x 4, must have an area"),
        ([(1, 1), (1, 1)], POLYGON, "polygon of 0 x 0, must have an area"),
        ([(1, math.nan), (2, 2)], BOX, "coordinate nan is not a finite number of pixels"),
        ([(1, 1), (math.inf, 2)], BOX, "coordinate inf is not a finite number of pixels"),
        ([(-1e300, 1), (1, 2)], BOX, "coordinate -1e+300 is not a finite number of pixels"),
    ],
)
def test_object_without_area_is_dropped_with_its_place(
    points: list[tuple[float, float]], shape: str, reason: str
) -> None:
    usable = Annotation("cat", [(0, 0), (1, 1)], "shapes[1]")
    read = label_rows([Annotation("cat", points, "shapes[0]", shape), usable], INDICES, "a.json")
    assert [row.number for row in read.rows] == ["shapes[1]"]
    assert [tuple(problem) for problem in read.problems] == [
        (ROW_DROPPED, "a.json shapes[0]", reason)
    ]


def test_repeated_object_is_dropped_and_reported() -> None:
    """Two labels of one region have the same place."""
    box = [(1, 1), (2, 2)]
    annotations = [
        Annotation("cat", box, 7),
        Annotation("cat", box, 9),
        Annotation("cat", box, 7),
        Annotation("dog", box, 9),
        Annotation("cat", box, 9, crowd=True),
    ]
    read = label_rows(annotations, INDICES, "a.csv")
    assert [(row.number, row.class_index, row.crowd) for row in read.rows] == [
        (7, 0, False),
        (9, 1, False),
        (9, 0, True),
    ]
    assert [tuple(problem) for problem in read.problems] == [
        (ROW_DUPLICATE, "a.csv line 9", "the same as line 7"),
        (ROW_DUPLICATE, "a.csv line 7", "the same as line 7"),
    ]


@pytest.mark.parametrize(
    ("name", "names", "reason"),
    [
        ("cow", NAMES, "class 'cow' is not in 'names' of the data YAML: cat, dog"),
        ("", NAMES, "class '' is not in 'names' of the data YAML: cat, dog"),
        ("a\n\x1b[2J" + 99 * "b", NAMES, "class 'a\\n\\x1b[2J" + 34 * "b" + "...' is not in"),
        ("2", NAMES, "class 2, but names has 2 classes (0-1)"),
        ("9" * 5000, NAMES, "class " + 40 * "9" + "..., but names has 2 classes (0-1)"),
        ("0", ("7", "9"), "class '0' is not in 'names' of the data YAML: 7, 9"),
        ("1.0", NAMES, "class '1.0' is not in 'names' of the data YAML: cat, dog"),
    ],
)
def test_unknown_class_ends_the_scan_with_its_place(
    name: str, names: tuple[str, ...], reason: str
) -> None:
    unknown = Annotation(name, [(0, 0), (1, 1)], 3)
    with pytest.raises(ValueError, match=r"^a\.csv line 3: ") as found:
        label_rows([unknown], class_indices(names), "a.csv")
    assert str(found.value).removeprefix("a.csv line 3: ").startswith(reason)
    assert str(found.value).isprintable()


def test_class_may_be_the_number_of_its_name() -> None:
    """Of names that are numbers themselves, it is the name: 1 is the first class of 1, 0."""
    box = [(0, 0), (1, 1)]
    for names, index in ((NAMES, 1), (("1", "0"), 0)):
        (row,) = label_rows([Annotation("1", box, 1)], class_indices(names), "a.csv").rows
        assert row.class_index == index


def test_box_is_clipped_to_the_image_and_reported() -> None:
    """30 to 50 of 40 pixels is outside by 10, which is 25 %; 1e-4 of 40 pixels is rounding."""
    rows = [
        LabelRow(0, (30, 5, 20, 10), 200, False, None, 1),
        LabelRow(0, (0, 0, 40.0001, 20), 800.002, False, None, 2),
        LabelRow(0, (41, 5, 20, 10), 200, False, None, 3),
    ]
    kept, problems = rows_in_image(rows, (40, 20), "a.csv")
    assert [(row.box_xywh, row.area) for row in kept] == [
        ((30, 5, 10, 10), 100),
        ((0, 0, 40, 20), 800),
    ]
    assert [tuple(problem) for problem in problems] == [
        (ROW_CLIPPED, "a.csv line 1", "was outside the image by 25.00% of its side"),
        (ROW_DROPPED, "a.csv line 3", "box [41, 5, 61, 15] is outside its image of 40x20"),
    ]


def test_names_in_use_are_sorted_numbers_by_their_value() -> None:
    box = [(0.0, 0.0), (1.0, 1.0)]
    for names, expected in (
        (["b", "10", "9"], ("10", "9", "b")),
        (["10", "9", "09"], ("09", "9", "10")),
        (["9" * 5000, "1"], ("1", "9" * 5000)),
    ):
        found = [[Annotation(name, box, 1) for name in names]] * 2
        assert sorted_names(found) == expected


def test_list_of_a_tool_keeps_its_order() -> None:
    image = AnnotatedImage("a.jpg", [Annotation("cat", [], 1)])
    file = AnnotationFile([image], ("dog", "cat"))
    assert file.class_names(Path("a.xml")) == ClassNames(("dog", "cat"), "a.xml")
    file.names = None
    assert file.class_names(Path("a.xml")) == ClassNames(("cat",))
