"""Read COCO JSON (object detection): images, and annotations as label rows."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from data.formats.annotations import PARTS, RUN_LENGTHS
from data.formats.base import ClassNames, ImageRows, ListedImage, SourceImages
from data.formats.coco_categories import read_categories
from data.formats.image_finder import AmbiguousImageError, ImageFinder
from data.formats.json_files import brief, no_whole_number, read_json, whole_number
from data.labels import MIN_BOX_SIDE, BadRowError, LabelRow
from data.report import (
    IMAGE_DROPPED,
    IMAGES_NOT_FOUND,
    NOTE,
    POLYGON_DROPPED,
    ROW_DROPPED,
    ROW_DUPLICATE,
    ROW_WITHOUT_IMAGE,
    Problem,
)
from data.sanity.ignored_objects import COCO_TITLE
from utils.printable import counted, excerpt, printable

MAX_PIXELS = 1e7  # along one side; larger coordinates are invalid
# pixels, and fraction of the side, by which a polygon's extent may differ from its bbox
POLYGON_SLACK = (2.0, 0.02)
SAMPLED_IMAGES = 200  # number of listed images that decide which folder all are in


class UnlistedImageError(BadRowError):
    """The image of an annotation is not among those of the file."""


class CocoImage(NamedTuple):
    """One listed image, whose file may not exist."""

    path: str
    image_id: int
    declared_size: tuple[int, int] | None  # (width, height) if the JSON has them


class CocoFile(NamedTuple):
    """The contents of a COCO JSON."""

    images: list[CocoImage]
    rows: list[list[LabelRow]]  # of each image
    dropped_rows: list[int]  # for each image, the number of its annotations that cannot be used
    converted: list[Counter[str]]  # for each image, its rows that only kept a box, by their shape
    category_ids: list[int]  # of each class
    problems: list[Problem]


class ListedImages(NamedTuple):
    """The images of a COCO JSON, and what their ids in the annotations mean.

    index_of_id: the place in `images`; several ids have the same if the file lists an image several
    times. ambiguous: the file names of each id that stands for several images.
    """

    images: list[CocoImage]
    index_of_id: dict[int, int]
    ambiguous: dict[int, tuple[str, str]]


def read_coco_annotations(file: Path, names: Sequence[str]) -> CocoFile:
    """Read the images and annotations of a COCO JSON, with classes numbered as in `names`.

    Categories are matched to `names` by name, in any order and with any ids; a class that is not in
    the JSON gets an unused category id. `bbox`, `area` and `iscrowd` are not changed (`area`
    defaults to width x height, `iscrowd` to 0, also if it is null). A polygon is kept if it is the
    annotation's only part and has the extent of its bbox; annotations with several parts or RLE
    keep only their box. The folder of the images is the one that `images_root` returns.

    The ids of annotations may repeat, be missing, or be anything, since no box depends on them. An
    annotation with the class, bbox and iscrowd of another one of its image is dropped and reported.
    An image that is listed under two ids has the annotations of both.

    Raises ValueError with the file's path if it is not a COCO JSON, a category in use is not in
    `names`, or an image id in use stands for two files.
    """
    document = _load(file)
    categories = read_categories(file, document)
    problems: list[Problem] = []
    listing = _images(file, document["images"], problems)
    class_of_name = {name: index for index, name in enumerate(names)}
    class_by_category = {}
    for category_id, name in categories.names.items():
        if name in class_of_name:
            class_by_category[category_id] = class_of_name[name]

    rows, dropped, converted = _rows(
        file, document["annotations"], listing, categories.names, class_by_category, problems
    )
    rows = [_without_duplicates(file, image_rows, problems) for image_rows in rows]
    category_ids = categories.ids_of_classes(class_by_category, len(names))
    return CocoFile(listing.images, rows, dropped, converted, category_ids, problems)


class CocoJson:
    """Reads COCO JSON files as sources of a data set."""

    lists_images: ClassVar[bool] = True
    title: ClassVar[str] = COCO_TITLE
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def accepts(self, source: Path) -> bool:
        return source.suffix.lower() == ".json" and not os.path.isdir(source)

    def class_names(self, source: Path) -> ClassNames:
        categories = read_categories(source, _load(source))
        whole = categories.listed
        names = tuple(name for name in whole if name not in categories.unused_parents)
        return ClassNames(names, str(source), whole)

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        file = read_coco_annotations(source, names)
        listed = []
        contents = zip(file.images, file.rows, file.dropped_rows, file.converted, strict=True)
        for (path, image_id, size), rows, dropped, converted in contents:
            entry = ListedImage(path, str(source), image_id, size, rows=rows, dropped_rows=dropped)
            listed.append(entry._replace(converted=converted))
        return SourceImages(listed, file.problems, file.category_ids)

    def rows(self, image: ListedImage, size: tuple[int, int], _: Sequence[str]) -> ImageRows:
        rows, problems = rows_inside(image.rows, size, printable(image.label_file))
        boxes = [row.corners for row in image.rows]
        return ImageRows(rows, problems, converted=image.converted, boxes=boxes)


def images_root(file: Path, file_names: Sequence[str]) -> Path:
    """Return the folder that the `file_name`s of a COCO JSON are relative to.

    Candidates are the JSON's folder F, F/images, F/images/S, F/S, F/../images, F/../images/S,
    F/../S, where S is the split: the JSON's name without `instances_` and `.json`. The result is
    the folder that contains most of the first 200 images, or the first of several with the same
    number.
    """
    roots = [file.parent / folder for folder in _candidates(file)]
    return max(roots, key=lambda root: _count_existing(root, file_names))


def _candidates(file: Path) -> list[str]:
    """Return the folders that `images_root` tries, relative to the JSON's folder."""
    split = file.stem.removeprefix("instances_")
    inside = ["images", f"images/{split}", split]
    beside = [f"../{folder}" for folder in inside]
    return [".", *inside, *beside]


