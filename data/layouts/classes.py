"""The classes of data sets that are joined, and what the classes in their labels become."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data.dataset_yaml import distinct
from data.formats.base import ClassNames, shown_names
from data.layouts.base import Layout
from data.layouts.names import are_numbers, chosen_names, names_of_sources
from utils.printable import did_you_mean, excerpt, printable


class Classes(NamedTuple):
    """The classes of joined data sets."""

    names: tuple[str, ...]  # of the classes that are trained
    of_layout: list[ClassNames]  # for each data set, those of its labels
    # of the sources whose labels have other ones: these, and what each becomes, as in DataSpec
    label_names: dict[Path, dict[str, str]]


def joined_classes(
    layouts: Sequence[Layout], chosen: Sequence[str] = (), merge: Sequence[str] = ()
) -> Classes:
    """Return the classes of data sets, which must agree after `merge`; their order may differ.

    Args:
        layouts: the data sets.
        chosen: names for the classes of labels that have only numbers, as in `chosen_names`.
        merge: OLD=NEW for each class that is renamed; classes with one name are one class.

    Raises ValueError if the names disagree, with both lists, or as `chosen_names` does.
    """
    renamed = _renamed(merge)
    of_layout = []
    new_names: dict[Path, dict[str, str]] = {}
    for layout in layouts:
        found = layout.names or names_of_sources(layout.label_sources)
        found = chosen_names(found, chosen)
        of_layout.append(found)
        for source in layout.label_sources:
            read_as = layout.label_names.get(source) or {name: name for name in found.names}
            new_names[source] = {old: renamed.get(new, new) for old, new in read_as.items()}

    known = {name for found in of_layout for name in found.names}
    for old in renamed:
        if old not in known:
            classes = shown_names(sorted(known))
            near = did_you_mean(old, known)
            raise ValueError(f"--merge renames {excerpt(old)}, but the classes are {classes}{near}")

    paths = [layout.path for layout in layouts]
    after = [_with_new_names(found, renamed) for found in of_layout]
    names = _agreed(dict(zip(paths, after, strict=True)))
    label_names = {}
    for source, new_name in new_names.items():
        is_same = tuple(new_name) == names and tuple(new_name.values()) == names
        if not is_same:
            label_names[source] = new_name
    return Classes(names, of_layout, label_names)


def _renamed(merge: Sequence[str]) -> dict[str, str]:
    """Return the new name of each class that --merge renames.

    >>> _renamed(["kitten=cat"])
    {'kitten': 'cat'}
    """
    renamed: dict[str, str] = {}
    for word in merge:
        old, separator, new = word.partition("=")
        if not (old and separator and new):
            raise ValueError(f"--merge {excerpt(word)}: write OLD=NEW, such as kitten=cat")
        if renamed.setdefault(old, new) != new:
            both = f"{excerpt(renamed[old])} and {excerpt(new)}"
            raise ValueError(f"--merge renames {excerpt(old)} twice, to {both}")
    return renamed


def _with_new_names(found: ClassNames, renamed: Mapping[str, str]) -> ClassNames:
    return found._replace(names=distinct(renamed.get(name, name) for name in found.names))


def _agreed(classes_of: Mapping[Path, ClassNames]) -> tuple[str, ...]:
    """Return the classes of all data sets: those of a list if one has a list, else all in use.

    classes_of: the classes of each data set, by its path.

    Raises ValueError if they disagree, with both.
    """
    if len(classes_of) == 1:
        (only,) = classes_of.values()
        return only.names
    _require_names(classes_of)

    lists = {path: found for path, found in classes_of.items() if found.origin}
    for first_path, first in lists.items():
        for path, found in classes_of.items():
            is_same = set(found.names) == set(first.names)
            is_part = not found.origin and set(found.names) <= set(first.names)
            if not (is_same or is_part):
                raise ValueError(
                    f"the class names differ: {_described(first_path, first)}; "
                    f"{_described(path, found)}: --merge OLD=NEW renames classes"
                )
        return first.names

    used = {name for found in classes_of.values() for name in found.names}
    if are_numbers(used):
        return max((found.names for found in classes_of.values()), key=len)
    return tuple(sorted(used))


def _require_names(classes_of: Mapping[Path, ClassNames]) -> None:
    """Raise ValueError if some data sets have only class numbers, and others have names."""
    numbered = []
    for path, found in classes_of.items():
        if not found.origin and are_numbers(found.names):
            numbered.append(path)
    if numbered and len(numbered) < len(classes_of):
        raise ValueError(
            f"{printable(numbered[0])} has only class numbers, other data have names: list its "
            "names in a file classes.txt in it, or give all with --names"
        )


def _described(path: Path, found: ClassNames) -> str:
    names = shown_names(found.names)
    return f"{printable(found.origin or path)} has {names}"
