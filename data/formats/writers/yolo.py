"""Write YOLO's label files: `class cx cy w h`, or a polygon, in fractions of the image.

YOLOv5 and Ultralytics read a file with a polygon as a file of polygons, so the boxes in it are
written by their four corners.

The row of a polygon may look like a box with keypoints. Readers tell them apart by all rows of a
split (data/formats/yolo_values.py): rows of keypoints have the same number of values. So of two
polygons in a row that look so one has a corner twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import yaml

from data.dataset_yaml import SPLITS
from data.formats.writers.base import (
    IGNORE_REGIONS,
    OUT_OF_BOUNDS,
    POLYGONS,
    LabelWriter,
    WrittenBox,
    WrittenImage,
    fraction,
    join,
)
from data.formats.yolo_values import may_be_keypoints


@dataclass
class Polygons:
    """The polygons of a split that were written.

    ambiguous: the number of those that may be keypoints. clear: whether another one cannot. first:
    the image of the first that may be.
    """

    ambiguous: int = 0
    clear: bool = False
    last_length: int = 0  # the number of values of the last one that may be
    first: WrittenImage | None = None


class YoloWriter(LabelWriter):
    """Writes `labels/` beside `images/`, and `data.yaml`, or `classes.txt` without splits."""

    title: ClassVar[str] = "YOLO"
    cannot_hold: ClassVar[frozenset[str]] = frozenset({IGNORE_REGIONS, OUT_OF_BOUNDS})

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        self._polygons: dict[str, Polygons] = {}

    def write(self, image: WrittenImage) -> None:
        rows = []
        has_polygons = any(box.outline for box in image.boxes)
        for box in image.boxes:
            values = _polygon(box, image.size) if has_polygons else _box(box, image.size)
            if has_polygons and may_be_keypoints([box.class_index, *values]):
                values = self._distinct(values, image)
            elif has_polygons:
                self._polygons.setdefault(image.split, Polygons()).clear = True
            rows.append(_row(box, values))
        self._write_rows(image, rows)

    def _distinct(self, values: list[float], image: WrittenImage) -> list[float]:
        """Return the values of a polygon that may be keypoints, not as many as the last one has."""
        polygons = self._polygons.setdefault(image.split, Polygons())
        if len(values) == polygons.last_length:
            values = [*values[:2], *values]
        polygons.last_length = len(values)
        polygons.ambiguous += 1
        polygons.first = polygons.first or image
        return values

    def _write_rows(self, image: WrittenImage, rows: list[str]) -> None:
        self.write_file(join("labels", image.split, f"{image.stem}.txt"), "".join(rows))

    def close(self) -> None:
        # The only polygon of a split has no other to differ from: it becomes its box.
        for polygons in self._polygons.values():
            image = polygons.first
            if polygons.ambiguous == 1 and not polygons.clear and image is not None:
                self.lost[POLYGONS] += 1
                self._write_rows(image, [_row(box, _box(box, image.size)) for box in image.boxes])

        if not any(self.splits):
            self.write_file("classes.txt", "".join(f"{name}\n" for name in self.names))
            return
        entries: dict[str, object] = {"path": "."}
        for split in SPLITS:
            if split in self.splits:
                entries[split] = f"images/{split}"
        entries["names"] = dict(enumerate(self.names))
        self.write_file("data.yaml", yaml.safe_dump(entries, sort_keys=False, allow_unicode=True))


def _row(box: WrittenBox, values: list[float]) -> str:
    return f"{box.class_index} {' '.join(map(fraction, values))}\n"


def _polygon(box: WrittenBox, size: tuple[int, int]) -> list[float]:
    """Return the corners of a polygon, or of a box; size: width and height of the image."""
    width, height = size
    left, top, box_width, box_height = box.box_xywh
    right = left + box_width
    bottom = top + box_height
    corners = box.outline or [(left, top), (right, top), (right, bottom), (left, bottom)]
    return [value for x, y in corners for value in (x / width, y / height)]


def _box(box: WrittenBox, size: tuple[int, int]) -> list[float]:
    """Return center and size of a box; size: width and height of the image."""
    width, height = size
    left, top, box_width, box_height = box.box_xywh
    center_x = (left + box_width / 2) / width
    center_y = (top + box_height / 2) / height
    return [center_x, center_y, box_width / width, box_height / height]
