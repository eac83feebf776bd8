"""The YAML file of --augmentations: a list of transforms with their arguments, as plain values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from data.augment.transforms.names import GROUPS, ONE_OF, SOME_OF, check_name
from utils.files.yaml_tree import pairs, parse_tree, read_text, where
from utils.printable import counted, did_you_mean, excerpt, printable

MAX_BYTES = 64 * 1024
WHAT = "file of augmentations"
MAX_COUNT = 100  # of steps that SomeOf applies
# groups: the chance that they are applied at all
GROUP_CHANCE = {ONE_OF: 0.5, SOME_OF: 1.0, "Sequential": 0.5, "Compose": 1.0}
Plain = float | str | bool | None | list[Any] | dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A transform, or a group of them.

    arguments: of a transform, `p` included if the file gives it. chance: that a group is applied.
    count, repeats: how many steps SomeOf chooses, and whether it may choose one twice.
    """

    name: str
    where: str  # file and line
    arguments: Mapping[str, Plain] = field(default_factory=dict)
    children: tuple["Step", ...] = ()
    chance: float = 1.0
    count: int = 1
    repeats: bool = False


@dataclass(frozen=True)
class TransformFile:
    """The content of a file: its text, what errors call it, and its steps."""

    text: str
    name: str
    steps: tuple[Step, ...]


def read_transforms(path: Path) -> TransformFile:
    """Return the content of a file. Raises ValueError with the file and, if known, the line."""
    return parse_transforms(text_of(path), printable(path))


def text_of(path: Path) -> str:
    """Return the text of a file. Raises ValueError if it cannot be read."""
    return read_text(path, printable(path), WHAT, MAX_BYTES)


def parse_transforms(text: str, name: str) -> TransformFile:
    """Return the content of a text. name: of the file in errors. Raises as `read_transforms`."""
    tree = parse_tree(text, name)
    if not isinstance(tree, SequenceNode) or not tree.value:
        raise ValueError(f"{name}: expected a list of transforms: - {{name: Blur, p: 0.1}}")
    return TransformFile(text, name, _steps(tree, name))


def _steps(node: SequenceNode, file: str) -> tuple[Step, ...]:
    return tuple(_step(entry, file) for entry in node.value)


def _step(node: Node, file: str) -> Step:
    """Return the transform or the group of an entry of a list."""
    place = where(file, node)
    if not isinstance(node, MappingNode):
        raise ValueError(f"{place}: expected a transform such as {{name: Blur, p: 0.1}}")

    # The name, and the other entries.
    entries = dict(pairs(node, file, "a transform"))
    if "name" not in entries:
        keys = excerpt(", ".join(entries)) or "nothing"
        raise ValueError(f"{place}: a transform has no 'name' (it has: {keys})")
    name_node = entries.pop("name")
    if not isinstance(name_node, ScalarNode):
        raise ValueError(f"{place}: 'name' must be the name of a transform")
    name = name_node.value
    try:
        check_name(name)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None

    if name in GROUPS:
        return _group(name, entries, place, file)
    arguments = {key: _plain(value, file) for key, value in entries.items()}
    if "p" in arguments:
        _check_chance(arguments["p"], where(file, entries["p"]), name)
    return Step(name, place, arguments)


def _group(name: str, entries: dict[str, Node], place: str, file: str) -> Step:
    """Return a group. entries: of its mapping, without the name."""
    own = ("n", "replace") if name == SOME_OF else ()
    allowed = ("transforms", "p", *own)
    for key, value in entries.items():
        if key not in allowed:
            near = did_you_mean(key, allowed)
            raise ValueError(
                f"{where(file, value)}: {name} has no '{excerpt(key)}'{near}; "
                f"it has {', '.join(allowed)}"
            )

    # Its transforms.
    listed = entries.get("transforms")
    if not isinstance(listed, SequenceNode) or not listed.value:
        raise ValueError(f"{place}: {name} needs 'transforms', a list of one or more")
    children = _steps(listed, file)

    # Its settings.
    values = {key: _plain(node, file) for key, node in entries.items() if key != "transforms"}
    chance = values.get("p", GROUP_CHANCE[name])
    _check_chance(chance, place, name)
    count = values.get("n", 1)
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise ValueError(f"{place}: n of {name} is {_shown(count)}, expected 1 to {MAX_COUNT}")
    repeats = values.get("replace", False)
    if type(repeats) is not bool:
        raise ValueError(f"{place}: replace of {name} is {_shown(repeats)}, expected true or false")
    if count > len(children) and not repeats:
        raise ValueError(
            f"{place}: n of {name} is {count}, but it has {counted(len(children), 'transform')}"
        )
    return Step(
        name,
        place,
        children=children,
        chance=float(chance),
        count=count,
        repeats=repeats,  # type: ignore[arg-type]
    )


def _check_chance(value: object, place: str, name: str) -> None:
    """Raise ValueError for a probability that is not a number from 0 to 1."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:  # type: ignore[operator]
        raise ValueError(f"{place}: p of {name} is {_shown(value)}, expected a number from 0 to 1")


def _shown(value: object) -> str:
    return excerpt(str(value))


def _plain(node: Node, file: str) -> Plain:
    """Return a value as plain Python. Raises ValueError for a number that is not finite."""
    if isinstance(node, SequenceNode):
        return [_plain(entry, file) for entry in node.value]
    if isinstance(node, MappingNode):
        return {key: _plain(value, file) for key, value in pairs(node, file, "an argument")}

    text: str = node.value
    is_quoted = isinstance(node, ScalarNode) and bool(node.style)
    value = text if is_quoted else _unquoted(text)
    try:
        is_finite = math.isfinite(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return value
    except OverflowError:  # a whole number beyond the largest float
        is_finite = False
    if not is_finite:
        raise ValueError(f"{where(file, node)}: {excerpt(text)} is not a finite number")
    return value


def _unquoted(text: str) -> Plain:
    """Return the value of a scalar without quotes.

    >>> [_unquoted(text) for text in ("3", "1e-3", "true", "~", "jpeg", "1_0")]
    [3, 0.001, True, None, 'jpeg', '1_0']
    """
    words: dict[str, Plain] = {"true": True, "false": False, "null": None, "~": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    if "_" in text:  # Python would skip it
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except (ValueError, OverflowError):
            continue
    return text
