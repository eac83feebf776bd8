"""Pascal VOC: an XML file for each image.

Boxes are `xmin ymin xmax ymax` in pixels, counted from 1, the last ones included.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from data.formats.base import (
    ClassNames,
    ImageRows,
    ListedImage,
    SourceImages,
    UnreadableLabelsError,
    shown_names,
)
from data.formats.voc.annotation import (
    CORNERS,
    MAX_BYTES,
    AnnotationEncodingError,
    AnnotationError,
    VocObject,
    parse_annotation,
)
from data.formats.voc.folders import (
    first_xml,
    images_of_set,
    is_image_set,
    label_map_names,
    xml_of_set,
    xmls_of_images,
)
from data.formats.yolo_txt import has_yolo_labels, label_bytes
from data.images import find_images, walk_images
from data.labels import MIN_BOX_SIDE, BadRowError, LabelRow
from data.report import ROW_CLIPPED, ROW_DROPPED, ROW_DUPLICATE, Problem
from data.sanity.box_units import Corners
from utils.printable import excerpt, printable

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
MAX_PIXELS = 1e7  # along one side; larger coordinates are invalid


class VocXml:
    """Reads lists of image ids in ImageSets/, and folders of images whose labels are XML files.

    A folder is read by this format if an image in it has an XML file (data/formats/voc/folders.py:
    where) and none has YOLO's .txt file.
    """

    lists_images: ClassVar[bool] = False
    title: ClassVar[str] = "Pascal VOC"
    suffixes: ClassVar[frozenset[str]] = frozenset({".xml", ".txt"})

    def accepts(self, source: Path) -> bool:
        if not os.path.isdir(source):
            return is_image_set(source)
        return not has_yolo_labels(source) and bool(first_xml(str(source), walk_images(source)))

    def class_names(self, source: Path) -> ClassNames:
        folder = source if os.path.isdir(source) else source.parents[2]
        label_map = label_map_names(folder)
        if label_map is not None:
            return label_map

        names = set()
        for image in self.images(source, ()).images:
            try:
                annotation = parse_annotation(_xml_bytes(image.label_file) or b"")
            except AnnotationEncodingError as error:
                raise ValueError(_placed(image.label_file, error)) from None
            except (ValueError, AnnotationError):
                continue  # the scan reports it
            names |= {found.fields.get("name", "") for found in annotation.objects}
        return ClassNames(tuple(sorted(names - {""})))

    def images(self, source: Path, _: Sequence[str]) -> SourceImages:
        if os.path.isdir(source):
            paths, problems = find_images(source, labels=frozenset({".xml"}))
            files = xmls_of_images(str(source), paths)
            images = list(map(ListedImage, paths, files))
        else:
            paths, problems = images_of_set(source)
            images = [ListedImage(path, xml_of_set(source, path)) for path in paths]
        return SourceImages(images, problems)

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        try:
            data = _xml_bytes(image.label_file)
        except ValueError as error:
            raise UnreadableLabelsError(str(error)) from None
        if data is None:
            return ImageRows([], [], has_labels=False)
        return parse_xml_file(data, image.label_file, size, names)


def parse_xml_file(
    data: bytes, file: str, size: tuple[int, int], names: Sequence[str]
) -> ImageRows:
    """Return the rows of one XML file, in pixels; size: width and height of the image.

    Pixels are counted from 1 and xmax, ymax are inside the box: left = xmin - 1, width = xmax -
    xmin + 1. What is outside the image is clipped and reported. An object with `difficult` = 1 is
    an ignore region, as COCO's crowds are. Raises UnreadableLabelsError if the file is not an
    annotation of Pascal VOC, and ValueError with file and line if a class is not in `names`.
    """
    try:
        annotation = parse_annotation(data)
    except AnnotationError as error:
        raise UnreadableLabelsError(_placed(file, error)) from None
    rows: list[LabelRow] = []
    problems: list[Problem] = []
    boxes: list[Corners] = []
    first_line: dict[tuple[int, Corners, bool], int] = {}
    for voc_object in annotation.objects:
        line = voc_object.line
        where = f"{printable(file)} line {line}"
        try:
            class_index = _class_index(voc_object, names, where)
            corners = _corners(voc_object)
            boxes.append(corners)
            _require_order(corners)
            difficult = _is_difficult(voc_object)
            first = first_line.setdefault((class_index, corners, difficult), line)
            if first != line:
                reason = f"the same as the object in line {first}"
                problems.append(Problem(ROW_DUPLICATE, where, reason))
                continue
            row, outside = _row(class_index, corners, difficult, size, line)
        except BadRowError as error:
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            continue

        rows.append(row)
        if outside:
            reason = f"was outside the image by {outside:g} pixels"
            problems.append(Problem(ROW_CLIPPED, where, reason))
    declared = _declared_size(annotation.size)
    return ImageRows(rows, problems, declared_size=declared, boxes=boxes)


def _placed(file: str, error: AnnotationError) -> str:
    """Return the message of an error, with the file and its line."""
    place = f"{printable(file)} line {error.line}" if error.line else printable(file)
    return f"{place}: {error}"


def _xml_bytes(file: str) -> bytes | None:
    """Return the contents of an XML file, None if it does not exist.

    Raises ValueError if it cannot be read.
    """
    if os.path.exists(file) and os.path.getsize(file) > MAX_BYTES:
        raise ValueError(f"{printable(file)} has more than {MAX_BYTES // 2**20} MiB")
    return label_bytes(file)


def _declared_size(fields: dict[str, str]) -> tuple[int, int] | None:
    """Return (width, height) as <size> says, None if it does not: some programs write 0."""
    width = fields.get("width", "")
    height = fields.get("height", "")
    for side in (width, height):
        if not re.fullmatch(r"[0-9]{1,9}", side) or int(side) == 0:
            return None
    return int(width), int(height)


def _class_index(voc_object: VocObject, names: Sequence[str], where: str) -> int:
    """Return the class of an object.

    Raises BadRowError if it has none, and ValueError if its class is not in `names`.
    """
    if voc_object.repeated:
        raise BadRowError(f"the object has <{voc_object.repeated[0]}> twice")
    name = voc_object.fields.get("name", "")
    if not name:
        raise BadRowError("the object has no <name>")
    if name not in names:
        allowed = shown_names(names)
        raise ValueError(
            f"{where}: class '{excerpt(name)}' is not in 'names' of the data YAML: {allowed}"
        )
    return names.index(name)


def _corners(voc_object: VocObject) -> Corners:
    """Return xmin, ymin, xmax, ymax as in the file. Raises BadRowError."""
    values = []
    for corner in CORNERS:
        text = voc_object.fields.get(corner, "")
        if not text:
            raise BadRowError(f"the object has no <{corner}> in a <bndbox>")
        if not NUMBER.fullmatch(text) or abs(float(text)) >= MAX_PIXELS:
            raise BadRowError(f"{corner} is '{excerpt(text)}', must be a number of pixels")
        values.append(float(text))

    left, top, right, bottom = values
    return left, top, right, bottom


def _require_order(corners: Corners) -> None:
    """Raise BadRowError if a box ends before it begins."""
    left, top, right, bottom = corners
    for low, high, axis in ((left, right, "x"), (top, bottom, "y")):
        if high < low:
            raise BadRowError(f"{axis}max {high:g} is less than {axis}min {low:g}")


def _is_difficult(voc_object: VocObject) -> bool:
    text = voc_object.fields.get("difficult", "") or "0"
    if text not in ("0", "1"):
        raise BadRowError(f"difficult is '{excerpt(text)}', must be 0 or 1")
    return text == "1"


def _row(
    class_index: int, corners: Corners, difficult: bool, size: tuple[int, int], line: int
) -> tuple[LabelRow, float]:
    """Return the row clipped to the image, and by how many pixels it was outside.

    Args:
        class_index: of the object.
        corners: xmin, ymin, xmax, ymax as in the file.
        difficult: whether the object is ignored.
        size: width and height of the image.
        line: of the object in the file.

    Raises BadRowError if nothing is inside.
    """
    # The first pixel is number 1, and starts at 0.
    xmin, ymin, x2, y2 = corners
    x1 = xmin - 1
    y1 = ymin - 1

    width, height = size
    outside = max(-x1, -y1, x2 - width, y2 - height, 0.0)
    x = max(x1, 0.0)
    y = max(y1, 0.0)
    w = min(x2, width) - x
    h = min(y2, height) - y
    if min(w, h) < MIN_BOX_SIDE:
        text = ", ".join(f"{value:g}" for value in corners)
        raise BadRowError(f"bndbox [{text}] is outside its image of {width}x{height}")
    return LabelRow(class_index, (x, y, w, h), w * h, difficult, None, line), outside
