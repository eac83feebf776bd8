"""YOLO label files: a row per object, in fractions of the image.

A row is `class cx cy w h`, a box, or `class x1 y1 x2 y2 x3 y3 ...`, a polygon.
"""

import codecs
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import ClassVar

import numpy as np

from data.formats.base import (
    ClassNames,
    ImageRows,
    ListedImage,
    SourceImages,
    UnreadableLabelsError,
)
from data.formats.image_finder import LABEL_STUDIO_PREFIX, name_key
from data.formats.name_lists import NAME_LISTS, lists_in, require_same_names
from data.formats.voc.folders import first_xml
from data.formats.yolo_values import (
    BOX_VALUES,
    box_row_length,
    long_rows,
    rows_of_files,
)
from data.images import find_images, walk_images
from data.labels import MIN_BOX_SIDE, BadRowError, LabelRow
from data.report import (
    NOTE,
    ROW_CLIPPED,
    ROW_DROPPED,
    ROW_DUPLICATE,
    UNMATCHED_LABELS,
    VALUES_LEFT_OUT,
    Problem,
)
from data.sanity.box_units import Corners
from utils.images.decode import is_image_name, read_bytes
from utils.printable import counted, excerpt, printable

TOLERANCE = 0.01  # fraction of the image side by which a coordinate may be outside; it is clipped
# the same of the four corners of a turned rectangle: at the border of an image some are outside
CORNER_TOLERANCE = 1.0
FOUR_CORNERS = 8  # numbers
# fraction of the image side by which rounding to six digits may overshoot; not clipped
ROUNDING = 1e-5
MOST_FRACTION = 2  # larger coordinates are hardly fractions
PARENTS = 2  # folders above a source in which a list of its classes may be
SAMPLED_IMAGES = 200  # number of images of a folder whose XML files are looked for
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CLASS_NUMBER = re.compile(rb"\s*([0-9]{1,6})(?:\.0*)?\s")  # also as programs write it, 1.0
DECIMAL_COMMA = re.compile(rb"-?\d*,\d+")


class ClassNumberError(ValueError):
    """A row has a class number that is not one of the names. The message has file and line."""


class YoloText:
    """Reads folders, .txt lists and single images; each image has its own label file."""

    lists_images: ClassVar[bool] = False
    title: ClassVar[str] = "YOLO"
    suffixes: ClassVar[frozenset[str]] = frozenset({".txt"})

    def accepts(self, _: Path) -> bool:
        return True

    def class_names(self, source: Path) -> ClassNames:
        lists = listed_names(source)
        try:
            require_same_names(lists)
        except ValueError as error:
            advice = "give each folder with a list of its own to --data by itself"
            raise ValueError(f"{error}: {advice}") from None
        return lists[0] if lists else ClassNames(_numbers_in_use(self.images(source, ()).images))

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        paths, problems = find_images(source)
        images = [ListedImage(path, label_path(path)) for path in paths]
        problems += _unused_xml(source, paths)
        if os.path.isdir(source):
            problems += _unmatched_labels(source, images)

        # What all rows together say: boxes with further values, the first class.
        rows = list(rows_of_files(_contents_of_labels(images)))
        length = box_row_length(rows)
        if length:
            images = [image._replace(box_row_length=length) for image in images]
            problems.append(Problem(VALUES_LEFT_OUT, printable(source), _left_out_text(length)))
        classes = {row[0] for row in rows}
        begins_at_1 = bool(classes) and (min(classes), max(classes)) == (1, len(names))

        return SourceImages(images, problems, None, long_rows(rows, length), begins_at_1)

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        try:
            data = label_bytes(image.label_file)
        except ValueError as error:
            raise UnreadableLabelsError(str(error)) from None

        found = parse_label_file(
            data or b"", image.label_file, size, len(names), image.box_row_length
        )
        polygons = sum(row.points is not None for row in found.rows)
        converted = {"polygon": polygons} if polygons else {}
        return found._replace(has_labels=data is not None, converted=converted)


def listed_names(source: Path, top: Path | None = None) -> list[ClassNames]:
    """Return the lists of classes that tools have written for the labels of a source.

    Those in the folders of its images and of their labels, up to `source`; without any, the nearest
    of at most PARENTS folders above.

    top: the folder of the data set, in place of `source`; above it no file is looked for.

    Raises ValueError with the path of a list that cannot be read or has a name twice.
    """
    end = top or source
    folders: set[Path] = set()
    for folder in {os.path.dirname(image) for image in _image_paths(source)}:
        of_labels = os.path.dirname(label_path(os.path.join(folder, "a.jpg")))
        for lowest in (Path(folder), Path(of_labels)):
            above = [parent for parent in lowest.parents if parent.is_relative_to(end)]
            folders.update((lowest, *above))
    folders = folders or {source if os.path.isdir(source) else source.parent}

    for _ in range(PARENTS + 1):
        lists = [listed for folder in sorted(folders) for listed in lists_in(folder)]
        if lists:
            return lists
        folders = {folder.parent for folder in folders if folder != top}
    return []


