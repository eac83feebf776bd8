"""YAML, read as a small tree of text with line numbers.

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

    A node's value is the text as written in the file.

    Args:
        file: to read.
        name: of the file in errors.
        what: kind of the file in errors.
        most_bytes: limit of its size.

    Raises: ValueError, with the file and if possible the line, if the file cannot be read, is
    larger than `most_bytes`, is not YAML, or has aliases, tags, more than MAX_DEPTH levels or more
    than MAX_NODES nodes.
    """
    shown_name = printable(name)
    text = read_text(file, shown_name, what, most_bytes)
    return parse_tree(text, shown_name)


def read_text(file: Path, name: str, what: str, most_bytes: int) -> str:
    """Return the text of a file. Raises ValueError as `read_tree` does."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from None

    if len(data) > most_bytes:
        raise ValueError(f"{name} is larger than {most_bytes:,} bytes, the limit for a {what}")
    hint = utf_16_hint(data)
    if hint:
        raise ValueError(f"{name} line 1: not UTF-8 text{hint}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{name} line {line}: not UTF-8 text") from None


def parse_tree(text: str, name: str) -> Node | None:
    """Return the node tree of a text. Raises ValueError as `read_tree` does."""
    # The C parser reads 10,000 names in milliseconds.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        depth = 0
        for count, event in enumerate(yaml.parse(text, Loader=loader)):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1

            if depth > MAX_DEPTH:
                raise ValueError(f"{where(name, event)}: nested more than {MAX_DEPTH} deep")
            if count > MAX_NODES:
                raise ValueError(f"{where(name, event)}: more than {MAX_NODES:,} values")
            _refuse_aliases_and_tags(event, name)
        return yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None)
        reason = one_line(problem or "it cannot be parsed")
        raise ValueError(f"{name}{line}: not YAML: {reason}") from None


def _refuse_aliases_and_tags(event: yaml.Event, name: str) -> None:
    """Raise ValueError if a part of a YAML file is an alias or has a tag."""
    if isinstance(event, yaml.AliasEvent):
        anchor = excerpt(event.anchor or "")
        raise ValueError(f"{where(name, event)}: aliases (*{anchor}) are not allowed")
    tag = getattr(event, "tag", None)
    if tag is not None:
        raise ValueError(f"{where(name, event)}: tags ({excerpt(tag)}) are not allowed")


def where(name: str | Path, node: Node | yaml.Event) -> str:
    """Return the file and, if it is known, the line of a node."""
    mark = node.start_mark
    if mark is None:
        return printable(name)
    return f"{printable(name)} line {mark.line + 1}"


def pairs(mapping: MappingNode, name: str | Path, what: str) -> list[tuple[str, Node]]:
    """Return the keys and values of `mapping`.

    Raises: ValueError if a key is not plain text or appears twice.
    """
    keys: set[str] = set()
    for key, _ in mapping.value:
        if not isinstance(key, ScalarNode):
            raise ValueError(f"{where(name, key)}: a key of {what} must be plain text")
        if key.value in keys:
            raise ValueError(
                f"{where(name, key)}: the key '{excerpt(key.value)}' appears twice in {what}"
            )
        keys.add(key.value)
    return [(key.value, value) for key, value in mapping.value]


def is_absent(node: Node) -> bool:
    """Return whether a value is empty, ~ or null. A quoted "null" is text."""
    is_unquoted = isinstance(node, ScalarNode) and not node.style
    return is_unquoted and node.value in ("", "~", "null", "Null", "NULL")