def _count_existing(root: Path, file_names: Sequence[str]) -> int:
    """Return how many of the first images are in `root`."""
    sampled = [os.path.join(root, name) for name in file_names[:SAMPLED_IMAGES]]
    return sum(map(os.path.isfile, sampled))


def rows_inside(
    rows: Sequence[LabelRow], size: tuple[int, int], where: str
) -> tuple[list[LabelRow], list[Problem]]:
    """Return the rows whose box overlaps an image of `size` (width, height), and problems.

    The rows are not changed, also where they extend past the image. The problems list the other
    rows. where: the file, for these problems.
    """
    width, height = size
    kept = []
    problems = []
    for row in rows:
        x, y, w, h = row.box_xywh
        visible_width = min(x + w, width) - max(x, 0)
        visible_height = min(y + h, height) - max(y, 0)
        if min(visible_width, visible_height) >= MIN_BOX_SIDE:
            kept.append(row)
        else:
            reason = f"bbox [{x:g}, {y:g}, {w:g}, {h:g}] is outside its image of {width}x{height}"
            problems.append(Problem(ROW_DROPPED, f"{where} {_place(row.number)}", reason))
    return kept, problems


def _load(file: Path) -> dict[str, list]:
    document = read_json(file)
    for key in ("images", "annotations", "categories"):
        if not isinstance(document, dict) or not isinstance(document.get(key), list):
            raise ValueError(f"{printable(file)} is not a COCO JSON: it has no list '{key}'")
    return document