def _image_paths(source: Path) -> Iterable[str]:
    """Return the images of a source; none if it cannot be read, which the scan reports."""
    if os.path.isdir(source):
        return walk_images(source)
    try:
        return find_images(source).images
    except ValueError:
        return []


def _numbers_in_use(images: Iterable[ListedImage]) -> tuple[str, ...]:
    """Return "0", "1", ... up to the largest class in the label files of images.

    Rows that cannot be read are passed over: the scan reports them.
    """
    largest = -1
    for image in images:
        try:
            data = label_bytes(image.label_file) or b""
        except ValueError:
            continue
        for line in data.removeprefix(BYTE_ORDER_MARK).splitlines():
            number = CLASS_NUMBER.match(line)
            if number:
                largest = max(largest, int(number[1]))
    return tuple(map(str, range(largest + 1)))


def _contents_of_labels(images: Iterable[ListedImage]) -> Iterator[bytes]:
    """Return the contents of the label files that exist and can be read."""
    for image in images:
        try:
            data = label_bytes(image.label_file)
        except ValueError:
            continue  # the scan reports it
        if data is not None:
            yield data.removeprefix(BYTE_ORDER_MARK)


def _left_out_text(length: int) -> str:
    """Return what is said of rows with more values than a box."""
    if length == BOX_VALUES + 1:
        return "all rows have six values: the sixth, a confidence or a track number, is left out"
    return (
        f"rows of {length} values are boxes with keypoints, since all points lie in the boxes: "
        "the keypoints are left out; kpt_shape in a data YAML decides it"
    )


def _unmatched_labels(source: Path, images: Sequence[ListedImage]) -> list[Problem]:
    """Return a problem if label files in the folders of the images' labels have no image."""
    stems_of: dict[str, set[str]] = defaultdict(set)
    for image in images:
        folder, name = os.path.split(image.label_file)
        stems_of[folder].add(os.path.splitext(name)[0])

    unmatched: list[str] = []
    for folder, stems in stems_of.items():
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            stem, suffix = os.path.splitext(name)
            is_label = suffix.lower() == ".txt" and name not in NAME_LISTS
            is_other = suffix != ".txt" or stem not in stems
            may_be_unmatched = is_label and is_other and not name.startswith(".")
            if may_be_unmatched and not is_list_of_images(Path(folder, name)):
                unmatched.append(name)
    if not unmatched:
        return []
    all_stems = {stem for stems in stems_of.values() for stem in stems}
    return [Problem(UNMATCHED_LABELS, printable(source), _unmatched_text(unmatched, all_stems))]


def _unmatched_text(unmatched: Sequence[str], stems: Collection[str]) -> str:
    """Return what is said of label files without an image: number, names, the likely reason.

    stems: the names of the images without suffix.
    """
    names = ", ".join(excerpt(name, 64) for name in sorted(unmatched)[:3])
    text = f"{counted(len(unmatched), 'label file')} without an image, such as {names}"

    # The reason: a prefix, or another spelling.
    prefixed = [name for name in unmatched if LABEL_STUDIO_PREFIX.match(name)]
    without_prefix = [LABEL_STUDIO_PREFIX.sub("", name) for name in prefixed]
    matched_without = sum(os.path.splitext(name)[0] in stems for name in without_prefix)
    if matched_without:
        prefix = prefixed[0].removesuffix(without_prefix[0])
        return f"{text}; {matched_without:,} begin with a prefix such as {prefix}, no image does"
    spellings = set(map(name_key, stems))
    spelled = sum(name_key(os.path.splitext(name)[0]) in spellings for name in unmatched)
    if spelled:
        return f"{text}; {spelled:,} differ from an image's name in capital letters or accents only"
    return text


def is_list_of_images(file: Path) -> bool:
    """Whether a text file begins with the path of an image, as lists of images do."""
    if not os.path.isfile(file):  # reading a pipe may never end
        return False
    try:
        with open(file, "rb") as stream:
            first = stream.readline(4096).decode("utf-8", "replace")
    except OSError:
        return False
    return is_image_name(os.path.basename(first.strip()))


def _unused_xml(source: Path, images: Sequence[str]) -> list[Problem]:
    """Return a note if the images of a folder have labels in Pascal VOC's format too."""
    if not os.path.isdir(source):
        return []
    xml = first_xml(str(source), images[:SAMPLED_IMAGES])
    if not xml:
        return []
    reason = f"labels are read from YOLO's .txt files, not from XML files such as {printable(xml)}"
    return [Problem(NOTE, printable(source), reason)]


