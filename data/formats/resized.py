"""Fit boxes to an image that has another size than their tool says.

The image was turned as its EXIF data say after it was labeled without them, or it was resized.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from data.labels import LabelRow
from data.report import LABELS_RESIZED, LABELS_TURNED
from data.sanity.box_units import Corners
from utils.images.orientation import TURNS

Size = tuple[int, int]  # width and height
SWAPPED = tuple(orientation for orientation, (exchanges, _) in TURNS.items() if exchanges)


class Fitted(NamedTuple):
    """Rows in the pixels of their image, and what was done: a kind of problem, and a reason."""

    rows: list[LabelRow]
    kind: str
    reason: str


def fit_rows(
    rows: Iterable[LabelRow], declared: Size, actual: Size, orientation: int
) -> Fitted | None:
    """Return the rows of an image of another size, or None if they cannot be fitted.

    They are turned if the sides are swapped and the file's orientation swaps them, and scaled if
    both sides changed by the same factor.

    Args:
        rows: in the pixels of the declared size.
        declared: the size that the labels are for.
        actual: the size of the upright image.
        orientation: of the image file, as in EXIF, 1 to 8.
    """
    stated = "x".join(map(str, declared))
    if declared == actual[::-1] and orientation in SWAPPED:
        turned = [_turned(row, declared, orientation) for row in rows]
        reason = f"labels of {stated} turned with the image (EXIF orientation {orientation})"
        return Fitted(turned, LABELS_TURNED, reason)

    if not _same_ratio(declared, actual):
        return None
    scale_x = actual[0] / declared[0]
    scale_y = actual[1] / declared[1]
    scaled = [row_scaled(row, scale_x, scale_y) for row in rows]
    reason = f"labels of {stated} scaled by {(scale_x + scale_y) / 2:.4g}"
    return Fitted(scaled, LABELS_RESIZED, reason)


def row_scaled(row: LabelRow, scale_x: float, scale_y: float) -> LabelRow:
    """Return a row with its coordinates multiplied.

    >>> row_scaled(LabelRow(0, (1.0, 2.0, 3.0, 4.0), 12.0, False, None, 1), 2, 10).box_xywh
    (2.0, 20.0, 6.0, 40.0)
    """
    x, y, w, h = row.box_xywh
    points = row.points
    if points is not None:
        points = (points * (scale_x, scale_y)).astype(np.float32)
    box = (x * scale_x, y * scale_y, w * scale_x, h * scale_y)
    return row._replace(box_xywh=box, area=row.area * scale_x * scale_y, points=points)


def boxes_scaled(boxes: Iterable[Corners], size: Size) -> list[Corners]:
    """Return boxes that are fractions of an image of this size in pixels."""
    width, height = size
    return [(x1 * width, y1 * height, x2 * width, y2 * height) for x1, y1, x2, y2 in boxes]


def _same_ratio(declared: Size, actual: Size) -> bool:
    """Whether one size is the other, resized: both sides by one factor, rounded to whole pixels.

    If only one side differs, the image was cut.

    >>> _same_ratio((640, 480), (320, 240)), _same_ratio((641, 480), (640, 480))
    (True, False)
    """
    if declared[0] == actual[0] or declared[1] == actual[1]:
        return False
    by_width = actual[0] / declared[0]
    by_height = actual[1] / declared[1]
    width_error = abs(declared[0] * by_height - actual[0])
    height_error = abs(declared[1] * by_width - actual[1])
    return min(width_error, height_error) <= 1


def _turned(row: LabelRow, size: Size, orientation: int) -> LabelRow:
    """Return a row of a stored image of this size in the pixels of the upright one."""
    x, y, w, h = row.box_xywh
    corners = _turned_points(np.array([(x, y), (x + w, y + h)]), size, orientation)
    left, top = corners.min(0).tolist()
    right, bottom = corners.max(0).tolist()
    points = row.points
    if points is not None:
        points = _turned_points(points, size, orientation).astype(np.float32)
    return row._replace(box_xywh=(left, top, right - left, bottom - top), points=points)


def _turned_points(points: np.ndarray, size: Size, orientation: int) -> np.ndarray:
    """Return points x, y, [k, 2], of a stored image in the pixels of the upright one."""
    exchanges_sides, mirrored = TURNS[orientation]
    width, height = size
    if exchanges_sides:
        points = points[:, ::-1]
        width, height = height, width

    # TURNS counts rows first.
    turned = points.astype(np.float64)
    if 1 in mirrored:
        turned[:, 0] = width - turned[:, 0]
    if 0 in mirrored:
        turned[:, 1] = height - turned[:, 1]
    return turned
