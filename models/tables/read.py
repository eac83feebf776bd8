"""A model table in a YAML file, read as plain values."""

import re
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from models.tables.entries import KEYS
from utils.files.yaml_tree import is_absent, pairs, read_tree
from utils.printable import printable

MODELS_DIR = Path(__file__).parents[1]
MAX_BYTES = 1 << 18
# as YAML 1.1 writes them
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# not 007, which YAML 1.1 reads as octal and other readers as decimal
WHOLE = re.compile(r"[-+]?(0|[1-9]\d{0,17})", re.ASCII)
FRACTION = re.compile(r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)


def read_table(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, with `source`: the file's name for error messages.

    Raises: ValueError if the file cannot be read, is too large, is not YAML, or is not a table.
    """
    is_shipped = path.resolve().parent == MODELS_DIR.resolve()
    source = f"models/{path.name}" if is_shipped else printable(path)

    tree = read_tree(path, source, "model table", MAX_BYTES)
    if not isinstance(tree, MappingNode):
        keys = ", ".join(KEYS[1:])
        raise ValueError(f"{source}: a model table is a mapping with the keys {keys}")
    table = plain_values(tree, source)
    if "class_groups" in table:
        where = "of a checkpoint of --add-classes"
        raise ValueError(f"{source}: `class_groups` is only in the table {where}; leave it out")
    return {**table, "source": source}


def plain_values(node: Node, source: str) -> Any:
    """Return a YAML node as dicts, lists, numbers, True and False, None and text.

    Quoted values are text.

    Raises: ValueError for a duplicate key.
    """
    if isinstance(node, MappingNode):
        entries = pairs(node, source, "one mapping")
        return {key: plain_values(value, source) for key, value in entries}
    if isinstance(node, SequenceNode):
        return [plain_values(value, source) for value in node.value]

    text: str = node.value
    is_quoted = isinstance(node, ScalarNode) and node.style
    if is_quoted:
        return text
    if WHOLE.fullmatch(text):
        return int(text)
    if FRACTION.fullmatch(text):
        return float(text)
    if is_absent(node):
        return None
    return BOOLEANS.get(text.lower(), text)
