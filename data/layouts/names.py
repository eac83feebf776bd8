"""The class names of a data set whose sources name them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from data.formats.base import ClassNames, shown_names
from data.formats.name_lists import require_same_names
from data.formats.registry import YOLO_TEXT, format_of
from data.formats.yolo_txt import listed_names
from data.layouts.reasons.no_classes import why_no_class
from utils.printable import counted, excerpt, printable

MOST_DIGITS = 5  # of a class number


def names_of_sources(sources: Sequence[Path]) -> ClassNames:
    """Return the class names of sources: those of a list if one has a list, else all in use.

    Raises ValueError if lists of several sources differ, with both, or if there is no class.
    """
    listed = {source: format_of(source).class_names(source) for source in sources}
    in_any = {name for names in listed.values() for name in names.names}
    found = {source: names.with_names_in_use(in_any) for source, names in listed.items()}
    lists = [names for names in found.values() if names.origin and names.names]
    require_same_names(lists)

    used = {name for names in found.values() for name in names.names}
    if lists:
        first = lists[0]
        for names in found.values():
            # Numbers of the classes of that list: the tool wrote one for all folders.
            if are_numbers(names.names) and len(names.names) <= len(first.names):
                used.difference_update(names.names)
        unknown = sorted(used - set(first.names))
        if unknown:
            raise ValueError(
                f"{printable(first.origin)} has {shown_names(first.names)}, but the labels name "
                f"{shown_names(unknown)}"
            )
        return first
    if not used:
        where = ", ".join(map(printable, sources[:3]))
        raise ValueError(f"no labels with a class in {where}: {why_no_class(sources)}")
    if are_numbers(used):
        if max(map(len, used)) > MOST_DIGITS:
            largest = max(used, key=len)
            raise ValueError(f"the labels have a class {excerpt(largest)}: is this a class number?")
        return ClassNames(tuple(map(str, range(max(map(int, used)) + 1))))
    return ClassNames(tuple(sorted(used)))


def are_numbers(names: Iterable[str]) -> bool:
    """Whether all classes are called by their numbers."""
    return all(name.isdecimal() for name in names)


def check_listed_names(
    names_of: Mapping[Path, Sequence[str]], root: Path, *, mixed: bool = False
) -> list[str]:
    """Compare a data YAML's names with the lists that tools write beside YOLO's label files.

    Return a sentence for each list with other spellings.

    Args:
        names_of: for each folder and list of images, the classes that its labels should have.
        root: the folder of the data set.
        mixed: whether the sources are data sets that are mixed with weights.

    Raises ValueError with both lists if one has the same names in another order, or another number
    of them: then the numbers in the label files mean other classes. If data sets are mixed, also if
    it has other names.
    """
    notes = []
    checked: set[str] = set()
    for source, expected in names_of.items():
        names = tuple(expected)
        if format_of(source) is not YOLO_TEXT:
            continue  # other formats name the class of each box
        for listed in listed_names(source, root):
            if listed.origin not in checked and listed.names != names:
                checked.add(listed.origin)
                notes.append(_other_spelling(listed, names, mixed=mixed))
    return notes


def _other_spelling(listed: ClassNames, names: Sequence[str], *, mixed: bool) -> str:
    """Return what is said of a list that spells the classes of a data YAML in another way.

    Raises ValueError with both if it names other classes.
    """
    both = f"{shown_names(listed.names)}; the data YAML has {shown_names(names)}"
    where = printable(listed.origin)
    advice = "correct one of them, or rename the file if it is not of these labels"
    if len(listed.names) != len(names):
        count = counted(len(listed.names), "class")
        raise ValueError(f"{where} lists {count}: {both}: {advice}")
    listed_spellings = [_spelling(name) for name in listed.names]
    spellings = [_spelling(name) for name in names]
    same_names = sorted(listed_spellings) == sorted(spellings)
    if same_names and listed_spellings != spellings:
        raise ValueError(f"{where} lists the classes in another order: {both}: {advice}")
    if mixed and not same_names:
        raise ValueError(f"{where} names other classes than the data that it is mixed with: {both}")
    return f"{where} spells the classes in another way: {both}"


def spelled_alike(names: Iterable[str]) -> list[str]:
    """Return the names that another one is equal to, but for capital letters and signs.

    >>> spelled_alike(["Cat", "dog", "cat"])
    ['Cat', 'cat']
    """
    names_of = defaultdict(list)
    for name in names:
        names_of[_spelling(name) or name].append(name)
    return [name for alike in names_of.values() if len(alike) > 1 for name in alike]


def _spelling(name: str) -> str:
    """Return what spellings of a name have in common.

    >>> _spelling("Traffic-Light") == _spelling("traffic light")
    True
    """
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def chosen_names(found: ClassNames, chosen: Sequence[str]) -> ClassNames:
    """Return the names that --names gives, or those that were found if it gives none.

    Raises ValueError if they do not fit: numbers need a name for each, names in use must be among
    them, in any order. A list of names cannot be changed: label files may number the classes by it.
    """
    if not chosen or tuple(chosen) == found.names:
        return found

    if found.origin:
        raise ValueError(
            f"--names has {shown_names(chosen)}, but {printable(found.origin)} names the classes "
            f"{shown_names(found.names)}: change them there"
        )

    if len(set(chosen)) < len(chosen):
        raise ValueError(f"--names: {shown_names(chosen)} has a name twice")

    numbered = are_numbers(found.names)
    if numbered and len(chosen) < len(found.names):
        raise ValueError(
            f"--names has {counted(len(chosen), 'name')}, but the labels have the classes 0 to "
            f"{len(found.names) - 1}"
        )
    if not numbered and not set(found.names) <= set(chosen):
        in_use = shown_names(found.names)
        raise ValueError(f"--names has {shown_names(chosen)}, but the labels name {in_use}")

    return ClassNames(tuple(chosen), "--names")
