"""WIDER FACE: a text file of images, each with the number of its faces and a row for each."""

import re
from pathlib import Path
from typing import ClassVar

from data.formats.annotations import AnnotatedImage, Annotation, AnnotationFile
from data.formats.listing_reader import ListingReader
from data.formats.tools.fields import Objects
from data.formats.tools.outlines import box_points
from data.images import read_lines
from data.labels import BadRowError
from utils.images.decode import is_image_name
from utils.printable import counted, excerpt, printable

NAME = "face"
COUNT = re.compile(r"[0-9]{1,6}")
ROW = re.compile(r"(-?[0-9]{1,7} +){3}-?[0-9]{1,7}( +-?[0-9]{1,7}){0,6}\s*")
INVALID = 7  # the place of the value that is 1 for a face that is not used


class WiderFace(ListingReader):
    """Reads `wider_face_train_bbx_gt.txt` and the like."""

    title: ClassVar[str] = "WIDER FACE"
    suffixes: ClassVar[frozenset[str]] = frozenset({".txt"})

    def begins_with(self, start: bytes) -> bool:
        lines = start.decode("utf-8-sig", "replace").splitlines()
        if len(lines) < 3:
            return False
        is_count = COUNT.fullmatch(lines[1].strip()) is not None
        begins_with_name = is_image_name(lines[0].strip()) and is_count
        is_next = is_image_name(lines[2].strip())  # after an image without faces
        return begins_with_name and (is_next or ROW.fullmatch(lines[2]) is not None)

    def read(self, file: Path) -> AnnotationFile:
        images: list[AnnotatedImage] = []
        objects = Objects()  # of the last image
        count: int | None = None  # of its faces; None: it has not been read
        rows = 0  # that were read of it

        for number, line in enumerate(read_lines(file), 1):
            text = line.strip()
            where = f"{printable(file)} line {number}"

            if is_image_name(text):
                if count is not None and rows < count:
                    reason = f"the image has {counted(rows, 'row')}, but says {count}"
                    objects.drop(file, number - 1, reason)

                objects = Objects()
                images.append(
                    AnnotatedImage(text, objects.annotations, objects.problems, number=number)
                )

                count = None
                rows = 0
            elif text and not images:
                raise ValueError(f"{where}: '{excerpt(text)}' is not the name of an image")
            elif text and count is None:
                if not COUNT.fullmatch(text):
                    raise ValueError(f"{where}: '{excerpt(text)}' is not a number of faces")
                count = int(text)
            elif text and count is not None:
                rows += 1
                try:
                    if rows > max(count, 1):  # an image without faces has a row of zeros
                        raise BadRowError(f"is row {rows} of an image that says {count}")
                    objects.annotations += _faces(text, number)
                except BadRowError as error:
                    objects.drop(file, number, error)

        return AnnotationFile(images, (NAME,))


def _faces(text: str, number: int) -> list[Annotation]:
    """Return the face of a row, none for the row of zeros of an image without faces."""
    if not ROW.fullmatch(text):
        raise BadRowError(f"'{excerpt(text)}' is not a row of whole numbers")
    values = [int(value) for value in text.split()]
    if not any(values[:4]):
        return []
    is_invalid = len(values) > INVALID and values[INVALID] == 1
    return [Annotation(NAME, box_points(*values[:4]), number, crowd=is_invalid)]