def _images(file: Path, entries: list, problems: list[Problem]) -> ListedImages:
    """Return the usable images of the list; the others are added to `problems`."""
    first_ids: dict[str, int] = {}  # of each file name, in the order of the file
    names: dict[int, str] = {}
    sizes: dict[int, tuple[int, int] | None] = {}
    ambiguous: dict[int, tuple[str, str]] = {}
    for position, entry in enumerate(entries):
        where = f"{printable(file)} images[{position}]"
        try:
            image_id, name = _image_entry(entry)
            size = _declared_size(entry)
            if names.get(image_id, name) != name:
                ambiguous.setdefault(image_id, (names[image_id], name))
                raise BadRowError(
                    f"id {image_id} is already that of '{excerpt(names[image_id], 200)}'"
                )
            first_id = first_ids.setdefault(name, image_id)
            if sizes.get(first_id, size) != size:
                raise BadRowError(
                    f"'{excerpt(name, 200)}' was already listed, with another width or height"
                )
        except BadRowError as error:
            problems.append(Problem(IMAGE_DROPPED, where, str(error)))
            continue
        if first_id in names:
            reason = (
                f"'{excerpt(name, 200)}' was already listed, with id {first_id}; it has "
                "the boxes of both entries"
            )
            problems.append(Problem(NOTE, where, reason))
        names[image_id] = name
        sizes[image_id] = size

    # The folder of the images.
    file_names = list(first_ids)
    root = images_root(file, file_names)

    # Each image once, and the place of each id in that list.
    finder = ImageFinder(file)
    paths = _image_paths(finder, root, file_names)
    images = [
        CocoImage(paths[name], first_id, sizes[first_id]) for name, first_id in first_ids.items()
    ]
    if images and not any(os.path.isfile(image.path) for image in images):
        problems.append(_images_not_found(file, file_names))
    problems += finder.notes()

    index_of_name = {name: index for index, name in enumerate(first_ids)}
    index_of_id = {image_id: index_of_name[name] for image_id, name in names.items()}
    return ListedImages(images, index_of_id, ambiguous)


