"""CSV files with a row for each box, recognised by their header, or without one by their shape.

With a header: TensorFlow's and Roboflow's (`filename, width, height, class, xmin, ...`), VoTT's
(`image, xmin, ..., label`), Open Images' (`ImageID, ..., LabelName, XMin, XMax, ...`, fractions),
Kaggle's (`image_id, width, height, bbox`). Without: keras-retinanet's
(`path, x1, y1, x2, y2, class`), Make Sense's (`class, x, y, w, h, name, width, height`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

from data.formats.annotations import AnnotatedImage, Annotation, AnnotationFile
from data.formats.listing_reader import ListingReader
from data.formats.tools.csv_classes import class_list, display_names
from data.formats.tools.csv_rows import NUMBER, CsvRow, ImagesOfRows, first_row, read_csv
from data.formats.tools.fields import size_of
from data.formats.tools.outlines import Point, box_points
from data.labels import BadRowError
from data.report import Problem
from utils.images.decode import is_image_name
from utils.printable import excerpt

# The names of columns, in lower case without "_", and what they hold; the first one is used.
IMAGE_COLUMNS = ("filename", "imagename", "imgname", "imagefile", "imagefilename")
PATH_COLUMNS = ("image", "img", "path", "imagepath", "imgpath", "filepath", "file", "frame")
COLUMNS = {
    "image": (*IMAGE_COLUMNS, *PATH_COLUMNS, "imageid", "name"),
    "class": ("classname", "labelname", "class", "label", "category", "name", "classid"),
    "x1": ("xmin", "x1", "left"),
    "y1": ("ymin", "y1", "top"),
    "x2": ("xmax", "x2", "right"),
    "y2": ("ymax", "y2", "bottom"),
    "w": ("w", "boxwidth", "bboxwidth", "width"),
    "h": ("h", "boxheight", "bboxheight", "height"),
    "x": ("x", "bboxx"),
    "y": ("y", "bboxy"),
    "bbox": ("bbox", "box", "boundingbox"),
    "group": ("isgroupof",),  # of Open Images
}
# the columns of files without a header
RETINANET = ("image", "x1", "y1", "x2", "y2", "class")
CLASS_FIRST = ("image", "class", "x1", "y1", "x2", "y2")
MAKE_SENSE = ("class", "x", "y", "w", "h", "image", "image width", "image height")
MAX_FRACTION = 1.01  # of a coordinate that is a fraction of the image
ONLY_CLASS = "object"  # of a file without a column for the class
WHOLE = re.compile(r"([0-9]{1,9})\.0+")  # a number of a class that a program wrote as 1.0


class CsvBoxes(ListingReader):
    """Reads CSV files with a box in each row."""

    title: ClassVar[str] = "CSV with a box in each row"
    suffixes: ClassVar[frozenset[str]] = frozenset({".csv", ".txt"})

    def begins_with(self, start: bytes) -> bool:
        first = first_row(start)
        return _are_boxes(_columns(first.values)) or _order_of_row(first) is not None

    def read(self, file: Path) -> AnnotationFile:
        rows = read_csv(file)
        first = next(rows, None)
        if first is None:
            return AnnotationFile([])
        columns = _columns(first.values)
        if not _are_boxes(columns):
            order = _order_of_row(first) or RETINANET
            columns = {name: index for index, name in enumerate(order)}
            rows = chain([first], rows)

        images, problems = _images(rows, columns, file)
        normalized = "group" in columns or _are_fractions(image.annotations for image in images)
        images = [image._replace(normalized=normalized) for image in images]
        return AnnotationFile(images, class_list(file), problems)


def _images(
    rows: Iterable[CsvRow], columns: Mapping[str, int], file: Path
) -> tuple[list[AnnotatedImage], list[Problem]]:
    """Return the images that rows name, with their objects, and the problems of rows."""
    displayed = display_names(file)
    named = ImagesOfRows(file, columns["image"], partial(_size, columns=columns))
    for row in rows:
        objects = named.objects_of(row)
        if objects is None:
            continue
        try:
            annotation = _annotation(row, columns)
        except BadRowError as error:
            objects.drop(file, row.line, error)
            continue
        if annotation is not None:
            shown = displayed.get(annotation.class_name, annotation.class_name)
            objects.annotations.append(annotation._replace(class_name=shown))
    return [*named.images.values()], named.problems


def _columns(header: Sequence[str]) -> dict[str, int]:
    """Return the places of the columns that are known, by what they hold.

    >>> _columns(["image_id", "width", "height", "bbox", "source"])
    {'image': 0, 'w': 1, 'h': 2, 'bbox': 3}
    >>> _columns(["name", "x1", "x2", "y1", "y2", "classname"])["class"]
    5
    """
    found: dict[str, int] = {}
    names = [re.sub("[_ #]", "", name.lower()) for name in header]
    for what, known in COLUMNS.items():
        for name in known:
            if name in names and names.index(name) not in found.values():
                found[what] = names.index(name)
                break
    return found


def _are_boxes(columns: Mapping[str, int]) -> bool:
    """Whether columns are enough for boxes."""
    corners = {"x1", "y1", "x2", "y2"} <= columns.keys()
    corner_and_size = {"x1", "y1", "w", "h"} <= columns.keys()
    origin_and_size = {"x", "y", "w", "h"} <= columns.keys()
    has_box = corners or corner_and_size or origin_and_size or "bbox" in columns
    return "image" in columns and has_box


def _order_of_row(row: CsvRow) -> tuple[str, ...] | None:
    """Return the columns of a file that begins with this row, without a header; None if unknown.

    An image without objects has no values.

    >>> _order_of_row(CsvRow(1, ["1.jpg", "dog", "0", "1", "1", "2"])) == CLASS_FIRST
    True
    """
    values = row.values
    if len(values) == len(MAKE_SENSE) and is_image_name(values[5]):
        is_box = row.has_numbers(1, 5) and row.has_numbers(6, 8)
        return MAKE_SENSE if is_box else None
    if len(values) != len(RETINANET) or not is_image_name(values[0]):
        return None
    if not any(values[1:]) or row.has_numbers(1, 5):
        return RETINANET
    if row.has_numbers(2, 6):
        return CLASS_FIRST
    return None


def _size(row: CsvRow, columns: Mapping[str, int]) -> tuple[int, int] | None:
    """Return the size of the image, if width and height are not those of the box."""
    has_box = {"x1", "y1", "x2", "y2"} <= columns.keys() or "bbox" in columns
    if not has_box or not {"w", "h"} <= columns.keys():
        return None
    if max(columns["w"], columns["h"]) >= len(row.values):
        return None
    sides = [row.value(columns[side]) for side in ("w", "h")]
    if not all(re.fullmatch(r"[0-9]{1,9}(\.0+)?", side) for side in sides):
        return None
    return size_of(float(sides[0]), float(sides[1]))


def _annotation(row: CsvRow, columns: Mapping[str, int]) -> Annotation | None:
    """Return the object of a row; None for an image without objects: its box is empty."""
    points = _points(row, columns)
    if points is None:
        return None
    name = row.value(columns["class"]) if "class" in columns else ONLY_CLASS
    if not name:
        raise BadRowError("the row has no class")
    whole = WHOLE.fullmatch(name)
    crowd = "group" in columns and row.value(columns["group"]) == "1"
    return Annotation(
        whole[1] if whole else name, points, row.line, crowd=crowd, in_order=_has_corners(columns)
    )


def _has_corners(columns: Mapping[str, int]) -> bool:
    """Whether the box of a row is written as two corners."""
    return "bbox" not in columns and {"x1", "y1", "x2", "y2"} <= columns.keys()


def _points(row: CsvRow, columns: Mapping[str, int]) -> list[Point] | None:
    """Return the corners of the box of a row, None if it has no values."""
    if "bbox" in columns:
        text = row.value(columns["bbox"])
        if not text.strip("[]() "):
            return None
        values = [float(number) for number in NUMBER.findall(text)]
        if len(values) != 4 or NUMBER.sub("", text).strip("[]() ,;") != "":
            raise BadRowError(f"box '{excerpt(text)}' must be four numbers")
        return box_points(*values)

    if _has_corners(columns):
        numbers = _numbers(row, columns, ("x1", "y1", "x2", "y2"))
        if numbers is None:
            return None
        x1, y1, x2, y2 = numbers
        return [(x1, y1), (x2, y2)]

    corner = ("x1", "y1") if "x1" in columns else ("x", "y")
    numbers = _numbers(row, columns, (*corner, "w", "h"))
    return None if numbers is None else box_points(*numbers)


def _numbers(row: CsvRow, columns: Mapping[str, int], names: Sequence[str]) -> list[float] | None:
    if not any(row.value(columns[name]) for name in names):
        return None
    return [row.number(columns[name]) for name in names]


def _are_fractions(images: Iterable[Iterable[Annotation]]) -> bool:
    """Whether most boxes are in fractions of the image: at most 1, and not all are whole numbers.

    A few may be larger: a box that reaches out of its image, an error of one row.
    """
    small = 0
    large = 0
    any_part = False
    for annotations in images:
        for annotation in annotations:
            first, last = annotation.points
            if max(*first, *last) > MAX_FRACTION:
                large += 1
                continue
            small += 1
            any_part = any_part or not all(value.is_integer() for value in (*first, *last))
    return any_part and small > large