def label_path(image_path: str | Path) -> str:
    """Return the label file of an image.

    It is in `labels` instead of the last folder `images`, or beside the image if there is none. If
    there is a folder `Images` instead, and a folder `Labels` or `labels` beside it, it is in that.

    >>> label_path("/a/images/images/train/1.jpg")
    '/a/images/labels/train/1.txt'
    >>> label_path("/a/b/1.jpg")
    '/a/b/1.txt'
    """
    stem = os.path.splitext(image_path)[0]
    before, separator, after = stem.rpartition(f"{os.sep}images{os.sep}")
    if separator:
        return f"{before}{os.sep}labels{os.sep}{after}.txt"

    for images in ("Images", "IMAGES"):
        before, separator, after = stem.rpartition(f"{os.sep}{images}{os.sep}")
        for labels in ("Labels", "LABELS", "labels"):
            if separator and os.path.isdir(f"{before}{os.sep}{labels}"):
                return f"{before}{os.sep}{labels}{os.sep}{after}.txt"
    return f"{stem}.txt"


def has_yolo_labels(folder: Path) -> bool:
    """Whether an image in a folder has a label file."""
    return any(os.path.lexists(label_path(image)) for image in walk_images(folder))


def label_bytes(file: str) -> bytes | None:
    """Return the contents of a label file, or None if it does not exist.

    Raises ValueError if it cannot be read.
    """
    try:
        os.lstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        # it may exist in a folder without read permission: the image must not count as background
        pass
    return read_bytes(file)


def parse_label_file(
    data: bytes, file: str, size: tuple[int, int], num_classes: int, box_row_length: int = 0
) -> ImageRows:
    """Return the rows of a label file, and the problems.

    Args:
        data: the contents.
        file: its path, for messages.
        size: width and height of the image.
        num_classes: number of classes.
        box_row_length: rows of so many values are a box and values that are left out; 0: none are.

    Five values are a class and a box, an odd number of at least 7 values is a class and a polygon.
    Coordinates up to 1 % outside the image are clipped, those of four corners up to its side, and
    so are boxes that extend past its edge; all are reported if they move by more than rounding.
    Raises ClassNumberError with file and line if a class is not in 0..num_classes-1.
    """
    in_utf_16 = rows_in_utf_16(data, file)
    if in_utf_16 is not None:
        return ImageRows([], in_utf_16)

    boxes: list[Corners] = []
    rows: list[LabelRow] = []
    problems: list[Problem] = []
    first_line: dict[tuple[float, ...], int] = {}
    for number, line in enumerate(data.removeprefix(BYTE_ORDER_MARK).splitlines(), 1):
        tokens = line.split()
        if not tokens:
            continue
        if len(tokens) == box_row_length:
            tokens = tokens[:BOX_VALUES]
        where = f"{printable(file)} line {number}"
        try:
            values = _numbers(tokens)
            class_index = _class_index(values[0], num_classes, where)
            first = first_line.setdefault(values, number)
            if first != number:
                problems.append(Problem(ROW_DUPLICATE, where, f"the same as line {first}"))
                continue
            if len(values) == BOX_VALUES:
                boxes.append(_corners_as_read(values, size))
            row, moved = _row(class_index, values[1:], size, number)
        except BadRowError as error:
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            continue

        rows.append(row)
        if moved > ROUNDING:
            reason = f"was outside the image by {moved:.2%} of its side"
            problems.append(Problem(ROW_CLIPPED, where, reason))
    return ImageRows(rows, problems, boxes=boxes)


