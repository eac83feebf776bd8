"""Lists of class names that tools write beside YOLO's label files."""

from collections.abc import Sequence
from pathlib import Path

from data.formats.base import ClassNames, shown_names
from data.formats.json_files import read_json
from data.images import read_lines
from utils.printable import excerpt, printable

# a name in each line
TEXT_LISTS = ("classes.txt", "obj.names", "_darknet.labels", "labels.txt", "predefined_classes.txt")
# of these, those that a person wrote for a tool: they count where a folder has no other list
GIVEN_TO_TOOLS = ("labels.txt", "predefined_classes.txt")
NOTES = "notes.json"  # of Label Studio
NAME_LISTS = (*TEXT_LISTS, NOTES)


def lists_in(folder: Path) -> list[ClassNames]:
    """Return the classes that each list in a folder names.

    Raises ValueError with the path of a list that cannot be read or has a name twice.
    """
    files = [folder / name for name in NAME_LISTS if (folder / name).is_file()]
    own = [file for file in files if file.name not in GIVEN_TO_TOOLS]
    return [_names_in(file) for file in own or files]


def require_same_names(lists: Sequence[ClassNames]) -> None:
    """Raise ValueError, with both, if lists name other classes, or in another order."""
    for listed in lists[1:]:
        first = lists[0]
        if listed.names != first.names:
            raise ValueError(
                "the class names differ: "
                f"{printable(first.origin)} has {shown_names(first.names)}; "
                f"{printable(listed.origin)} has {shown_names(listed.names)}"
            )


def names_in_lines(file: Path) -> ClassNames:
    """Return the class names of a file with a name in each line.

    Raises ValueError with its path if it cannot be read or has a name twice.
    """
    names = [line.strip() for line in read_lines(file) if line.strip()]
    return ClassNames(_distinct(file, names), str(file))


def _names_in(file: Path) -> ClassNames:
    return _notes(file) if file.name == NOTES else names_in_lines(file)


def _notes(file: Path) -> ClassNames:
    """Return the names in the notes of Label Studio, in the order of their ids."""
    document = read_json(file)
    try:
        categories = {entry["id"]: entry["name"] for entry in document["categories"]}
        names = [str(categories[index]) for index in range(len(categories))]
    except (KeyError, TypeError):
        reason = "'categories' must name the ids 0, 1, ..."
        raise ValueError(f"{printable(file)}: {reason}") from None
    return ClassNames(_distinct(file, names), str(file))


def _distinct(file: Path, names: Sequence[str]) -> tuple[str, ...]:
    first_of: dict[str, int] = {}
    for index, name in enumerate(names):
        first = first_of.setdefault(name, index)
        if first != index:
            shown = excerpt(name)
            raise ValueError(f"{printable(file)}: classes {first} and {index} are both '{shown}'")
    return tuple(names)
