"""DOTA, and YOLOv5 OBB: `x1 y1 x2 y2 x3 y3 x4 y4 class difficulty` in pixels, in `labelTxt/`."""

import os
import re
from typing import ClassVar

from data.formats.annotations import ROTATED_BOX, AnnotatedImage, Annotation
from data.formats.file_reader import FileReader
from data.formats.text.encoding import utf_8_text
from data.labels import BadRowError
from data.report import ROW_DROPPED, Problem
from utils.printable import excerpt, printable

FOLDERS = ("images", "labelTxt")
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
HEADERS = ("imagesource:", "gsd:")  # lines at the start of DOTA's files


class Dota(FileReader):
    """Reads folders `images` beside a folder `labelTxt`, and label files beside the images."""

    title: ClassVar[str] = "DOTA, oriented boxes"
    suffixes: ClassVar[frozenset[str]] = frozenset({".txt"})

    def label_path(self, image: str) -> str:
        stem = os.path.splitext(image)[0]
        images, labels = (f"{os.sep}{name}{os.sep}" for name in FOLDERS)
        before, separator, after = stem.rpartition(images)
        return f"{before}{labels}{after}.txt" if separator else f"{stem}.txt"

    def begins_with(self, start: bytes) -> bool:
        for line in start.decode("utf-8-sig", "replace").splitlines():
            if line.strip() and not line.startswith(HEADERS):
                return _is_row(line.split())
        return False

    def read(self, data: bytes, file: str) -> AnnotatedImage:
        objects = []
        problems = []
        for number, line in enumerate(utf_8_text(data, file).splitlines(), 1):
            if not line.strip() or line.startswith(HEADERS):
                continue
            try:
                objects.append(_annotation(line.strip(), number))
            except BadRowError as error:
                where = f"{printable(file)} line {number}"
                problems.append(Problem(ROW_DROPPED, where, str(error)))
        return AnnotatedImage(os.path.basename(file), objects, problems)


def _is_row(tokens: list[str]) -> bool:
    """Whether the values of a row are DOTA's, and not YOLO's polygon or pose, in fractions.

    >>> _is_row("1 1 1 5 5 5 5 1 small plane 0".split())
    True
    >>> _is_row("0 0.5 0.5 0.1 0.1 0.4 0.4 2 0.6 0.6 2".split())
    False
    """
    if len(tokens) < 9 or not all(map(_is_number, tokens[:8])):
        return False
    is_name = any(not _is_number(token) for token in tokens[8:])
    in_pixels = any(abs(float(token)) > 2 for token in tokens[:8])
    return is_name or (len(tokens) == 10 and in_pixels)


def _is_number(token: str) -> bool:
    return NUMBER.fullmatch(token) is not None


def _annotation(line: str, number: int) -> Annotation:
    """Return the object of a row, whose difficulty does not count and may be absent."""
    tokens = line.split()
    if len(tokens) < 9 or not all(map(_is_number, tokens[:8])):
        raise BadRowError(f"'{excerpt(line, 60)}' is not a row x1 y1 ... x4 y4 class difficulty")
    values = [float(token) for token in tokens[:8]]
    points = list(zip(values[::2], values[1::2], strict=True))
    name = tokens[8:-1] if len(tokens) > 9 and tokens[-1].isdecimal() else tokens[8:]
    return Annotation(" ".join(name), points, number, ROTATED_BOX)
