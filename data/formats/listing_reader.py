"""What readers have in common whose file lists images together with their objects."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from data.formats.annotations import (
    AnnotatedImage,
    AnnotationFile,
    class_indices,
    label_rows,
    place,
    rows_in_image,
)
from data.formats.base import ClassNames, ImageRows, ListedImage, SourceImages, shown_names
from data.formats.image_finder import AmbiguousImageError, ImageFinder
from data.formats.resized import boxes_scaled, row_scaled
from data.formats.text.encoding import start_in_utf_8
from data.labels import BadRowError
from data.report import IMAGE_DROPPED, IMAGES_NOT_FOUND, ROW_DROPPED, Problem
from utils.printable import counted, excerpt, printable

START_BYTES = 8192  # of a file, to see what wrote it


class ListingReader(ABC):
    """Reads files of one annotation tool; a subclass says how such a file begins, and reads it."""

    lists_images: ClassVar[bool] = True
    title: ClassVar[str]  # the tool and its format, for the log
    suffixes: ClassVar[frozenset[str]]

    def accepts(self, source: Path) -> bool:
        if source.suffix.lower() not in self.suffixes or not os.path.isfile(source):
            return False
        try:
            with open(source, "rb") as stream:
                start = stream.read(START_BYTES)
        except OSError:
            return False
        return self.begins_with(start_in_utf_8(start))

    @abstractmethod
    def begins_with(self, start: bytes) -> bool:
        """Whether a file of this format may begin with these bytes, in UTF-8."""

    @abstractmethod
    def read(self, file: Path) -> AnnotationFile:
        """Return the contents of a file.

        Raises ValueError with its path, or BadRowError without, if it cannot be used.
        """

    def contents(self, source: Path) -> AnnotationFile:
        """Return the contents of a file. Raises ValueError with its path if it cannot be used."""
        try:
            return self.read(source)
        except BadRowError as error:
            raise ValueError(f"{printable(source)}: {error}") from None

    def class_names(self, source: Path) -> ClassNames:
        return self.contents(source).class_names(source)

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        contents = self.contents(source)
        _require_order(contents, names, source)
        indices = class_indices(names)
        found = _find_images(contents.images, source)
        listed: list[ListedImage] = []
        for path, image in found.images:
            rows = label_rows(image.annotations, indices, printable(source))
            of_image = [*image.problems, *rows.problems]
            listed.append(_listed(image, path, source, len(listed) + 1, rows, of_image))
        return SourceImages(listed, [*contents.problems, *found.problems])

    def rows(self, image: ListedImage, size: tuple[int, int], _: Sequence[str]) -> ImageRows:
        rows, boxes = image.rows, image.boxes
        if image.normalized:
            rows = [row_scaled(row, *size) for row in rows]
            boxes = boxes_scaled(boxes, size)
        kept, problems = rows_in_image(rows, size, printable(image.label_file))
        return ImageRows(kept, problems, converted=image.converted, boxes=boxes)


def _require_order(contents: AnnotationFile, names: Sequence[str], source: Path) -> None:
    """Raise ValueError if boxes have class numbers, and the tool's list has another order."""
    listed = contents.names
    if listed is None or listed == tuple(names):
        return
    for image in contents.images:
        for annotation in image.annotations:
            number = annotation.class_name
            if number.isdecimal() and number not in names and number not in listed:
                first, second = map(shown_names, (listed, names))
                raise ValueError(
                    f"{printable(source)} {place(annotation.number)}: class {excerpt(number)} is a "
                    f"number, and the tool lists the classes {first}; the data YAML has {second}"
                )


class FoundImages(NamedTuple):
    """The images that a file lists and that exist, each with its path; the problems of others."""

    images: list[tuple[str, AnnotatedImage]]
    problems: list[Problem]


def _find_images(images: Sequence[AnnotatedImage], source: Path) -> FoundImages:
    """Find the images that a file lists.

    Of two entries for one image the first one counts; of two with different names that whose name
    has its folder, or none if neither has.
    """
    finder = ImageFinder(source)
    missing: list[AnnotatedImage] = []
    problems: list[Problem] = []

    # All entries of each image.
    entries_of: dict[str, list[AnnotatedImage]] = {}  # by path
    for image in images:
        try:
            path = _find(finder, image)
        except AmbiguousImageError as error:
            problems.append(_left_out(image, source, str(error)))
            continue
        if path is None:
            missing.append(image)
        else:
            entries_of.setdefault(path, []).append(image)

    # The entry of each image that counts.
    found: list[tuple[str, AnnotatedImage]] = []
    for path, entries in entries_of.items():
        certain = [image for image in entries if not finder.is_doubtful(image.name)]
        missing += [image for image in entries if finder.is_doubtful(image.name)]
        if not certain:
            continue

        first, *others = certain
        names = {image.name for image in certain}
        if len(names) > 1 and all(map(finder.is_elsewhere, names)):
            for image in certain:
                reason = f"and another name may both be {printable(path)}, in none of their folders"
                problems.append(_left_out(image, source, reason))
            continue
        found.append((path, first))
        for image in others:
            reason = f"is the image of {place(first.number)}, which counts"
            problems.append(_left_out(image, source, reason))

    problems += _not_found(source, missing, len(images))
    return FoundImages(found, problems + finder.notes())


def _left_out(image: AnnotatedImage, source: Path, reason: str) -> Problem:
    """Return the problem of an entry; reason: what is said of its name."""
    where = f"{printable(source)} {place(image.number)}"
    return Problem(IMAGE_DROPPED, where, f"'{excerpt(image.name, 200)}' {reason}")


def _find(finder: ImageFinder, image: AnnotatedImage) -> str | None:
    """Return the path of an image; of several with its name, that in the folder of its split.

    Raises AmbiguousImageError if it is none of them.
    """
    try:
        return finder.find(image.name)
    except AmbiguousImageError:
        if not image.split:
            raise
        return finder.find(f"{image.split}/{image.name}")


def _listed(
    image: AnnotatedImage,
    path: str,
    source: Path,
    image_id: int,
    rows: ImageRows,
    problems: Sequence[Problem],
) -> ListedImage:
    dropped = sum(problem.kind == ROW_DROPPED for problem in problems)
    return ListedImage(
        path,
        str(source),
        image_id,
        image.declared_size,
        rows=rows.rows,
        normalized=image.normalized,
        converted=rows.converted,
        dropped_rows=dropped,
        problems=problems,
        split=image.split,
        boxes=rows.boxes,
    )


def _not_found(source: Path, missing: Sequence[AnnotatedImage], total: int) -> list[Problem]:
    """Return the problems of images that a file names and that were not found."""
    if not missing:
        return []
    if len(missing) == total:
        names = ", ".join(f"'{excerpt(image.name, 100)}'" for image in missing[:3])
        images = counted(total, "image")
        reason = f"{images}, none found in this folder or beside it, such as {names}"
        return [Problem(IMAGES_NOT_FOUND, printable(source), reason)]

    problems = []
    for image in missing:
        where = f"{printable(source)} {place(image.number)}"
        reason = f"no image '{excerpt(image.name, 200)}' in this folder"
        problems.append(Problem(IMAGE_DROPPED, where, reason))
    return problems
