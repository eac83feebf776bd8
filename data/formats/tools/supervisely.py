"""Supervisely: `ann/x.jpg.json` for each image `img/x.jpg`; meta.json names the classes.

Corners of rectangles are pixels, the last ones included.
Source: docs.supervisely.com, Supervisely annotation JSON format.
"""

import math
import os
from pathlib import Path
from typing import Any, ClassVar

from data.formats.annotations import (
    BOX,
    KEYPOINTS,
    MASK,
    POLYGON,
    AnnotatedImage,
    Annotation,
)
from data.formats.base import ClassNames
from data.formats.file_reader import FileReader
from data.formats.json_files import brief, parse_json, read_json
from data.formats.tools.fields import (
    list_of,
    names_of,
    object_of,
    points_of,
    read_objects,
    size_of,
    text_of,
    with_objects,
)
from data.formats.tools.outlines import Point, box_points
from data.formats.tools.painted_masks import bitmap_size
from data.labels import BadRowError
from utils.printable import printable

SHAPES = {"rectangle": BOX, "polygon": POLYGON, "line": POLYGON, "bitmap": MASK, "graph": KEYPOINTS}


IMAGES = "img"
ANNOTATIONS = "ann"


class Supervisely(FileReader):
    """Reads folders `img` beside a folder `ann`; the images may be in a folder of another name."""

    title: ClassVar[str] = "Supervisely"
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def label_path(self, image: str) -> str:
        folder, name = os.path.split(image)
        parent, images = os.path.split(folder)
        if images != IMAGES:
            return f"{image}.json"
        return os.path.join(parent, ANNOTATIONS, f"{name}.json")

    def path_in_neighbor(self, image: str) -> str:
        folder, name = os.path.split(image)
        return os.path.join(os.path.dirname(folder), ANNOTATIONS, f"{name}.json")

    def begins_with(self, start: bytes) -> bool:
        return b'"objects"' in start or b'"size"' in start

    def class_names(self, source: Path) -> ClassNames:
        for folder in (source, *source.parents[:2]):
            meta = folder / "meta.json"
            if meta.is_file():
                return ClassNames(_names(meta), str(meta))
        return super().class_names(source)

    def read(self, data: bytes, file: str) -> AnnotatedImage:
        document = object_of(parse_json(data, file), "the document")
        size = object_of(document.get("size", {}), "'size'")
        image = AnnotatedImage(
            os.path.basename(file).removesuffix(".json"),
            declared_size=size_of(size.get("width"), size.get("height")),
        )
        objects = list_of(document.get("objects"), "'objects'")
        most = image.declared_size or (math.inf, math.inf)

        def read(entry: Any, place: str) -> list[Annotation]:
            return [_annotation(entry, place, most)]

        return with_objects(image, read_objects(objects, read, file, "objects"))


def _names(meta: Path) -> tuple[str, ...]:
    """Return the classes of meta.json. Raises ValueError with its path."""
    try:
        document = object_of(read_json(meta), "the document")
        classes = list_of(document.get("classes"), "'classes'")
        return names_of(classes, "title", "classes")
    except BadRowError as error:
        raise ValueError(f"{printable(meta)}: {error}") from None


def _annotation(entry: Any, place: str, most: Point) -> Annotation:
    """Return an object. most: the largest x and y. Raises BadRowError."""
    fields = object_of(entry, "the object")
    name = text_of(fields, "classTitle")
    kind = fields.get("geometryType", "rectangle")
    if not isinstance(kind, str) or kind not in SHAPES:
        raise BadRowError(f"geometryType is {brief(kind)}, boxes are made of {', '.join(SHAPES)}")

    if kind == "bitmap":
        bitmap = object_of(fields.get("bitmap"), "'bitmap'")
        (corner,) = points_of([bitmap.get("origin")], "'origin'")
        return Annotation(
            name, box_points(*corner, *bitmap_size(text_of(bitmap, "data"))), place, MASK
        )
    if kind == "graph":
        nodes = object_of(fields.get("nodes"), "'nodes'").values()
        corners = [points_of([object_of(node, "a node").get("loc")], "'loc'")[0] for node in nodes]
        return Annotation(name, corners, place, KEYPOINTS)

    outline = object_of(fields.get("points"), "'points'")
    points = points_of(outline.get("exterior"), "'exterior'")
    if kind == "rectangle" and len(points) == 2:
        (x1, y1), (x2, y2) = points
        left, right = sorted((x1, x2))
        top, bottom = sorted((y1, y2))
        points = [(left, top), (min(right + 1, most[0]), min(bottom + 1, most[1]))]
    return Annotation(name, points, place, SHAPES[kind])
