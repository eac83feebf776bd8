"""Read COCO JSON (object detection): images, and annotations as label rows."""

import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.formats.base import ImageRows, ListedImage, SourceImages
from data.labels import MIN_BOX_SIDE, BadRowError, LabelRow
from data.report import (
    IMAGE_DROPPED,
    IMAGES_NOT_FOUND,
    NOTE,
    POLYGON_DROPPED,
    ROW_DROPPED,
    ROW_DUPLICATE,
    Problem,
)
from utils.images.decode import read_bytes
from utils.printable import counted, excerpt, printable

MAX_PIXELS = 1e7  # along one side; larger coordinates are invalid
# pixels, and fraction of the side, by which a polygon's extent may differ from its bbox
POLYGON_SLACK = (2.0, 0.02)
SAMPLED_IMAGES = 200  # number of listed images that decide which folder all are in


class CocoImage(NamedTuple):
    """One listed image: its path, its id, and its (width, height) if the JSON has them. The file
    may not exist.
    """

    path: str
    image_id: int
    declared_size: tuple[int, int] | None


class CocoFile(NamedTuple):
    """A COCO JSON: images, the rows of each image, the category id of each class, and the problems.

    dropped_rows: for each image, the number of its annotations that cannot be used.
    """

    images: list[CocoImage]
    rows: list[list[LabelRow]]
    dropped_rows: list[int]
    category_ids: list[int]
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
    defaults to width x height, `iscrowd` to 0). A polygon is kept if it is the annotation's only
    part and has the extent of its bbox; annotations with several parts or RLE keep only their box.
    The folder of the images is the one that `images_root` returns.

    The ids of annotations may repeat, be missing, or be anything, since no box depends on them. An
    annotation with the class, bbox and iscrowd of another one of its image is dropped and reported.
    An image that is listed under two ids has the annotations of both.

    Raises ValueError with the file's path if it is not a COCO JSON, a category in use is not in
    `names`, or an image id in use stands for two files.
    """
    document = _load(file)
    categories = _categories(file, document["categories"])
    problems: list[Problem] = []
    listing = _images(file, document["images"], problems)
    class_of_id = {name: index for index, name in enumerate(names)}
    class_by_category = {
        key: class_of_id[name] for key, name in categories.items() if name in class_of_id
    }
    rows, dropped = _rows(
        file, document["annotations"], listing, categories, class_by_category, problems
    )
    rows = [_without_duplicates(file, image_rows, problems) for image_rows in rows]
    category_ids = _category_ids(class_by_category, categories, len(names))
    return CocoFile(listing.images, rows, dropped, category_ids, problems)


class CocoJson:
    """Reads COCO JSON files as sources of a data set."""

    lists_images = True
    suffixes = frozenset({".json"})

    def accepts(self, source: Path) -> bool:
        return source.suffix.lower() == ".json" and not os.path.isdir(source)

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        file = read_coco_annotations(source, names)
        images = [
            ListedImage(image.path, str(source), image.image_id, image.declared_size, rows, dropped)
            for image, rows, dropped in zip(file.images, file.rows, file.dropped_rows, strict=True)
        ]
        return SourceImages(images, file.problems, file.category_ids)

    def rows(self, image: ListedImage, size: tuple[int, int], _: Sequence[str]) -> ImageRows:
        return ImageRows(*rows_inside(image.rows, size, printable(image.label_file)))


def images_root(file: Path, file_names: Sequence[str]) -> Path:
    """Return the folder that the `file_name`s of a COCO JSON are relative to.

    Candidates are the JSON's folder F, F/images, F/images/S, F/S, F/../images, F/../images/S,
    F/../S, where S is the split: the JSON's name without `instances_` and `.json`. The result is
    the folder that contains most of the first 200 images, or the first of several with the same
    number.
    """
    return max(
        (file.parent / folder for folder in _candidates(file)),
        key=lambda root: _count_found(root, file_names),
    )


def _candidates(file: Path) -> list[str]:
    """Return the folders that `images_root` tries, relative to the JSON's folder."""
    split = file.stem.removeprefix("instances_")
    inside = ["images", f"images/{split}", split]
    return [".", *inside, *(f"../{folder}" for folder in inside)]


