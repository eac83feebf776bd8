"""What is written of images and their boxes, and the interface of the writers of label formats."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from data.formats.writers.xml_text import require_xml_names
from utils.printable import excerpt

PIXEL_DIGITS = 6  # decimal places of a coordinate in pixels
FRACTION_DIGITS = 9  # of a coordinate as a fraction: 1e-5 pixels of an image of 10,000

# What a format cannot hold, for the sentence that lists it.
IGNORE_REGIONS = "ignore region"
POLYGONS = "polygon"
OUT_OF_BOUNDS = "out-of-bounds box"  # a box of which a part is outside the image

SLACK = 1e-3  # pixels between a polygon's extent and its box, if it stands for the box


class WrittenBox(NamedTuple):
    """An object to be written, in pixels of the upright image."""

    class_index: int
    box_xywh: tuple[float, float, float, float]  # left, top, width, height
    outline: Sequence[tuple[float, float]] = ()  # a polygon
    area: float = 0.0  # of the object itself, which may be smaller than its box
    crowd: bool = False  # a region to ignore
    score: float | None = None  # in [0, 1], of a detection


class WrittenImage(NamedTuple):
    """An image to be written.

    path: of its file. name: of the file that is written, a relative path with slashes; no other
    image has it, nor the same without its suffix.
    """

    path: str
    name: str
    size: tuple[int, int]  # width, height of the upright image
    boxes: Sequence[WrittenBox]
    split: str = ""  # train, val or test; "" for none
    is_detected: bool = False  # whether the boxes, or that there are none, are of a model

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return os.path.splitext(self.name)[0]


class LabelWriter(ABC):
    """Writes one data set in one format. Use it for one thread.

    title: of the format, for the log.
    cannot_hold: what the format has no place for; `lost` counts it.
    has_both: whether an object has a box and a polygon, whose extent may be another one. Other
        formats have one of the two.
    has_any_name: whether a class name may have line breaks, and spaces at its ends. Other formats
        have names in lists of lines, or readers strip them.
    is_xml: whether class names are written as XML, which cannot hold all of them.
    """

    title: ClassVar[str]
    cannot_hold: ClassVar[frozenset[str]] = frozenset()
    has_both: ClassVar[bool] = False
    has_any_name: ClassVar[bool] = False
    is_xml: ClassVar[bool] = False

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Begin in an existing folder. names: of the classes.

        Raises ValueError if the format cannot hold a name.
        """
        if not self.has_any_name:
            _require_lines(names, self.title)
        if self.is_xml:
            require_xml_names(names)
        self.folder = folder
        self.names = list(names)
        self.boxes = 0  # written so far
        self.lost = Counter[str]()
        self.splits: set[str] = set()  # of the images so far

    def image_place(self, name: str, split: str) -> str:
        """Return where the image of this name belongs: a path below the folder, with slashes."""
        return join("images", split, name)

    def add(self, image: WrittenImage) -> None:
        """Write the labels of one image."""
        self.splits.add(image.split)
        boxes = []
        for box in image.boxes:
            if box.crowd and IGNORE_REGIONS in self.cannot_hold:
                self.lost[IGNORE_REGIONS] += 1
                continue
            if box.outline and not self._has_place_for_outline(box):
                self.lost[POLYGONS] += 1
                box = box._replace(outline=())
            if OUT_OF_BOUNDS in self.cannot_hold:
                clipped = clip(box, image.size)
                if _difference(clipped.box_xywh, box.box_xywh) > SLACK:
                    self.lost[OUT_OF_BOUNDS] += 1
                box = clipped
            boxes.append(box)
        self.boxes += len(boxes)
        self.write(image._replace(boxes=boxes))

    def _has_place_for_outline(self, box: WrittenBox) -> bool:
        if POLYGONS in self.cannot_hold:
            return False
        return self.has_both or _difference(_extent(box.outline), box.box_xywh) <= SLACK

    @abstractmethod
    def write(self, image: WrittenImage) -> None:
        """Write the labels of one image, of which the format can hold everything."""

    @abstractmethod
    def close(self) -> None:
        """Write what belongs to the whole data set, and close open files."""

    def write_file(self, place: str, text: str) -> None:
        """Write a text file below the folder."""
        file = self.folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", errors="surrogateescape", newline="\n")


