"""Typed values of JSON objects, and the objects of an image read one by one.

Whoever catches a BadRowError adds the file and the place in it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from data.formats.annotations import AnnotatedImage, Annotation
from data.formats.json_files import brief
from data.formats.tools.outlines import Point
from data.labels import BadRowError
from data.report import IMAGE_DROPPED, ROW_DROPPED, Problem
from utils.printable import excerpt, printable


@dataclass
class Objects:
    """The objects of an image while a file is read in which its rows may be anywhere."""

    annotations: list[Annotation] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def drop(self, file: Path, line: int, reason: object) -> None:
        """Add the problem of an object that cannot be used."""
        where = f"{printable(file)} line {line}"
        self.problems.append(Problem(ROW_DROPPED, where, str(reason)))


def object_of(value: Any, what: str) -> dict[str, Any]:
    """Return a JSON object. Raises BadRowError for anything else."""
    if not isinstance(value, dict):
        raise BadRowError(f"{what} is {brief(value)}, must be an object")
    return value


def list_of(value: Any, what: str) -> list[Any]:
    """Return a JSON list. Raises BadRowError for anything else."""
    if not isinstance(value, list):
        raise BadRowError(f"{what} is {brief(value)}, must be a list")
    return value


def text_of(fields: Mapping[str, Any], key: str) -> str:
    """Return a text of an object that is not empty. Raises BadRowError for anything else."""
    value = fields.get(key)
    if not isinstance(value, str) or not value:
        raise BadRowError(f"'{key}' is {brief(value)}, must be a text")
    if not is_text(value):
        raise BadRowError(f"'{key}' is {brief(value)}, which is no text in UTF-8")
    return value


def texts_of(fields: Mapping[str, Any], key: str) -> list[str]:
    """Return the texts of a list in an object, at least one. Raises BadRowError otherwise."""
    values = fields.get(key)
    if not isinstance(values, list) or not values:
        raise BadRowError(f"'{key}' is {brief(values)}, must be a list of texts")
    return [text_of({key: value}, key) for value in values]


def names_of(entries: Iterable[Any], key: str, where: str) -> tuple[str, ...]:
    """Return the text of each object of the list at `where`, each once.

    Raises BadRowError with the place of one that has none.
    """
    names = []
    for index, entry in enumerate(entries):
        try:
            names.append(text_of(object_of(entry, "the entry"), key))
        except BadRowError as error:
            raise BadRowError(f"{where}[{index}]: {error}") from None
    return tuple(dict.fromkeys(names))


def is_text(value: str) -> bool:
    r"""Whether a JSON text can be written as UTF-8: it has no half of a pair such as "\ud800"."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def numbers_of(fields: Mapping[str, Any], *keys: str) -> list[float]:
    """Return finite numbers of an object. Raises BadRowError for anything else."""
    values = []
    for key in keys:
        value = fields.get(key)
        if value is None or not is_number(value):
            raise BadRowError(f"'{key}' is {brief(value)}, must be a number")
        values.append(float(value))
    return values


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        return is_real and isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def points_of(value: Any, what: str) -> list[Point]:
    """Return a JSON list of pairs x, y. Raises BadRowError for anything else."""
    points = []
    for pair in list_of(value, what):
        if not isinstance(pair, list) or len(pair) < 2 or not all(map(is_number, pair[:2])):
            raise BadRowError(f"{what} has {brief(pair)}, must be pairs x, y")
        points.append((float(pair[0]), float(pair[1])))
    return points


def size_of(width: Any, height: Any) -> tuple[int, int] | None:
    """Return the width and height of an image, None unless both are whole numbers from 1 on."""
    for side in (width, height):
        is_whole = is_number(side) and float(side).is_integer()
        if not is_whole or side < 1:
            return None
    return int(width), int(height)


def read_images(
    entries: Iterable[tuple[str, Any]], read: Callable[[Any, str], AnnotatedImage], file: Path
) -> tuple[list[AnnotatedImage], list[Problem]]:
    """Return the images of a file, and the problems of entries that cannot be read.

    Args:
        entries: the place and the value of each.
        read: returns the image of an entry at a place; raises BadRowError.
        file: whose path is printed.
    """
    images = []
    problems = []
    for place, entry in entries:
        try:
            images.append(read(entry, place)._replace(number=place))
        except BadRowError as error:
            problems.append(Problem(IMAGE_DROPPED, f"{printable(file)} {place}", str(error)))
    return images, problems


def in_list(value: Any) -> list[tuple[str, Any]]:
    """Return the place and the value of each entry of a document that is a JSON list.

    Raises BadRowError for anything else.
    """
    entries = list_of(value, "the document")
    return [(f"[{index}]", entry) for index, entry in enumerate(entries)]


def in_object(fields: Mapping[str, Any], where: str = "") -> list[tuple[str, Any]]:
    """Return the place and the value of each entry of a JSON object that lies at `where`."""
    return [(f"{where}['{excerpt(key, 200)}']", entry) for key, entry in fields.items()]


def read_objects(
    entries: Iterable[Any],
    read: Callable[[Any, str], Sequence[Annotation]],
    file: Path | str,
    where: str,
) -> tuple[list[Annotation], list[Problem]]:
    """Return the objects of an image, and the problems of those that cannot be read.

    Args:
        entries: as the file has them.
        read: returns the objects of an entry at a place: one for each of its classes, none if it
            is not for detection; raises BadRowError.
        file: whose path is printed.
        where: the place of the list of entries.
    """
    objects: list[Annotation] = []
    problems = []
    for index, entry in enumerate(entries):
        place = f"{where}[{index}]"
        try:
            objects += read(entry, place)
        except BadRowError as error:
            problems.append(Problem(ROW_DROPPED, f"{printable(file)} {place}", str(error)))
    return objects, problems


def with_objects(
    image: AnnotatedImage, objects: tuple[list[Annotation], list[Problem]]
) -> AnnotatedImage:
    """Return an image with what `read_objects` has returned."""
    annotations, problems = objects
    return image._replace(annotations=annotations, problems=problems)