def _count_found(root: Path, file_names: Sequence[str]) -> int:
    """Return how many of the first images are in `root`."""
    return sum(os.path.isfile(os.path.join(root, name)) for name in file_names[:SAMPLED_IMAGES])


def rows_inside(
    rows: Sequence[LabelRow], size: tuple[int, int], where: str
) -> tuple[list[LabelRow], list[Problem]]:
    """Return the rows whose box overlaps an image of `size` (width, height), unchanged, also where
    they extend past it.

    The problems list the other rows. where: the file, for these problems.
    """
    width, height = size
    kept, problems = [], []
    for row in rows:
        x, y, w, h = row.box_xywh
        if (
            min(x + w, width) - max(x, 0) >= MIN_BOX_SIDE
            and min(y + h, height) - max(y, 0) >= MIN_BOX_SIDE
        ):
            kept.append(row)
        else:
            reason = f"bbox [{x:g}, {y:g}, {w:g}, {h:g}] is outside its image of {width}x{height}"
            problems.append(Problem(ROW_DROPPED, f"{where} {_place(row.number)}", reason))
    return kept, problems


def _load(file: Path) -> dict[str, list]:
    try:
        document = json.loads(read_bytes(file), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"{printable(file)} line {error.lineno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError(f"{printable(file)}: nested too deeply") from None
    except ValueError as error:
        reason = (
            str(error)
            if printable(file) in str(error)
            else f"{printable(file)}: not JSON: {excerpt(str(error), 200)}"
        )
        raise ValueError(reason) from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(document, dict) or not isinstance(document.get(key), list):
            raise ValueError(f"{printable(file)} is not a COCO JSON: it has no list '{key}'")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError if a key appears twice, because readers disagree on
    its value.
    """
    entries = dict(pairs)
    if len(entries) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(
            f"the object with the id {_brief(entries.get('id'))} has the key '{excerpt(repeated)}' "
            "twice"
        )
    return entries


def _whole_number(value: Any) -> int | None:
    """Return `value` if it is an integer that every JSON reader keeps exactly (7.0 counts as 7),
    otherwise None.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
        else None
    )