def _utf_16(data: bytes) -> str | None:
    """Return the text of a file in UTF-16, also without the mark at its start; None for others."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif data[1:2] == b"\0":
        encoding = "utf-16-le"
    elif data[:1] == b"\0":
        encoding = "utf-16-be"
    else:
        return None

    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    return text if text.isascii() and "\0" not in text else None


def rows_in_utf_16(data: bytes, file: str) -> list[Problem] | None:
    """Return one problem for each row of a label file in UTF-16; None for any other file."""
    text = _utf_16(data)
    if text is None:
        return None

    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            reason = f"'{excerpt(line.strip())}' is UTF-16 text, must be UTF-8"
            problems.append(Problem(ROW_DROPPED, f"{printable(file)} line {number}", reason))
    return problems


def _numbers(tokens: list[bytes]) -> tuple[float, ...]:
    """Return the values of a row. Raises BadRowError."""
    if len(tokens) < 5 or len(tokens) % 2 == 0:
        _require_spaces(tokens)
        reason = (
            f"number of values is {len(tokens)}; a row is class cx cy w h, or class and "
            "at least 3 points x y"
        )
        raise BadRowError(f"{reason}; this one is '{_excerpt(tokens)}'")

    try:
        values = tuple(map(float, tokens))
    except ValueError:
        values = ()
    # Python reads 1_0 as 10, no other reader does
    if not values or any(b"_" in token for token in tokens):
        _require_spaces(tokens)
        bad = next(index for index, token in enumerate(tokens) if not _is_number(token))
        text = f"'{excerpt(tokens[bad])}' is not a number"
        if bad == 0:
            text += ": rows begin with the number of their class, its place in classes.txt from 0"
        raise BadRowError(text)
    if not all(map(isfinite, values)):
        raise BadRowError("NaN or infinite value")
    return values


def _require_spaces(tokens: list[bytes]) -> None:
    """Raise BadRowError if commas or semicolons are between the values or inside them."""
    row = b" ".join(tokens)
    if len(tokens) >= 5 and all(DECIMAL_COMMA.fullmatch(token) for token in tokens[1:]):
        raise BadRowError(f"'{_excerpt(tokens)}' has decimal commas, must have points, as in 0.5")
    for sign, name in ((b",", "commas"), (b";", "semicolons")):
        if sign in row:
            raise BadRowError(
                f"'{_excerpt(tokens)}' has {name} between the values, must have spaces"
            )


def _excerpt(tokens: list[bytes]) -> str:
    """Return the row, or its start, for a message."""
    return excerpt(b" ".join(tokens), 60)


def _is_number(token: bytes) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return b"_" not in token  # which float() accepts between digits


def _class_index(value: float, num_classes: int, where: str) -> int:
    if not value.is_integer():
        raise BadRowError(f"class {value:g} is not a whole number")
    if not 0 <= value < num_classes:
        allowed = f"names has {counted(num_classes, 'class')} (0-{num_classes - 1})"
        raise ClassNumberError(f"{where}: class {value:.15g}, but {allowed}")
    return int(value)


def _row(
    class_index: int, coordinates: tuple[float, ...], size: tuple[int, int], number: int
) -> tuple[LabelRow, float]:
    """Return the row in pixels, and how far it was outside, as a fraction of the image side."""
    low, high = min(coordinates), max(coordinates)
    tolerance = CORNER_TOLERANCE if len(coordinates) == FOUR_CORNERS else TOLERANCE
    if low < -tolerance or high > 1 + tolerance:
        worst = low if low < -tolerance else high
        reason = f"coordinate {worst:g} is outside 0-1 by more than {tolerance:.0%}"
        if worst > MOST_FRACTION:
            reason += "; is it in pixels? YOLO's are fractions of the image"
        raise BadRowError(reason)

    points = None
    if len(coordinates) == 4:
        corners, moved = _box_corners(*coordinates)
    else:
        corners, points, moved = _polygon_corners(coordinates, size)

    width, height = size
    x1, y1, x2, y2 = corners
    x = x1 * width
    y = y1 * height
    w = (x2 - x1) * width
    h = (y2 - y1) * height
    if min(w, h) < MIN_BOX_SIDE:
        raise BadRowError(f"empty inside the image: {w:.3g} x {h:.3g} pixels")
    return LabelRow(class_index, (x, y, w, h), w * h, False, points, number), moved


def _corners_as_read(values: tuple[float, ...], size: tuple[int, int]) -> Corners:
    """Return the corners in pixels of a row that is a class and a box, wherever they lie."""
    _, cx, cy, w, h = values
    width, height = size
    return (cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height


def _box_corners(
    cx: float, cy: float, w: float, h: float
) -> tuple[tuple[float, float, float, float], float]:
    """Return the corners of a box inside the image, and how far it was outside.

    They are fractions of the image's sides. Raises BadRowError for a box without area.
    """
    if w <= 0 or h <= 0:
        raise BadRowError(f"box has width {w:g} and height {h:g}, must be positive")

    x1 = cx - w / 2
    y1 = cy - h / 2
    x2 = cx + w / 2
    y2 = cy + h / 2
    moved = max(-x1, -y1, x2 - 1, y2 - 1, 0.0)
    if moved > ROUNDING:
        x1, y1, x2, y2 = (min(max(value, 0.0), 1.0) for value in (x1, y1, x2, y2))
    return (x1, y1, x2, y2), moved


def _polygon_corners(
    coordinates: tuple[float, ...], size: tuple[int, int]
) -> tuple[tuple[float, float, float, float], np.ndarray, float]:
    """Return the corners of a polygon's box, its points in pixels, and how far it was outside.

    The points, float32 [P, 2], and the corners, fractions of the image's sides, are clipped.
    """
    moved = max(-min(coordinates), max(coordinates) - 1, 0.0)
    points = np.array(coordinates).reshape(-1, 2).clip(0, 1)
    x1, y1 = points.min(0).tolist()
    x2, y2 = points.max(0).tolist()
    return (x1, y1, x2, y2), (points * size).astype(np.float32), moved