def _image_paths(finder: ImageFinder, root: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the path of each image; where it is not found, or not certain, that in `root`."""
    paths = {name: os.path.abspath(os.path.join(root, name)) for name in names}
    found: dict[str, str] = {}  # the paths of those that are not in `root`
    names_of: Counter[str] = Counter()  # the number of names of each path
    folders_are_right = False
    root_has_images = False
    for name, path in paths.items():
        if os.path.isfile(path):
            names_of[path] += 1
            root_has_images = True
            folders_are_right = folders_are_right or os.path.dirname(name) != ""
            continue
        with suppress(AmbiguousImageError):
            other = finder.find(name)
            if other is not None:
                found[name] = other
                names_of[other] += 1

    # Another image of the same name must not take the place of one that is missing: sequences are
    # often numbered alike.
    inside_root = os.path.join(os.path.abspath(root), "")
    for name, other in found.items():
        is_elsewhere = folders_are_right and finder.is_elsewhere(name)
        is_outside = root_has_images and not other.startswith(inside_root)
        if names_of[other] > 1 or is_elsewhere or is_outside or finder.is_doubtful(name):
            continue
        paths[name] = other
    return paths


def _images_not_found(file: Path, file_names: Sequence[str]) -> Problem:
    """Return the problem of a COCO JSON none of whose images is in a folder of `_candidates`."""
    sampled = counted(min(len(file_names), SAMPLED_IMAGES), "image")
    first = f"{sampled} tried, such as {excerpt(file_names[0], 100)}: not found"
    folders = ", ".join(map(printable, _candidates(file)))
    tried = f"folders tried in {printable(file.parent)}: {folders}"
    return Problem(IMAGES_NOT_FOUND, printable(file), f"{first}; {tried}")


def _declared_size(entry: dict[str, Any]) -> tuple[int, int] | None:
    """Return (width, height) of an image entry, None if it has no valid ones."""
    width = whole_number(entry.get("width"))
    height = whole_number(entry.get("height"))
    if width is None or height is None or min(width, height) <= 0:
        return None
    return width, height


def _image_entry(entry: Any) -> tuple[int, str]:
    """Return the id and the path of an image entry. Raises BadRowError."""
    if not isinstance(entry, dict):
        raise BadRowError("not an object")

    image_id = whole_number(entry.get("id"))
    name = entry.get("file_name")
    if image_id is None:
        raise BadRowError(f"id is {no_whole_number(entry.get('id'))}")
    if not isinstance(name, str) or not name:
        raise BadRowError(f"file_name is {brief(name)}, must be a path")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise BadRowError(
            f"file_name '{excerpt(name)}' is not a valid path on this system"
        ) from None
    return image_id, os.path.normpath(name)  # ./a.jpg and a.jpg are one image


def _rows(
    file: Path,
    entries: list,
    listing: ListedImages,
    categories: dict[int, str],
    class_by_category: dict[int, int],
    problems: list[Problem],
) -> tuple[list[list[LabelRow]], list[int], list[Counter[str]]]:
    """Return for each image its rows, the number of annotations that were dropped, and the shapes
    of which only the box is kept.

    Args:
        file: the COCO JSON.
        entries: its annotations.
        listing: its images.
        categories: names by category id.
        class_by_category: the class of each category that is in `names` of the data YAML.
        problems: the annotations and polygons that are dropped are added to it.

    Raises ValueError if a category in use is not in `names` of the data YAML, or an image id in use
    is that of two files.
    """
    rows: list[list[LabelRow]] = [[] for _ in listing.images]
    dropped = [0] * len(listing.images)
    converted: list[Counter[str]] = [Counter() for _ in listing.images]
    for position, entry in enumerate(entries):
        number = _annotation_number(entry, position)
        where = f"{printable(file)} {_place(number)}"
        try:
            if not isinstance(entry, dict):
                raise BadRowError("not an object")
            category = entry.get("category_id")
            index = _image_index(listing, entry, where)
            name = _look_up(categories, category, "category_id", "categories")
            if category not in class_by_category:
                raise ValueError(
                    f"{where}: category {category} is '{excerpt(name)}', which is not in 'names' "
                    "of the data YAML"
                )
            row = _row(entry, number, class_by_category[category])
        except BadRowError as error:
            is_unlisted = isinstance(error, UnlistedImageError)
            kind = ROW_WITHOUT_IMAGE if is_unlisted else ROW_DROPPED
            problems.append(Problem(kind, where, str(error)))
            image_id = _meant_image_id(entry)
            if image_id in listing.index_of_id:
                dropped[listing.index_of_id[image_id]] += 1
            continue

        # The polygon, and notes.
        points = None
        if shape := _lost_shape(entry.get("segmentation")):
            converted[index][shape] += 1
        if not row.crowd:
            points, reason = _polygon(entry.get("segmentation"), row.box_xywh)
            if reason:
                problems.append(Problem(POLYGON_DROPPED, where, reason))
        _note_area(entry, row, where, problems)
        rows[index].append(row._replace(points=points))
    return rows, dropped, converted


def _lost_shape(segmentation: Any) -> str:
    """Return the shape of a segmentation of which only the box is kept, "" for others."""
    if isinstance(segmentation, dict) and segmentation:
        return RUN_LENGTHS
    return PARTS if isinstance(segmentation, list) and len(segmentation) > 1 else ""


def _without_duplicates(
    file: Path, rows: list[LabelRow], problems: list[Problem]
) -> list[LabelRow]:
    """Return the rows of an image without exact duplicates, which are reported."""
    first_rows: dict[tuple[Any, ...], LabelRow] = {}
    for row in rows:
        content = (row.class_index, row.crowd, row.box_xywh)
        first = first_rows.setdefault(content, row)
        if first is not row:
            same = _place(first.number)
            if first.number == row.number:
                same = "another one with this id"
            where = f"{printable(file)} {_place(row.number)}"
            problems.append(Problem(ROW_DUPLICATE, where, f"the same as {same}"))
    return list(first_rows.values())


def _annotation_number(entry: Any, position: int) -> int | str:
    """Return the id of an annotation, or its place in the file if the id is no whole number."""
    number = whole_number(entry.get("id")) if isinstance(entry, dict) else None
    return f"annotations[{position}]" if number is None else number


def _place(number: int | str) -> str:
    """Return what a message calls an annotation."""
    return number if isinstance(number, str) else f"annotation {number}"


def _meant_image_id(entry: Any) -> int | None:
    """Return the image id of an unusable annotation, also if it is a text; None if unknown."""
    image_id = entry.get("image_id") if isinstance(entry, dict) else None
    if isinstance(image_id, str) and re.fullmatch("[0-9]{1,15}", image_id):
        return int(image_id)
    return whole_number(image_id)


def _image_index(listing: ListedImages, entry: dict[str, Any], where: str) -> int:
    """Return the place of an annotation's image.

    Raises UnlistedImageError if there is none, and ValueError if its id is that of two files.
    """
    try:
        index: int = _look_up(listing.index_of_id, entry.get("image_id"), "image_id", "images")
    except BadRowError as error:
        raise UnlistedImageError(str(error)) from None
    image_id = whole_number(entry.get("image_id"))
    if image_id in listing.ambiguous:
        first, second = (excerpt(name, 100) for name in listing.ambiguous[image_id])
        raise ValueError(
            f"{where}: image_id {image_id} is the id of both '{first}' and '{second}' in 'images'"
        )
    return index


def _look_up(table: dict[int, Any], key: Any, what: str, where: str) -> Any:
    """Return the value of a key as the JSON has it. Raises BadRowError if the table lacks it."""
    number = whole_number(key)
    if number is None:
        raise BadRowError(f"{what} is {no_whole_number(key)}")
    if number not in table:
        raise BadRowError(f"{what} {brief(key)} is not among the file's {where}")
    return table[number]


def _row(entry: dict[str, Any], number: int | str, class_index: int) -> LabelRow:
    """Return the row of an annotation, without its polygon. Raises BadRowError."""
    # The box.
    bbox = entry.get("bbox")
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_coordinate, bbox)):
        raise BadRowError(
            f"bbox is {brief(bbox)}, must be four finite numbers: left, top, width, height"
        )
    x, y, w, h = map(float, bbox)
    if min(w, h) < MIN_BOX_SIDE:
        raise BadRowError(
            f"bbox has width {w:g} and height {h:g}, must be at least {MIN_BOX_SIDE:g}"
        )

    crowd = entry.get("iscrowd")
    if crowd is None:  # absent, or null as some programs write it
        crowd = 0
    if crowd not in (0, 1):
        raise BadRowError(f"iscrowd is {brief(crowd)}, must be 0 or 1")

    area = w * h
    if _is_area(entry.get("area")):
        area = float(entry["area"])
    return LabelRow(class_index, (x, y, w, h), area, bool(crowd), None, number)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_coordinate(value: Any) -> bool:
    return _is_number(value) and abs(value) < MAX_PIXELS  # NaN and infinity fail this too


def _is_area(value: Any) -> bool:
    return _is_number(value) and 0 <= value < MAX_PIXELS**2


def _note_area(entry: dict[str, Any], row: LabelRow, where: str, problems: list[Problem]) -> None:
    """Add a note if the area of an annotation cannot be used."""
    area = entry.get("area")
    if area is not None and not _is_area(area):
        reason = f"area is {brief(area)}, replaced by width x height = {row.area:g}"
        problems.append(Problem(NOTE, where, reason))


def _polygon(
    segmentation: Any, box_xywh: tuple[float, float, float, float]
) -> tuple[np.ndarray | None, str]:
    """Return the only part of a segmentation as float32 [k, 2], or None and why it is invalid.

    The reason is "" if there is no single part: then the annotation has only its box.
    """
    if not isinstance(segmentation, list) or len(segmentation) != 1:
        return None, ""

    # Its numbers x, y, x, y, ...
    try:
        values = np.array(segmentation[0])
    except ValueError:
        return None, "segmentation contains lists of different lengths"
    # strings are rejected too, although NumPy could convert them
    if values.dtype.kind not in "iuf":
        return None, "segmentation contains a value that is not a number"
    is_polygon = values.ndim == 1 and len(values) >= 6 and len(values) % 2 == 0
    if not is_polygon or not (np.abs(values) < MAX_PIXELS).all():
        return None, "segmentation must be x, y of at least 3 points, all finite"
    points = values.reshape(-1, 2)

    # It must have the extent of its bbox.
    x, y, w, h = box_xywh
    extent = np.concatenate([points.min(0), points.max(0)])
    difference = np.abs(extent - (x, y, x + w, y + h)).max()
    pixels, share = POLYGON_SLACK
    if difference > max(pixels, share * max(w, h)):
        spans = np.round(extent, 1).tolist()
        return None, f"segmentation spans {spans}, which differs from its bbox"
    return points.astype(np.float32), ""
