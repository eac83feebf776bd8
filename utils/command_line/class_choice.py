"""The classes that a user chooses by name or number, as --classes takes them."""

from collections.abc import Sequence
from numbers import Integral

from utils.printable import counted, did_you_mean, excerpt, printable

SHOWN_NAMES = 20
MAX_DIGITS = 9  # of an index


def class_ids(given: Sequence[int | str], names: Sequence[str], owner: str) -> list[int]:
    """Return the indices of classes that are given by name or index.

    A text is the name of all classes called so. Digits that no class is called are an index, as a
    whole number always is.

    Args:
        given: names and indices.
        names: of all classes.
        owner: what has these classes, in errors.

    Raises ValueError if there is no such class.

    >>> class_ids(["1", "traffic light"], ["bus", "car", "traffic light"], "the model")
    [1, 2]
    >>> class_ids(["1", 1], ["1", "2", "3"], "the model")
    [0, 1]
    """
    found: list[int] = []
    for each in given:
        if not isinstance(each, (str, Integral)):
            raise ValueError(f"class {each!r}: give a name or a whole number")
        if isinstance(each, str):
            called_so = [index for index, name in enumerate(names) if name == each]
            if called_so:
                found += called_so
                continue
            if not is_number(each):
                raise ValueError(f"class '{excerpt(each)}': {owner} has {_listed(names, each)}")

        index = _index(each)
        if not 0 <= index < len(names):
            has = f"{owner} has {counted(len(names), 'class')} (0-{len(names) - 1})"
            raise ValueError(f"class {excerpt(str(each))}: {has}")
        found.append(index)
    return found


def ambiguous_classes_note(given: Sequence[int | str], names: Sequence[str]) -> str:
    """Return a sentence if digits are the name of one class and the index of another, else "".

    >>> ambiguous_classes_note(["1"], ["1", "2"])
    '--classes 1 is the class called 1, not the one with number 1, which is called 2'
    >>> ambiguous_classes_note(["0", "5"], ["0", "1"])
    ''
    """
    notes = []
    for each in given:
        if not isinstance(each, str) or not is_number(each) or each not in names:
            continue
        index = _index(each)
        if 0 <= index < len(names) and names[index] != each:
            notes.append(
                f"{each} is the class called {each}, not the one with number {index}, which is "
                f"called {printable(names[index])}"
            )
    return f"--classes {'; '.join(notes)}" if notes else ""


def is_number(text: str) -> bool:
    """Whether a text is digits only, which may be an index."""
    return text.isascii() and text.isdigit()


def _index(each: int | str) -> int:
    """Return the index that digits or a whole number are, -1 for one with too many digits."""
    return int(each) if len(str(each)) <= MAX_DIGITS else -1


def _listed(names: Sequence[str], wrong: str) -> str:
    """Return the first names, and the one that is like the wrong one, if there is one."""
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return f"{', '.join(map(excerpt, names[:SHOWN_NAMES]))}{more}{did_you_mean(wrong, names)}"
