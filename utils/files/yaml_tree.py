"""YAML read as a small tree of text with line numbers.

Aliases, tags and duplicate keys are errors.
"""

from pathlib import Path

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from utils.printable import excerpt, one_line, printable, utf_16_hint

MAX_DEPTH = 20
MAX_NODES = 200_000  # keys, values and lists; a node takes about a kilobyte


def read_tree(file: Path, name: str | Path, what: str, most_bytes: int) -> Node | None:
    """Return the node tree of a YAML file; None if it is empty.

    A node's value is the text as written in the file. Errors call the file `name` and its kind
    `what`. Raises ValueError, with the file and if possible the line: the file cannot be read, is
    larger than `most_bytes`, is not YAML, or has aliases, tags, more than MAX_DEPTH levels or more
    than MAX_NODES nodes.
    """
    return _compose(_read_text(file, printable(name), what, most_bytes), printable(name))


def _read_text(file: Path, name: str, what: str, most_bytes: int) -> str:
    try:
        with open(file, "rb") as stream:
            data = stream.read(most_bytes + 1)
        if len(data) > most_bytes:
            raise ValueError(f"{name} is larger than {most_bytes:,} bytes, the limit for a {what}")
        if hint := utf_16_hint(data):
            raise ValueError(f"{name} line 1: not UTF-8 text{hint}")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{name} line {line}: not UTF-8 text") from None


def _compose(text: str, name: str) -> Node | None:
    # the C parser reads 10,000 names in milliseconds
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        for count, event in enumerate(yaml.parse(text, Loader=loader)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if depth > MAX_DEPTH:
                raise ValueError(f"{where(name, event)}: nested more than {MAX_DEPTH} deep")
            if count > MAX_NODES:
                raise ValueError(f"{where(name, event)}: more than {MAX_NODES:,} values")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(
                    f"{where(name, event)}: aliases (*{excerpt(event.anchor or '')}) are not "
                    "allowed"
                )
            if (tag := getattr(event, "tag", None)) is not None:
                raise ValueError(f"{where(name, event)}: tags ({excerpt(tag)}) are not allowed")
        return yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" line {mark.line + 1}"
        reason = (
            getattr(error, "problem", None)
            or getattr(error, "reason", None)
            or "it cannot be parsed"
        )
        raise ValueError(f"{name}{line}: not YAML: {one_line(reason)}") from None


def where(name: str | Path, node: Node | yaml.Event) -> str:
    """Return the file and, if it is known, the line of a node."""
    mark = node.start_mark
    return printable(name) if mark is None else f"{printable(name)} line {mark.line + 1}"


def pairs(mapping: MappingNode, name: str | Path, what: str) -> list[tuple[str, Node]]:
    """Return the keys and values of `mapping`.

    Raises ValueError if a key is not plain text or appears twice.
    """
    seen: set[str] = set()
    for key, _ in mapping.value:
        if not isinstance(key, ScalarNode):
            raise ValueError(f"{where(name, key)}: a key of {what} must be plain text")
        if key.value in seen:
            raise ValueError(
                f"{where(name, key)}: the key '{excerpt(key.value)}' appears twice in {what}"
            )
        seen.add(key.value)
    return [(key.value, value) for key, value in mapping.value]


def is_absent(node: Node) -> bool:
    """Return whether a value is empty, ~ or null. A quoted "null" is text."""
    return (
        isinstance(node, ScalarNode)
        and not node.style
        and node.value in ("", "~", "null", "Null", "NULL")
    )
