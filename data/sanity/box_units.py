"""Whether the boxes of a source are in another unit or form than their format has.

Every reader returns its boxes as it understood them, before any is clipped or dropped. Here is the
rule for all of them: N boxes are left, top, right, bottom in pixels, which may lie outside of their
image, and may end before they begin.
"""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from utils.printable import counted

Corners = tuple[float, float, float, float]  # left, top, right, bottom
Boxes = NDArray[np.float64]  # [N, 4]

FEW_BOXES = 3  # fewer do not show it
OUTSIDE = 0.02  # fraction of the image side by which a box is hardly outside by drawing
OUTSIDE_PX = 2.0
FITS = 0.005  # the same of boxes that are read as they should be
FITS_PX = 1.0
SHARE_OUTSIDE = 0.05  # the share of boxes outside from which on any number of them counts
MANY_OUTSIDE = 10  # that count from this share on:
SHARE_OF_MANY = 0.01
FEWER = 10  # times fewer boxes must be outside if they are read in another way
FIRST_PIXEL = 1.02  # pixels; fractions of an image are in it
FIRST_PART = 0.01  # of the side: fractions where the format has percentages
NEARLY_ALL = 0.98  # the share of boxes that are fractions
# Boxes in percent fill the first 100 pixels of their images, which are much larger.
PERCENT = 100.5
REACHED_PERCENT = 90.0
MANY_BOXES = 10
MUCH_LARGER = 250  # pixels
# Right boxes may look so, too: objects that all reach out of their images at one side.
EXPORT_AGAIN = "look at some; if they are wrong, export the labels again as their format has them"


@dataclass
class BoxesAsRead:
    """The boxes of a source, in the order in which they are read, 24 bytes each."""

    _corners: array = field(default_factory=lambda: array("f"))
    _sizes: array = field(default_factory=lambda: array("i"))

    def add(self, boxes: Iterable[Corners], size: tuple[int, int]) -> None:
        """Add the boxes of an image; size: its width and height, in pixels."""
        for box in boxes:
            self._corners.extend(box)
            self._sizes.extend(size)

    def warning(self) -> str:
        """Return what is wrong with the unit or the form of the boxes, "" if nothing is."""
        boxes = np.array(self._corners, np.float64).reshape(-1, 4)
        sizes = np.array(self._sizes, np.float64).reshape(-1, 2)
        return unit_warning(boxes, sizes)


def unit_warning(boxes: Boxes, sizes: NDArray[np.float64]) -> str:
    """Return a sentence if boxes are hardly what their format has, "" if they may be.

    They are fractions if nearly all of them are in the first pixel of their images. They have
    another form, such as corners in place of a size, if boxes reach out of their images or end
    before they begin, and nearly none does once they are read as the other form.

    boxes: [N, 4]. sizes: of their images, [N, 2].

    >>> size = np.full((3, 2), 100.0)
    >>> unit_warning(np.array([[0.1, 0.1, 0.3, 0.2]] * 3), size)  # doctest: +ELLIPSIS
    '3 boxes of 3 lie in the first pixel of their image: they may be fractions of it, ...'
    >>> unit_warning(np.array([[10.0, 10, 30, 20]] * 3), size)
    ''
    """
    count = len(boxes)
    if count < FEW_BOXES:
        return ""

    first_part = np.maximum(FIRST_PIXEL, FIRST_PART * sizes)
    in_first = int((boxes[:, 2:] <= first_part).all(1).sum())
    if in_first >= NEARLY_ALL * count:
        of_all = f"{counted(in_first, 'box')} of {count:,}"
        return (
            f"{of_all} lie in the first pixel of their image: they may be fractions of it, "
            f"where the format has other numbers; {EXPORT_AGAIN}"
        )

    if _are_percentages(boxes, sizes):
        return (
            f"all {counted(count, 'box')} lie in the first 100 pixels of their image, and fill "
            f"them: they may be percentages, where the format has pixels; {EXPORT_AGAIN}"
        )

    with np.errstate(all="ignore"):  # values may be as large as a file says
        sides = _outside_sides(boxes, sizes, OUTSIDE, OUTSIDE_PX)
        outside = int(sides.any(1).sum())
        is_notable = outside >= FEW_BOXES and outside > SHARE_OUTSIDE * count
        is_many = outside >= MANY_OUTSIDE and outside > SHARE_OF_MANY * count
        if not (is_notable or is_many):
            return ""
        # A wrong form shows in both directions, people whom the lower edge cuts in one.
        if outside >= MANY_OUTSIDE and not sides.any(0).all():
            return ""

        form, remaining = "", count
        for name, read_as in OTHER_FORMS.items():
            now_outside = int(_outside_sides(read_as(boxes), sizes, FITS, FITS_PX).any(1).sum())
            if now_outside < remaining:
                form, remaining = name, now_outside
    if remaining * FEWER > outside:
        return ""
    return (
        f"{counted(outside, 'box')} of {count:,} reach out of the image or end before they begin; "
        f"{_or_none(remaining)} would if rows were {form}; {EXPORT_AGAIN}"
    )


def _or_none(count: int) -> str:
    return f"only {count:,}" if count else "none"


def _outside_sides(
    boxes: Boxes, sizes: NDArray[np.float64], share: float, pixels: float
) -> NDArray[np.bool_]:
    """Return whether boxes reach out of their image, or end before they begin.

    [N, 2]: left or right, up or down. share, pixels: by which they may reach out, the larger one.
    """
    slack = np.maximum(pixels, share * sizes)
    start, end = boxes[:, :2], boxes[:, 2:]
    return (start < -slack) | (end > sizes + slack) | (end <= start)


def _are_percentages(boxes: Boxes, sizes: NDArray[np.float64]) -> bool:
    """Return whether boxes fill the first 100 pixels of their images, and nothing else."""
    if len(boxes) < MANY_BOXES or sizes.min() < MUCH_LARGER:
        return False
    ends = boxes[:, 2:]
    fill = ends.max(0) > REACHED_PERCENT
    return bool(fill.all() and (boxes >= -1).all() and (ends <= PERCENT).all())


def _columns(boxes: Boxes) -> tuple[Boxes, Boxes]:
    """Return the upper left corners [N, 2] and the sizes [N, 2]."""
    return boxes[:, :2], boxes[:, 2:] - boxes[:, :2]


def _corners_as_size(boxes: Boxes) -> Boxes:
    start, size = _columns(boxes)
    return np.concatenate([start, size], 1)


def _centers_as_start(boxes: Boxes) -> Boxes:
    start, size = _columns(boxes)
    return np.concatenate([start - size / 2, start + size / 2], 1)


def _corners_as_center(boxes: Boxes) -> Boxes:
    start, size = _columns(boxes)
    return np.concatenate([start + size / 2, size], 1)


def _starts_as_center(boxes: Boxes) -> Boxes:
    start, size = _columns(boxes)
    center = start + size / 2
    return np.concatenate([center, center + size], 1)


def _sizes_as_corner(boxes: Boxes) -> Boxes:
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)


def _centers_as_corner(boxes: Boxes) -> Boxes:
    center, size = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([center - size / 2, center + size / 2], 1)


# What the rows may be, in place of what the format has, and the boxes that they are then.
OTHER_FORMS: dict[str, Callable[[Boxes], Boxes]] = {
    "corners in place of left, top, width, height": _corners_as_size,
    "center and size in place of left, top, width, height": _centers_as_start,
    "corners in place of center and size": _corners_as_center,
    "left, top, width, height in place of center and size": _starts_as_center,
    "left, top, width, height in place of corners": _sizes_as_corner,
    "center and size in place of corners": _centers_as_corner,
}