@dataclass
class OpenFile:
    """A file below the folder that is written piece by piece, entries separated by commas."""

    path: Path
    entries: int = 0

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.path.open("w", encoding="utf-8", newline="\n")

    def write(self, text: str) -> None:
        self._stream.write(text)

    def add(self, text: str) -> None:
        """Write an entry of a JSON list."""
        self._stream.write(f",\n{text}" if self.entries else f"\n{text}")
        self.entries += 1

    def close(self) -> None:
        self._stream.close()


class ListingWriter(LabelWriter):
    """Writes one file for each split, which lists its images with their labels."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__(folder, names)
        self.files: dict[str, OpenFile] = {}

    @abstractmethod
    def begun(self, split: str) -> OpenFile:
        """Return the file of a split, with what comes before the first image."""

    def file_of(self, split: str) -> OpenFile:
        """Return the file of a split, which is begun with its first image."""
        if split not in self.files:
            self.files[split] = self.begun(split)
        return self.files[split]


def _require_lines(names: Iterable[str], title: str) -> None:
    """Raise ValueError for a name that a reader of lines would not read as it is."""
    for name in names:
        stripped = name.strip().lstrip("\ufeff")
        if name != stripped or "\n" in name or "\r" in name:
            raise ValueError(
                f"{title} cannot hold the class '{excerpt(name)}', which is not one line without "
                "spaces at its ends: rename it, or choose coco"
            )


def clip(box: WrittenBox, size: tuple[int, int]) -> WrittenBox:
    """Return the part of a box inside an image of this width and height; the box itself if all is.

    >>> clip(WrittenBox(0, (-10, 70, 30, 20)), (100, 80)).box_xywh
    (0, 70, 20, 10)
    """
    left, top, box_width, box_height = box.box_xywh
    width, height = size
    right = min(left + box_width, width)
    bottom = min(top + box_height, height)
    x = max(left, 0)
    y = max(top, 0)
    if (x, y) == (left, top) and right == left + box_width and bottom == top + box_height:
        return box
    outline = [(min(max(px, 0), width), min(max(py, 0), height)) for px, py in box.outline]
    return box._replace(box_xywh=(x, y, right - x, bottom - y), outline=outline)


def _extent(outline: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Return left, top, width and height of a polygon."""
    columns = [x for x, _ in outline]
    rows = [y for _, y in outline]
    left = min(columns)
    top = min(rows)
    return left, top, max(columns) - left, max(rows) - top


def _difference(first_xywh: Sequence[float], second_xywh: Sequence[float]) -> float:
    """Return by how many pixels two boxes differ, at the side where they differ most."""
    corners = []
    for left, top, width, height in (first_xywh, second_xywh):
        corners.append((left, top, left + width, top + height))
    return max(abs(one - other) for one, other in zip(*corners, strict=True))


def join(*parts: str) -> str:
    """Return a path of the parts that are not empty.

    >>> join("images", "", "a.jpg")
    'images/a.jpg'
    """
    return "/".join(part for part in parts if part)


def file_of_split(stem: str, split: str, suffix: str) -> str:
    """Return the name of a file that has the labels of a split.

    >>> file_of_split("tasks", "val", ".json"), file_of_split("tasks", "", ".json")
    ('tasks_val.json', 'tasks.json')
    """
    return f"{stem}_{split}{suffix}" if split else f"{stem}{suffix}"


def pixels(value: float) -> str:
    """Return a coordinate as text, with no more digits than it needs.

    >>> pixels(10.0), pixels(1 / 3)
    ('10', '0.333333')
    """
    return _plain(value, PIXEL_DIGITS)


def fraction(value: float) -> str:
    """Return a fraction of an image's side as text.

    >>> fraction(0.5), fraction(1 / 3)
    ('0.5', '0.333333333')
    """
    return _plain(value, FRACTION_DIGITS)


def _plain(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def rounded(values: Iterable[float], digits: int = PIXEL_DIGITS) -> list[float]:
    """Return numbers for JSON, with no more digits than they need."""
    return [round(value, digits) for value in values]
