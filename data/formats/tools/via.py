"""VGG Image Annotator (VIA): JSON of version 1 and 2, whole projects too, and its CSV."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from data.formats.annotations import (
    BOX,
    ELLIPSE,
    POLYGON,
    AnnotatedImage,
    Annotation,
    AnnotationFile,
)
from data.formats.json_files import brief, read_json
from data.formats.listing_reader import ListingReader
from data.formats.tools.csv_rows import CsvRow, ImagesOfRows, first_row, read_csv
from data.formats.tools.fields import (
    Objects,
    in_object,
    is_text,
    list_of,
    numbers_of,
    object_of,
    points_of,
    read_images,
    read_objects,
    text_of,
    with_objects,
)
from data.formats.tools.outlines import Point, box_points, ellipse_points
from data.labels import BadRowError
from utils.printable import excerpt, printable

SHAPES = b'"shape_attributes"'
COLUMNS = ("filename", "region_shape_attributes", "region_attributes")
# the attribute that names the class, if a region has several
CLASS_KEYS = ("class", "label", "type", "name", "category", "object")
DEFAULT_CLASS = "object"  # of regions without attributes


class ViaJson(ListingReader):
    """Reads annotations (`via_region_data.json`, `via_export_json.json`) and projects."""

    title: ClassVar[str] = "VGG Image Annotator JSON"
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def begins_with(self, start: bytes) -> bool:
        words = (b'"_via_', SHAPES, b'"file_attributes"', b'"base64_img_data"')
        is_object = start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        return is_object and any(word in start for word in words)

    def read(self, file: Path) -> AnnotationFile:
        document = object_of(read_json(file), "the document")
        is_project = "_via_img_metadata" in document
        where = "_via_img_metadata" if is_project else ""
        entries = object_of(document[where], f"'{where}'") if is_project else document
        class_key = _class_key(
            _attributes(region) for entry in entries.values() for region in _regions(entry)
        )

        def read_region(entry: Any, place: str) -> list[Annotation]:
            region = object_of(entry, "the region")
            shape = object_of(region.get("shape_attributes"), "'shape_attributes'")
            return [_annotation(shape, _attributes(region), class_key, place)]

        def read(entry: Any, place: str) -> AnnotatedImage:
            fields = object_of(entry, "the entry")
            image = AnnotatedImage(text_of(fields, "filename"))
            if not isinstance(fields.get("regions", []), (list, dict)):
                raise BadRowError(f"'regions' is {brief(fields['regions'])}, must be a list")
            regions = _regions(fields)
            return with_objects(image, read_objects(regions, read_region, file, f"{place}.regions"))

        images, problems = read_images(in_object(entries, where), read, file)
        return AnnotationFile(images, problems=problems)


class ViaCsv(ListingReader):
    """Reads `via_export_csv.csv`."""

    title: ClassVar[str] = "VGG Image Annotator CSV"
    suffixes: ClassVar[frozenset[str]] = frozenset({".csv"})

    def begins_with(self, start: bytes) -> bool:
        header = [name.lstrip("#") for name in first_row(start).values]
        return all(column in header for column in COLUMNS)

    def read(self, file: Path) -> AnnotationFile:
        rows = read_csv(file)
        header = next(rows, CsvRow(1, [])).values
        position = {name.lstrip("#"): index for index, name in enumerate(header)}
        for column in COLUMNS:
            if column not in position:
                raise ValueError(f"{printable(file)} line 1: has no column '{column}'")

        # The regions of each image; a row without a shape is an image without objects.
        named = ImagesOfRows(file, position["filename"])
        regions: list[_CsvRegion] = []
        for row in rows:
            objects = named.objects_of(row)
            if objects is None:
                continue
            try:
                shape, attributes = (
                    _json_object(row.value(position[column]), column) for column in COLUMNS[1:]
                )
            except BadRowError as error:
                objects.drop(file, row.line, error)
                continue
            if shape:
                regions.append(_CsvRegion(row.line, objects, shape, attributes))

        class_key = _class_key(region.attributes for region in regions)
        for line, objects, shape, attributes in regions:
            try:
                objects.annotations.append(_annotation(shape, attributes, class_key, line))
            except BadRowError as error:
                objects.drop(file, line, error)
        return AnnotationFile([*named.images.values()], problems=named.problems)


class _CsvRegion(NamedTuple):
    line: int
    objects: Objects  # of its image
    shape: dict[str, Any]
    attributes: dict[str, Any]


def _regions(entry: Any) -> list[Any]:
    """Return the regions of an image, [] if it has none."""
    regions = entry.get("regions", []) if isinstance(entry, dict) else []
    if isinstance(regions, dict):  # version 1: {"0": {...}, "1": {...}}
        return list(regions.values())
    return regions if isinstance(regions, list) else []


def _json_object(text: str, column: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise BadRowError(f"{column} is '{excerpt(text)}', must be JSON") from None
    return object_of(value, column)


def _attributes(region: Any) -> dict[str, Any]:
    """Return the attributes of a region, {} for anything else."""
    attributes = region.get("region_attributes") if isinstance(region, dict) else None
    return attributes if isinstance(attributes, dict) else {}


def _class_key(attributes_of_regions: Iterable[Mapping[str, Any]]) -> str:
    """Return the attribute that names the class: the only one, or the first of CLASS_KEYS.

    "" if there is none. Raises BadRowError if several might.

    >>> _class_key([{"type": "cat"}, {}]), _class_key([{"Label": "cat", "blurred": "no"}])
    ('type', 'Label')
    """
    keys = list(dict.fromkeys(key for attributes in attributes_of_regions for key in attributes))
    if len(keys) < 2:
        return keys[0] if keys else ""
    for wanted in CLASS_KEYS:
        for key in keys:
            if key.lower() == wanted:
                return key
    shown = excerpt(", ".join(keys), 200)
    raise BadRowError(f"regions have the attributes {shown}: name the one with the class 'class'")


def _class_name(attributes: Mapping[str, Any], class_key: str) -> str:
    if not class_key:
        return DEFAULT_CLASS
    value = attributes.get(class_key)
    if isinstance(value, dict):  # a checkbox: {"cat": true}
        chosen = [name for name, is_chosen in value.items() if is_chosen]
        if len(chosen) > 1:
            both = excerpt(", ".join(chosen))
            raise BadRowError(f"attribute '{excerpt(class_key)}' has several classes: {both}")
        value = chosen[0] if chosen else None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip() or not is_text(value):
        shown = excerpt(class_key)
        raise BadRowError(f"attribute '{shown}' is {brief(attributes.get(class_key))}, no class")
    return value.strip()


def _annotation(
    shape: Mapping[str, Any], attributes: Mapping[str, Any], class_key: str, place: int | str
) -> Annotation:
    name = _class_name(attributes, class_key)
    points, kind = _outline(shape)
    return Annotation(name, points, place, kind)


def _outline(shape: Mapping[str, Any]) -> tuple[list[Point], str]:
    """Return the points of a shape, and its kind. Raises BadRowError."""
    kind = shape.get("name")

    if kind == "rect":
        return box_points(*numbers_of(shape, "x", "y", "width", "height")), BOX

    if kind in ("polygon", "polyline"):
        xs = list_of(shape.get("all_points_x"), "'all_points_x'")
        ys = list_of(shape.get("all_points_y"), "'all_points_y'")
        if len(xs) != len(ys):
            raise BadRowError(f"the {kind} has {len(xs)} x and {len(ys)} y")

        pairs = [[x, y] for x, y in zip(xs, ys, strict=True)]
        return points_of(pairs, "its outline"), POLYGON

    if kind == "circle":
        x, y, radius = numbers_of(shape, "cx", "cy", "r")
        return ellipse_points((x, y), radius, radius), ELLIPSE

    if kind == "ellipse":
        x, y, radius_x, radius_y = numbers_of(shape, "cx", "cy", "rx", "ry")
        (angle,) = numbers_of({"theta": 0.0, **shape}, "theta")  # radians
        return ellipse_points((x, y), radius_x, radius_y, angle), ELLIPSE

    if kind == "point":
        raise BadRowError("a point has no area")
    raise BadRowError(f"shape {brief(kind)} is none of rect, polygon, polyline, circle, ellipse")
