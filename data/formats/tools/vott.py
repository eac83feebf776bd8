"""VoTT: a JSON of assets with regions, boxes and polygons in pixels. Its CSV: see csv_boxes.py."""

from pathlib import Path
from typing import Any, ClassVar

from data.formats.annotations import BOX, POLYGON, AnnotatedImage, Annotation, AnnotationFile
from data.formats.json_files import brief, read_json
from data.formats.listing_reader import ListingReader
from data.formats.tools.fields import (
    in_object,
    list_of,
    names_of,
    numbers_of,
    object_of,
    read_images,
    read_objects,
    size_of,
    text_of,
    texts_of,
    with_objects,
)
from data.formats.tools.outlines import Point, box_points
from data.labels import BadRowError

BOXES = ("RECTANGLE", "SQUARE")
OUTLINES = ("POLYGON", "POLYLINE")


class Vott(ListingReader):
    """Reads `*-export.json`."""

    title: ClassVar[str] = "VoTT JSON"
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def begins_with(self, start: bytes) -> bool:
        return b'"assets"' in start or (b'"videoSettings"' in start and b'"tags"' in start)

    def read(self, file: Path) -> AnnotationFile:
        def read(entry: Any, place: str) -> AnnotatedImage:
            fields = object_of(entry, "the entry")
            asset = object_of(fields.get("asset"), "'asset'")
            size = object_of(asset.get("size", {}), "'size'")
            declared = size_of(size.get("width"), size.get("height"))
            name = text_of(asset, "name" if "name" in asset else "path")
            regions = list_of(fields.get("regions", []), "'regions'")
            objects = read_objects(regions, _annotations, file, f"{place}.regions")
            return with_objects(AnnotatedImage(name, declared_size=declared), objects)

        document = object_of(read_json(file), "the document")
        assets = object_of(document.get("assets"), "'assets'")
        images, problems = read_images(in_object(assets, "assets"), read, file)
        return AnnotationFile(images, _names(document), problems)


def _names(document: dict[str, Any]) -> tuple[str, ...] | None:
    """Return the names of the project's tags, None if it has none. Raises BadRowError."""
    tags = list_of(document.get("tags", []), "'tags'")
    return names_of(tags, "name", "tags") or None


def _annotations(entry: Any, place: str) -> list[Annotation]:
    """Return the objects of a region: one for each of its tags."""
    fields = object_of(entry, "the region")
    tags = texts_of(fields, "tags")
    points, shape = _outline(fields)
    return [Annotation(tag, points, place, shape) for tag in tags]


def _outline(fields: dict[str, Any]) -> tuple[list[Point], str]:
    """Return the points of a region, and its shape. Raises BadRowError."""
    if fields.get("type") in BOXES:
        box = object_of(fields.get("boundingBox"), "'boundingBox'")
        return box_points(*numbers_of(box, "left", "top", "width", "height")), BOX
    if fields.get("type") not in OUTLINES:
        allowed = ", ".join((*BOXES, *OUTLINES))
        raise BadRowError(f"'type' is {brief(fields.get('type'))}, boxes are made of {allowed}")

    points = []
    for point in list_of(fields.get("points"), "'points'"):
        x, y = numbers_of(object_of(point, "a point"), "x", "y")
        points.append((x, y))
    return points, POLYGON
