"""VisDrone-DET: a text file for each image, with a row of eight whole numbers for each object.

`left,top,width,height,score,category,truncation,occlusion`, in pixels.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from data.dataset_yaml import read_data_yaml
from data.formats.base import (
    ClassNames,
    ImageRows,
    ListedImage,
    SourceImages,
    UnreadableLabelsError,
)
from data.formats.yolo_txt import BYTE_ORDER_MARK, has_yolo_labels, label_bytes, rows_in_utf_16
from data.images import find_images, walk_images
from data.labels import MIN_BOX_SIDE, BadRowError, LabelRow
from data.report import ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE, Problem
from data.sanity.box_units import Corners
from utils.printable import excerpt, printable

ROW = re.compile(rb"\s*-?\d{1,7}(,-?\d{1,7}){7},?\s*")
DATA_YAML = Path(__file__).parents[1] / "VisDrone.yaml"
CLASSES = 10  # categories 1 to 10
REGION_CATEGORIES = (0, 11)  # ignored regions, other objects
START_BYTES = 4096  # of a label file, to see whether it has such rows


class VisDrone:
    """Reads folders `images` beside a folder `annotations` of such files.

    An image with YOLO's .txt file makes the folder one of that format.
    """

    lists_images: ClassVar[bool] = False
    title: ClassVar[str] = "VisDrone"
    suffixes: ClassVar[frozenset[str]] = frozenset({".txt"})

    def accepts(self, source: Path) -> bool:
        if not os.path.isdir(source) or has_yolo_labels(source):
            return False
        return any(_has_rows(annotation_path(image)) for image in walk_images(source))

    def class_names(self, source: Path) -> ClassNames:
        return ClassNames(read_data_yaml(DATA_YAML).names)

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        if len(names) != CLASSES:
            where = f"{printable(source)} has labels of VisDrone, which number {CLASSES} classes"
            raise ValueError(
                f"{where}, but names has {len(names)}: use the names in data/VisDrone.yaml"
            )
        paths, problems = find_images(source)
        images = [ListedImage(path, annotation_path(path)) for path in paths]
        return SourceImages(images, problems)

    def rows(self, image: ListedImage, size: tuple[int, int], _: Sequence[str]) -> ImageRows:
        try:
            data = label_bytes(image.label_file)
        except ValueError as error:
            raise UnreadableLabelsError(str(error)) from None
        parsed = parse_visdrone(data or b"", image.label_file, size)
        return parsed._replace(has_labels=data is not None)


def annotation_path(image: str) -> str:
    """Return the label file of an image: in `annotations` instead of the last folder `images`.

    >>> annotation_path("/a/VisDrone2019-DET-val/images/1.jpg"), annotation_path("/a/b/1.jpg")
    ('/a/VisDrone2019-DET-val/annotations/1.txt', '/a/b/1.txt')
    """
    stem = os.path.splitext(image)[0]
    before, images, after = stem.rpartition(f"{os.sep}images{os.sep}")
    if not images:
        return f"{stem}.txt"
    return f"{before}{os.sep}annotations{os.sep}{after}.txt"


def parse_visdrone(data: bytes, file: str, size: tuple[int, int]) -> ImageRows:
    """Return the rows of a label file in pixels of an image of `size` (width, height).

    Category k is class k - 1. A row with score 0 is an ignore region of its class; an ignored
    region (category 0) and another object (11) is one of every class. What is outside the image is
    clipped and reported. Raises ValueError with file and line if a category is not in 0 to 11.
    """
    in_utf_16 = rows_in_utf_16(data, file)
    if in_utf_16 is not None:
        return ImageRows([], in_utf_16)

    rows: list[LabelRow] = []
    problems: list[Problem] = []
    boxes: list[Corners] = []
    first_line: dict[tuple[int, ...], int] = {}
    for number, line in enumerate(data.removeprefix(BYTE_ORDER_MARK).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{printable(file)} line {number}"
        try:
            left, top, width, height, score, category = _values(line)
            if not 0 <= category <= CLASSES + 1:
                raise ValueError(f"{where}: category {category}, but VisDrone has 0-{CLASSES + 1}")
            values = (left, top, width, height, score, category)
            first = first_line.setdefault(values, number)
            if first != number:
                problems.append(Problem(ROW_DUPLICATE, where, f"the same as line {first}"))
                continue
            boxes.append((left, top, left + width, top + height))
            box, outside = _clipped(left, top, width, height, size)
        except BadRowError as error:
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            continue

        is_region = category in REGION_CATEGORIES
        classes = range(CLASSES) if is_region else [category - 1]
        crowd = is_region or score == 0
        _, _, box_width, box_height = box
        area = box_width * box_height
        for class_index in classes:
            rows.append(LabelRow(class_index, box, area, crowd, None, number))

        if outside:
            reason = f"was outside the image by {outside} pixels"
            problems.append(Problem(ROW_CLIPPED, where, reason))
    return ImageRows(rows, problems, boxes=boxes)


def _has_rows(file: str) -> bool:
    """Whether the first line of a label file is a row of VisDrone's; False if it cannot be read."""
    try:
        if not os.path.isfile(file):
            return False
        with open(file, "rb") as stream:
            start = stream.read(START_BYTES)
    except OSError:
        return False
    return ROW.fullmatch(start.partition(b"\n")[0]) is not None


def _values(line: bytes) -> list[int]:
    """Return left, top, width, height, score and category."""
    if not ROW.fullmatch(line):
        raise BadRowError(f"'{excerpt(line)}' is not a row of eight whole numbers with commas")
    return list(map(int, line.strip().split(b",")[:6]))


def _clipped(
    left: int, top: int, width: int, height: int, size: tuple[int, int]
) -> tuple[tuple[float, float, float, float], int]:
    """Return the part of a box inside the image, and by how many pixels the box was outside.

    The box is left, top, width, height, before and after.

    Args:
        left: of the box, in pixels, as the next three.
        top: of the box.
        width: of the box.
        height: of the box.
        size: width and height of the image.

    Raises BadRowError if nothing is inside.
    """
    if min(width, height) < 1:
        raise BadRowError(f"box has width {width} and height {height}, must be positive")

    image_width, image_height = size
    right = left + width
    bottom = top + height
    x = max(left, 0)
    y = max(top, 0)
    w = min(right, image_width) - x
    h = min(bottom, image_height) - y
    if min(w, h) < MIN_BOX_SIDE:
        box = f"{left},{top},{width},{height}"
        raise BadRowError(f"box {box} is outside its image of {image_width}x{image_height}")

    outside = max(-left, -top, right - image_width, bottom - image_height, 0)
    return (float(x), float(y), float(w), float(h)), outside
