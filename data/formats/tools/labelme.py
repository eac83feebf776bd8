"""LabelMe: a JSON file beside each image, with shapes in pixels."""

import os
from math import hypot
from pathlib import Path
from typing import Any, ClassVar

from data.formats.annotations import (
    BOX,
    ELLIPSE,
    KEYPOINTS,
    MASK,
    POLYGON,
    ROTATED_BOX,
    AnnotatedImage,
    Annotation,
)
from data.formats.base import ClassNames
from data.formats.file_reader import FileReader
from data.formats.json_files import brief, parse_json
from data.formats.name_lists import names_in_lines
from data.formats.tools.fields import (
    list_of,
    object_of,
    points_of,
    read_objects,
    size_of,
    text_of,
    with_objects,
)
from data.formats.tools.outlines import ellipse_points
from data.labels import BadRowError

SHAPES = {
    "rectangle": BOX,
    "polygon": POLYGON,
    "line": POLYGON,
    "linestrip": POLYGON,
    "rotation": ROTATED_BOX,  # of X-AnyLabeling, with four corners
    "circle": ELLIPSE,
    "mask": MASK,
    "points": KEYPOINTS,
}


LABELS_FILE = "labels.txt"  # that users give LabelMe as --labels
NOT_CLASSES = ("__ignore__", "_background_")  # which its scripts want in this file
# folders beside that of the images, in which users keep the JSON files
LABEL_FOLDERS = ("json", "jsons", "labels", "annotations", "Annotations", "labelme")


class LabelMe(FileReader):
    """Reads folders with `x.json` beside `x.jpg`, or in a folder beside that of the images.

    The latter if no image has labels of another format (data/formats/file_reader.py).
    """

    title: ClassVar[str] = "LabelMe JSON"
    suffixes: ClassVar[frozenset[str]] = frozenset({".json"})

    def label_path(self, image: str) -> str:
        return f"{os.path.splitext(image)[0]}.json"

    def path_in_neighbor(self, image: str) -> str:
        beside = self.label_path(image)
        folder, name = os.path.split(beside)
        for label_folder in LABEL_FOLDERS:
            path = os.path.join(os.path.dirname(folder), label_folder, name)
            if os.path.lexists(path):
                return path
        return beside

    def class_names(self, source: Path) -> ClassNames:
        """Return the classes of labels.txt if it has all that are in use, or else these, sorted."""
        in_use = super().class_names(source)
        for folder in (source, source.parent):
            file = folder / LABELS_FILE
            if file.is_file():
                listed = names_in_lines(file)
                names = tuple(name for name in listed.names if name not in NOT_CLASSES)
                if set(in_use.names) <= set(names):
                    return ClassNames(names, str(file))
        return in_use

    def begins_with(self, start: bytes) -> bool:
        keys = (b'"shapes"', b'"imagePath"', b'"imageData"')  # the order differs by version
        return start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and any(
            key in start for key in keys
        )

    def read(self, data: bytes, file: str) -> AnnotatedImage:
        document = object_of(parse_json(data, file), "the document")
        image = AnnotatedImage(
            os.path.basename(file),
            declared_size=size_of(document.get("imageWidth"), document.get("imageHeight")),
        )
        shapes = list_of(document.get("shapes"), "'shapes'")
        return with_objects(image, read_objects(shapes, _annotation, file, "shapes"))


def _annotation(entry: Any, place: str) -> list[Annotation]:
    fields = object_of(entry, "the shape")
    kind = fields.get("shape_type") or "polygon"  # absent from old files
    if not isinstance(kind, str) or kind not in SHAPES:
        allowed = ", ".join(SHAPES)
        raise BadRowError(f"shape_type is {brief(kind)}, boxes are made of {allowed}")

    points = points_of(fields.get("points"), "'points'")
    if kind == "circle":
        if len(points) != 2:
            raise BadRowError(f"a circle has {len(points)} points, must have two: center, outline")
        center, on_circle = points
        radius = hypot(on_circle[0] - center[0], on_circle[1] - center[1])
        points = ellipse_points(center, radius, radius)
    elif kind == "mask" and len(points) == 2:  # its first and its last pixel
        first, last = points
        points = [first, (last[0] + 1, last[1] + 1)]
    return [Annotation(text_of(fields, "label"), points, place, SHAPES[kind])]
