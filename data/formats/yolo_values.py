"""Rows of YOLO label files with more values than a box: keypoints, a confidence, a track number.

Rows of keypoints have the shape of rows of polygons, so all rows of a data set decide together.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, islice
from math import isfinite

# what the rows of a data set with more values than a box are
KEYPOINT_ROWS = "boxes with keypoints"
POLYGON_ROWS = "polygons"

BOX_VALUES = 5  # class, center x and y, width, height
SAMPLED_FILES = 1000  # label files whose rows decide
DIMENSIONS = (3, 2)  # of a keypoint: x, y, and perhaps its visibility
TOLERANCE = 0.01  # fraction of the image side by which a keypoint may be outside its box
ROUNDING = 1e-9  # of the area of a triangle
Point = tuple[float, float]
VISIBILITIES = (0, 1, 2)  # not labeled, hidden, visible


def box_row_length(rows: Iterable[Sequence[float]]) -> int:
    """Return the number of values of rows that are a box and more values; 0 if there are none.

    Six values are a box and a confidence or a track number, if all rows have six. Rows of more
    values are keypoints, if all of them have the same number of values and all keypoints lie in the
    box of the first values; otherwise they are polygons. Keypoints without visibility have the
    shape of polygons with few corners, such as oriented boxes: these they are if all rows are
    outlines of one object.

    >>> box_row_length([[0, .5, .5, .2, .2, .9], [1, .4, .4, .1, .1, .3]])
    6
    >>> box_row_length([[0, .5, .5, .2, .2, .45, .45, 2, .55, .55, 1], [0, .5, .5, .2, .2]])
    11
    >>> box_row_length([[0, .1, .1, .2, .1, .2, .2]])
    0
    >>> box_row_length([[0, .5, .6, .6, .6, .6, .7, .5, .7]])
    0
    """
    lengths = set()
    longer = []
    for row in rows:
        lengths.add(len(row))
        if len(row) > BOX_VALUES:
            longer.append(row)
    longer_lengths = {len(row) for row in longer}
    if len(longer_lengths) != 1:
        return 0

    (length,) = longer_lengths
    if length == BOX_VALUES + 1:
        return length if lengths == {length} else 0
    for dimensions in DIMENSIONS:
        if all(_are_keypoints(row, dimensions) for row in longer):
            are_outlines = dimensions == 2 and all(map(_is_outline, longer))
            return 0 if are_outlines else length
    return 0


def long_rows(rows: Iterable[Sequence[float]], box_length: int) -> str:
    """Return what rows with more values than a box are: KEYPOINT_ROWS, POLYGON_ROWS, "" if none is.

    box_length: that `box_row_length` returns for these rows.
    """
    if box_length > BOX_VALUES + 1:
        return KEYPOINT_ROWS
    is_polygon = (len(row) > BOX_VALUES + 1 and len(row) % 2 for row in rows)
    return POLYGON_ROWS if any(is_polygon) else ""


def may_be_keypoints(row: Sequence[float]) -> bool:
    """Whether a row of a polygon could also be a box with keypoints in it."""
    return any(_are_keypoints(row, dimensions) for dimensions in DIMENSIONS)


def rows_of_files(contents: Iterable[bytes]) -> Iterable[list[float]]:
    """Return the values of the rows of the first SAMPLED_FILES label files.

    Rows that are not finite numbers are passed over.
    """
    for data in islice(contents, SAMPLED_FILES):
        for line in data.splitlines():
            try:
                values = [float(token) for token in line.split()]
            except ValueError:
                continue
            if values and all(map(isfinite, values)):
                yield values


def _are_keypoints(row: Sequence[float], dimensions: int) -> bool:
    """Whether the values after a box are keypoints in it: x, y, and perhaps their visibility."""
    if (len(row) - BOX_VALUES) % dimensions:
        return False
    _, center_x, center_y, width, height = row[:BOX_VALUES]
    for start in range(BOX_VALUES, len(row), dimensions):
        x, y, *visibility = row[start : start + dimensions]
        if visibility and visibility[0] not in VISIBILITIES:
            return False
        if x == 0 and y == 0:
            continue  # not labeled
        inside_x = abs(x - center_x) <= width / 2 + TOLERANCE
        inside_y = abs(y - center_y) <= height / 2 + TOLERANCE
        if not (inside_x and inside_y):
            return False
    return True


def _is_outline(row: Sequence[float]) -> bool:
    """Whether the values after the class may be a polygon around one object.

    Its second point, which would be the size of a box with keypoints, lies near the others, as far
    as they reach at most, and its sides do not cross.
    """
    points = list(zip(row[1::2], row[2::2], strict=True))
    second = points[1]
    others = [points[0], *points[2:]]
    lows = [min(values) for values in zip(*others, strict=True)]
    highs = [max(values) for values in zip(*others, strict=True)]
    reach = max(high - low for low, high in zip(lows, highs, strict=True))
    for value, low, high in zip(second, lows, highs, strict=True):
        if not low - reach <= value <= high + reach:
            return False

    sides = list(zip(points, [*points[1:], points[0]], strict=True))
    return not any(_cross(*one, *other) for one, other in combinations(sides, 2))


def _cross(a: Point, b: Point, c: Point, d: Point) -> bool:
    """Whether the lines from a to b and from c to d cross, not only touch."""
    return _side(a, b, c) * _side(a, b, d) < 0 and _side(c, d, a) * _side(c, d, b) < 0


def _side(a: Point, b: Point, c: Point) -> float:
    """Return a number above 0 if c is on one side of the line from a to b, below on the other.

    Points within rounding of the line are on it.
    """
    area = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
    return area if abs(area) > ROUNDING else 0.0
