"""CreateML: a JSON list of images; boxes are centre, width and height in pixels."""

import re
from pathlib import Path
from typing import Any, ClassVar

from data.formats.annotations import AnnotatedImage, Annotation, AnnotationFile
from data.formats.json_files import brief, read_json
from data.formats.listing_reader import ListingReader
from data.formats.tools.fields import (
    in_list,
    list_of,
    numbers_of,
    object_of,
    read_images,
    read_objects,
    text_of,
    with_objects,
)
from data.formats.tools.outlines import box_points
from data.labels import BadRowError

IMAGE_KEYS = ("image", "imagefilename")
OBJECT_KEYS = ("annotations", "annotation")
# an image without objects, which may be the first one
EMPTY_IMAGE = re.compile(rb'\[\s*\{\s*"image(?:filename)?"\s*:\s*"[^"]*"\s*,\s*"annotations?"')


class CreateMl(ListingReader):
    """Reads `_annotations.createml.json` and the like."""

    title: ClassVar[str] = "CreateML JSON"
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def begins_with(self, start: bytes) -> bool:
        text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
        has_boxes = (
            b'"coordinates"' in text and re.search(rb'"(image|annotation)', text) is not None
        )
        return text.startswith(b"[") and (has_boxes or EMPTY_IMAGE.match(text) is not None)

    def read(self, file: Path) -> AnnotationFile:
        def read(entry: Any, place: str) -> AnnotatedImage:
            fields = object_of(entry, "the entry")
            image = AnnotatedImage(text_of(fields, _only_key(fields, IMAGE_KEYS)))
            key = _only_key(fields, OBJECT_KEYS)
            objects = list_of(fields[key], f"'{key}'")
            return with_objects(image, read_objects(objects, _annotation, file, f"{place}.{key}"))

        images, problems = read_images(in_list(read_json(file)), read, file)
        return AnnotationFile(images, problems=problems)


def _only_key(fields: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return the key of a pair that an object has. Raises BadRowError if it has none."""
    for key in keys:
        if key in fields:
            return key
    raise BadRowError(f"it has no '{keys[0]}', only {brief([*fields])}")


def _annotation(entry: Any, place: str) -> list[Annotation]:
    fields = object_of(entry, "the entry")
    box = object_of(fields.get("coordinates"), "'coordinates'")
    x, y, width, height = numbers_of(box, "x", "y", "width", "height")
    corners = box_points(x - width / 2, y - height / 2, width, height)
    return [Annotation(text_of(fields, "label"), corners, place)]
