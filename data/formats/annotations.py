"""What an annotation tool writes of one object, and the label row that it becomes.

Coordinates are pixels of the image, x to the right, y down, or fractions of its sides.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.formats.base import ClassNames, ImageRows, shown_names
from data.labels import MIN_BOX_SIDE, BadRowError, LabelRow
from data.report import ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE, Problem
from data.sanity.box_units import Corners
from utils.printable import counted, excerpt

# The shapes of objects. All become upright boxes.
BOX = "box"
ROTATED_BOX = "rotated box"
POLYGON = "polygon"
ELLIPSE = "ellipse"
CUBOID = "cuboid"
MASK = "mask"
PARTS = "multi-part outline"
RUN_LENGTHS = "run-length mask"
KEYPOINTS = "set of keypoints"
OUTLINES = (ROTATED_BOX, POLYGON)  # their points are kept, for augmentation

MAX_COORDINATE = 1e7  # larger ones are invalid
ROUNDING = 1e-5  # fraction of the image side by which a box may be outside; it is not reported
MAX_DIGITS = 9  # of a class that is a number


class Annotation(NamedTuple):
    """One object, as a tool wrote it."""

    class_name: str
    # of a box, two opposite corners; of any other shape, the points whose extent is the box
    points: Sequence[tuple[float, float]]
    number: int | str  # its line, or its place in the file, such as "annotations[3]"
    shape: str = BOX
    crowd: bool = False  # whether it is a region to ignore
    in_order: bool = False  # whether the first corner of a box must be the upper left one


class AnnotatedImage(NamedTuple):
    """An image and its objects, as a tool wrote them."""

    name: str
    annotations: Sequence[Annotation] = ()
    problems: Sequence[Problem] = ()  # such as objects that cannot be read
    declared_size: tuple[int, int] | None = None  # width and height
    normalized: bool = False  # whether coordinates are fractions of the image's sides
    number: int | str = 0  # its line, or its place in the file
    split: str = ""  # that the tool puts it into


@dataclass
class AnnotationFile:
    """The contents of a file that lists images with their objects.

    names: the tool's own list of classes, in its order; None if it writes none.
    """

    images: list[AnnotatedImage]
    names: tuple[str, ...] | None = None
    problems: list[Problem] = field(default_factory=list)

    def class_names(self, file: Path) -> ClassNames:
        """Return the tool's list of classes, or else the names in use; file: that has the list."""
        if self.names is not None:
            return ClassNames(self.names, str(file))
        return ClassNames(sorted_names(image.annotations for image in self.images))


def sorted_names(annotations: Iterable[Iterable[Annotation]]) -> tuple[str, ...]:
    """Return the class names in use, sorted; numbers by their value.

    >>> sorted_names([[Annotation("10", [], 1), Annotation("9", [], 2)], [Annotation("9", [], 1)]])
    ('9', '10')
    """
    names = {annotation.class_name for of_image in annotations for annotation in of_image}
    if all(map(_is_number, names)):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def class_indices(names: Sequence[str]) -> dict[str, int]:
    """Return the class of each name that labels may have: its name, or its number from 0.

    Numbers are none of them if a class is called by a number.

    >>> class_indices(["cat", "dog"])
    {'cat': 0, 'dog': 1, '0': 0, '1': 1}
    >>> class_indices(["7", "9"])
    {'7': 0, '9': 1}
    """
    indices = {name: index for index, name in enumerate(names)}
    if not any(name.isdecimal() for name in names):
        indices |= {str(index): index for index in range(len(names))}
    return indices


def _is_number(name: str) -> bool:
    return name.isdecimal() and len(name) <= MAX_DIGITS


def label_rows(
    annotations: Iterable[Annotation], indices: Mapping[str, int], file: str
) -> ImageRows:
    """Return the rows of an image's objects, in the unit of their coordinates, and the problems.

    Objects without area are dropped, and so are repeated ones; both are reported.

    Args:
        annotations: the objects.
        indices: the class of each name, as `class_indices` returns it.
        file: for messages, as it is printed.

    Raises ValueError with file and place if a class is not in `indices`.
    """
    rows: list[LabelRow] = []
    problems: list[Problem] = []
    boxes: list[Corners] = []
    converted: Counter[str] = Counter()
    first_number: dict[tuple[object, ...], int | str] = {}
    for annotation in annotations:
        where = f"{file} {place(annotation.number)}"
        class_index = indices.get(annotation.class_name)
        if class_index is None:
            raise ValueError(f"{where}: {_unknown_class(annotation.class_name, indices)}")
        try:
            row = label_row(annotation, class_index)
        except ReversedBoxError as error:
            boxes.append(error.corners)
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            continue
        except BadRowError as error:
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            continue

        boxes.append(row.corners)
        key = (class_index, annotation.crowd, annotation.shape, *map(tuple, annotation.points))
        if key in first_number:
            reason = f"the same as {place(first_number[key])}"
            problems.append(Problem(ROW_DUPLICATE, where, reason))
            continue
        first_number[key] = annotation.number
        rows.append(row)
        if annotation.shape != BOX:
            converted[annotation.shape] += 1
    return ImageRows(rows, problems, converted=dict(converted), boxes=boxes)


