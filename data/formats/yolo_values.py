"""Rows of YOLO label files with more values than a box: keypoints, a confidence, a track number.

Rows of keypoints have the shape of rows of polygons, so all rows of a data set decide together.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from math import isfinite

BOX_VALUES = 5  # class, center x and y, width, height
SAMPLED_FILES = 1000  # label files whose rows decide
DIMENSIONS = (3, 2)  # of a keypoint: x, y, and perhaps its visibility
TOLERANCE = 0.01  # fraction of the image side by which a keypoint may be outside its box
VISIBILITIES = (0, 1, 2)  # not labeled, hidden, visible


def box_row_length(rows: Iterable[Sequence[float]]) -> int:
    """Return the number of values of rows that are a box and more values; 0 if there are none.

    Six values are a box and a confidence or a track number, if all rows have six. Rows of more
    values are keypoints, if all of them have the same number of values and all keypoints lie in the
    box of the first values; otherwise they are polygons.

    >>> box_row_length([[0, .5, .5, .2, .2, .9], [1, .4, .4, .1, .1, .3]])
    6
    >>> box_row_length([[0, .5, .5, .2, .2, .45, .45, 2, .55, .55, 1], [0, .5, .5, .2, .2]])
    11
    >>> box_row_length([[0, .1, .1, .2, .1, .2, .2]])
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
            return length
    return 0


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
