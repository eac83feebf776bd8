"""Lists of class names that tools write beside YOLO's label files."""

import os
from pathlib import Path

from data.formats.base import ClassNames
from data.formats.json_files import read_json
from data.images import read_lines
from utils.printable import printable

# a name in each line
TEXT_LISTS = ("classes.txt", "obj.names", "_darknet.labels", "labels.txt", "predefined_classes.txt")
NOTES = "notes.json"  # of Label Studio
NAME_LISTS = (*TEXT_LISTS, NOTES)
PARENTS = 2  # folders above a source that are looked into, beside it


def listed_names(source: Path, top: Path | None = None) -> ClassNames | None:
    """Return the classes that a file in a source's folder, or above it, lists; None without one.

    top: the folder above which no file is looked for.

    Raises ValueError with the path of a list that cannot be read or has a name twice.
    """
    folder = source if os.path.isdir(source) else source.parent
    for place in (folder, *folder.parents[:PARENTS]):
        for name in TEXT_LISTS:
            file = place / name
            if file.is_file():
                return names_in_lines(file)
        if (place / NOTES).is_file():
            file = place / NOTES
            return ClassNames(_distinct(file, _notes(file)), str(file))
        if place == top:
            break
    return None


def names_in_lines(file: Path) -> ClassNames:
    """Return the class names of a file with a name in each line.

    Raises ValueError with its path if it cannot be read or has a name twice.
    """
    names = [line.strip() for line in read_lines(file) if line.strip()]
    return ClassNames(_distinct(file, names), str(file))


def _notes(file: Path) -> list[str]:
    """Return the names in the notes of Label Studio, in the order of their ids."""
    document = read_json(file)
    try:
        categories = {entry["id"]: entry["name"] for entry in document["categories"]}
        names = [categories[index] for index in range(len(categories))]
    except (KeyError, TypeError):
        reason = "'categories' must name the ids 0, 1, ..."
        raise ValueError(f"{printable(file)}: {reason}") from None
    return [str(name) for name in names]


def _distinct(file: Path, names: list[str]) -> tuple[str, ...]:
    for index, name in enumerate(names):
        first = names.index(name)
        if first != index:
            raise ValueError(f"{printable(file)}: classes {first} and {index} are both '{name}'")
    return tuple(names)