def rows_in_image(
    rows: Iterable[LabelRow], size: tuple[int, int], file: str
) -> tuple[list[LabelRow], list[Problem]]:
    """Return the parts of rows inside an image, in pixels, and the problems.

    What is outside is clipped, and reported. size: width and height. file: for messages, as it is
    printed.
    """
    kept = []
    problems = []
    for row in rows:
        where = f"{file} {place(row.number)}"
        try:
            inside, outside = clipped(row, size)
        except BadRowError as error:
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            continue
        kept.append(inside)
        if outside > ROUNDING:
            reason = f"was outside the image by {outside:.2%} of its side"
            problems.append(Problem(ROW_CLIPPED, where, reason))
    return kept, problems


def place(number: int | str) -> str:
    """Return the place of an object for a message: a line number, or a text as it is.

    >>> place(3), place("shapes[0]")
    ('line 3', 'shapes[0]')
    """
    return number if isinstance(number, str) else f"line {number}"


def _unknown_class(name: str, indices: Mapping[str, int]) -> str:
    """Return what is wrong with a class, and which ones are allowed."""
    num_classes = len(set(indices.values()))
    if name.isdecimal() and "0" in indices:
        allowed = f"names has {counted(num_classes, 'class')} (0-{num_classes - 1})"
        return f"class {excerpt(name)}, but {allowed}"
    names = shown_names([*indices][:num_classes])
    return f"class '{excerpt(name)}' is not in 'names' of the data YAML: {names}"


class ReversedBoxError(BadRowError):
    """A box ends before it begins. corners: as they are written."""

    def __init__(self, corners: Corners) -> None:
        super().__init__(
            f"box {', '.join(f'{value:g}' for value in corners)} ends before it begins"
        )
        self.corners = corners


def label_row(annotation: Annotation, class_index: int) -> LabelRow:
    """Return the row of an object: its upright box, in the unit of its coordinates.

    Raises ReversedBoxError if its corners must be in order and are not, and BadRowError if it has
    no area, or coordinates that are not numbers.
    """
    points = annotation.points
    if len(points) < 2:
        found = counted(len(points), "point")
        raise BadRowError(f"a {annotation.shape} with {found} has no area")
    values = [value for point in points for value in point]
    for value in values:
        if not isfinite(value) or abs(value) > MAX_COORDINATE:
            raise BadRowError(f"coordinate {value:g} is not a finite number of pixels")

    if annotation.in_order:
        (x1, y1), (x2, y2) = points
        if x2 < x1 or y2 < y1:
            raise ReversedBoxError((x1, y1, x2, y2))

    xs = [x for x, _ in points]
    ys = [y for _, y in points]
    left = min(xs)
    top = min(ys)
    width = max(xs) - left
    height = max(ys) - top
    if min(width, height) <= 0:
        raise BadRowError(f"{annotation.shape} of {width:g} x {height:g}, must have an area")

    outline = None
    if annotation.shape in OUTLINES and len(points) >= 3:
        outline = np.array(points, np.float32)
    box = (left, top, width, height)
    return LabelRow(class_index, box, width * height, annotation.crowd, outline, annotation.number)


def clipped(row: LabelRow, size: tuple[int, int]) -> tuple[LabelRow, float]:
    """Return the part of a row inside the image, and how far it was outside, as a fraction.

    size: width and height of the image. Raises BadRowError if less than MIN_BOX_SIDE is inside.
    """
    width, height = size
    x1, y1, w, h = row.box_xywh
    x2 = x1 + w
    y2 = y1 + h
    outside = max(-x1 / width, -y1 / height, x2 / width - 1, y2 / height - 1, 0.0)

    left = max(x1, 0.0)
    top = max(y1, 0.0)
    inside_width = min(x2, width) - left
    inside_height = min(y2, height) - top
    if min(inside_width, inside_height) < MIN_BOX_SIDE:
        corners = ", ".join(f"{value:g}" for value in (x1, y1, x2, y2))
        raise BadRowError(f"box [{corners}] is outside its image of {width}x{height}")
    if outside == 0:
        return row, 0.0

    points = row.points
    if points is not None:
        points = points.clip(0, np.array(size, np.float32))
    box = (left, top, inside_width, inside_height)
    return row._replace(box_xywh=box, area=inside_width * inside_height, points=points), outside