def _brief(value: Any) -> str:
    """Return a short text of a JSON value for an error message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        inner = [
            "..." if isinstance(entry, (list, dict)) else excerpt(repr(entry), 20)
            for entry in value[:5]
        ]
        return "[" + ", ".join(inner + ["..."] * (len(value) > 5)) + "]"
    return excerpt(repr(value))


def _categories(file: Path, entries: list) -> dict[int, str]:
    """Return names by category id. Raises ValueError for any error, since it could give every box a
    wrong class.
    """
    categories: dict[int, str] = {}
    seen_names: set[str] = set()
    for position, entry in enumerate(entries):
        key = _whole_number(entry.get("id")) if isinstance(entry, dict) else None
        name = entry.get("name") if isinstance(entry, dict) else None
        where = f"{printable(file)} categories[{position}]"
        if key is None or not isinstance(name, str):
            raise ValueError(f"{where} must have a whole number 'id' and a text 'name'")
        if key in categories or name in seen_names:
            raise ValueError(f"{where}: id {key} or name '{excerpt(name)}' appears twice")
        categories[key] = name
        seen_names.add(name)
    return categories


def _category_ids(
    class_by_category: dict[int, int], categories: dict[int, str], num_classes: int
) -> list[int]:
    ids = {class_index: key for key, class_index in class_by_category.items()}
    unused = max([0, *categories])
    return [ids[index] if index in ids else unused + 1 + index for index in range(num_classes)]


def _images(file: Path, entries: list, problems: list[Problem]) -> ListedImages:
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
    file_names = list(first_ids)
    root = images_root(file, file_names)
    if file_names and not _count_found(root, file_names):
        sampled = min(len(file_names), SAMPLED_IMAGES)
        first = (
            f"{counted(sampled, 'image')} tried, such as {excerpt(file_names[0], 100)}: not found"
        )
        tried = (
            f"folders tried in {printable(file.parent)}: "
            f"{', '.join(map(printable, _candidates(file)))}"
        )
        problems.append(Problem(IMAGES_NOT_FOUND, printable(file), f"{first}; {tried}"))
    images = [
        CocoImage(os.path.abspath(os.path.join(root, name)), key, sizes[key])
        for name, key in first_ids.items()
    ]
    index_of_name = {name: index for index, name in enumerate(first_ids)}
    index_of_id = {image_id: index_of_name[name] for image_id, name in names.items()}
    return ListedImages(images, index_of_id, ambiguous)


def _declared_size(entry: dict[str, Any]) -> tuple[int, int] | None:
    """Return (width, height) of an image entry, None if it has no valid ones."""
    width, height = _whole_number(entry.get("width")), _whole_number(entry.get("height"))
    return (width, height) if width and height and min(width, height) > 0 else None


def _image_entry(entry: Any) -> tuple[int, str]:
    if not isinstance(entry, dict):
        raise BadRowError("not an object")
    image_id, name = _whole_number(entry.get("id")), entry.get("file_name")
    if image_id is None:
        raise BadRowError(f"id is {_brief(entry.get('id'))}, must be a whole number")
    if not isinstance(name, str) or not name:
        raise BadRowError(f"file_name is {_brief(name)}, must be a path")
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
) -> tuple[list[list[LabelRow]], list[int]]:
    """Return the rows of each image, and the number of its annotations that were dropped.

    Raises ValueError if a category in use is not in `names` of the data YAML, or an image id in use
    is that of two files.
    """
    rows: list[list[LabelRow]] = [[] for _ in listing.images]
    dropped = [0] * len(listing.images)
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
            problems.append(Problem(ROW_DROPPED, where, str(error)))
            image_id = _meant_image_id(entry)
            if image_id in listing.index_of_id:
                dropped[listing.index_of_id[image_id]] += 1
            continue
        points, reason = (
            (None, "") if row.crowd else _polygon(entry.get("segmentation"), row.box_xywh)
        )
        if reason:
            problems.append(Problem(POLYGON_DROPPED, where, reason))
        _note_area(entry, row, where, problems)
        rows[index].append(row._replace(points=points))
    return rows, dropped


def _without_duplicates(
    file: Path, rows: list[LabelRow], problems: list[Problem]
) -> list[LabelRow]:
    """Return the rows of an image without exact duplicates, which are reported."""
    first_rows: dict[tuple[Any, ...], LabelRow] = {}
    for row in rows:
        first = first_rows.setdefault((row.class_index, row.crowd, row.box_xywh), row)
        if first is not row:
            same = (
                "another one with this id" if first.number == row.number else _place(first.number)
            )
            where = f"{printable(file)} {_place(row.number)}"
            problems.append(Problem(ROW_DUPLICATE, where, f"the same as {same}"))
    return list(first_rows.values())


def _annotation_number(entry: Any, position: int) -> int | str:
    """Return the id of an annotation, or its place in the file if the id is missing or not a whole
    number.
    """
    number = _whole_number(entry.get("id")) if isinstance(entry, dict) else None
    return f"annotations[{position}]" if number is None else number


def _place(number: int | str) -> str:
    """Return what a message calls an annotation."""
    return number if isinstance(number, str) else f"annotation {number}"


def _meant_image_id(entry: Any) -> int | None:
    """Return the image id that an unusable annotation is about, also if it is written as a text;
    None if unknown.
    """
    image_id = entry.get("image_id") if isinstance(entry, dict) else None
    if isinstance(image_id, str) and re.fullmatch("[0-9]{1,15}", image_id):
        return int(image_id)
    return _whole_number(image_id)


def _image_index(listing: ListedImages, entry: dict[str, Any], where: str) -> int:
    """Return the place of an annotation's image. Raises ValueError if its id is that of two
    files.
    """
    index: int = _look_up(listing.index_of_id, entry.get("image_id"), "image_id", "images")
    image_id = _whole_number(entry.get("image_id"))
    if image_id in listing.ambiguous:
        first, second = (excerpt(name, 100) for name in listing.ambiguous[image_id])
        raise ValueError(
            f"{where}: image_id {image_id} is the id of both '{first}' and '{second}' in 'images'"
        )
    return index


def _look_up(table: dict[int, Any], key: Any, what: str, where: str) -> Any:
    number = _whole_number(key)
    if number is None or number not in table:
        raise BadRowError(f"{what} {_brief(key)} is not among the file's {where}")
    return table[number]


def _row(entry: dict[str, Any], number: int | str, class_index: int) -> LabelRow:
    bbox = entry.get("bbox")
    if (
        not isinstance(bbox, list)
        or len(bbox) != 4
        or not all(_is_coordinate(value) for value in bbox)
    ):
        raise BadRowError(
            f"bbox is {_brief(bbox)}, must be four finite numbers: left, top, width, height"
        )
    x, y, w, h = map(float, bbox)
    if min(w, h) < MIN_BOX_SIDE:
        raise BadRowError(
            f"bbox has width {w:g} and height {h:g}, must be at least {MIN_BOX_SIDE:g}"
        )
    crowd = entry.get("iscrowd", 0)
    if crowd not in (0, 1):
        raise BadRowError(f"iscrowd is {_brief(crowd)}, must be 0 or 1")
    area = float(entry["area"]) if _is_area(entry.get("area")) else w * h
    return LabelRow(class_index, (x, y, w, h), area, bool(crowd), None, number)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_coordinate(value: Any) -> bool:
    return _is_number(value) and abs(value) < MAX_PIXELS  # NaN and infinity fail this too


def _is_area(value: Any) -> bool:
    return _is_number(value) and 0 <= value < MAX_PIXELS**2


def _note_area(entry: dict[str, Any], row: LabelRow, where: str, problems: list[Problem]) -> None:
    area = entry.get("area")
    if area is not None and not _is_area(area):
        problems.append(
            Problem(
                NOTE, where, f"area is {_brief(area)}, replaced by width x height = {row.area:g}"
            )
        )


def _polygon(
    segmentation: Any, box_xywh: tuple[float, float, float, float]
) -> tuple[np.ndarray | None, str]:
    """Return the only part of a segmentation as float32 [k, 2], or None and, if it is invalid, the
    reason.
    """
    if not isinstance(segmentation, list) or len(segmentation) != 1:
        return None, ""
    try:
        values = np.array(segmentation[0])
    except ValueError:
        return None, "segmentation contains lists of different lengths"
    # strings are rejected too, although NumPy could convert them
    if values.dtype.kind not in "iuf":
        return None, "segmentation contains a value that is not a number"
    if (
        values.ndim != 1
        or len(values) < 6
        or len(values) % 2
        or not (np.abs(values) < MAX_PIXELS).all()
    ):
        return None, "segmentation must be x, y of at least 3 points, all finite"
    points = values.reshape(-1, 2)
    x, y, w, h = box_xywh
    extent = np.concatenate([points.min(0), points.max(0)])
    pixels, share = POLYGON_SLACK
    if np.abs(extent - (x, y, x + w, y + h)).max() > max(pixels, share * max(w, h)):
        return (
            None,
            f"segmentation spans {np.round(extent, 1).tolist()}, which differs from its bbox",
        )
    return points.astype(np.float32), ""
