"""Weights that other projects publish: where they are, and how they are fetched when asked.

models/pretrained.yaml lists them.
"""

import os
import re
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode

from utils.files.disk import exclusive_access
from utils.files.download import Source, check_url, fetch
from utils.files.yaml_tree import pairs, read_tree
from utils.printable import printable

PUBLISHED = Path(__file__).parents[1] / "pretrained.yaml"
MAX_BYTES = 1 << 16


def published(file: Path = PUBLISHED) -> dict[str, Source]:
    """Return the URL and, if it is stated, the digest of each file name.

    Raises ValueError for a malformed entry.
    """
    table = "models/pretrained.yaml" if file == PUBLISHED else printable(file)
    tree = read_tree(file, table, "table of weights", MAX_BYTES)
    if not isinstance(tree, MappingNode):
        raise ValueError(f"{table}: expected entries `file name: {{url: ..., sha256: ...}}`")

    sources = {}
    for name, node in pairs(tree, table, "the table"):
        sources[name] = _source(node, table, f"{table}: {printable(name)}")
    return sources


def _source(node: Node, table: str, where: str) -> Source:
    """Return one entry of the table. Raises ValueError if it is malformed."""
    entry = dict(pairs(node, table, "an entry")) if isinstance(node, MappingNode) else {}
    has_keys = {"url"} <= entry.keys() <= {"url", "sha256"}
    if not has_keys or not all(isinstance(value, ScalarNode) for value in entry.values()):
        raise ValueError(f"{where} must have a url and may have a sha256")

    url = entry["url"].value
    sha256 = entry["sha256"].value if "sha256" in entry else ""
    try:
        check_url(url)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if sha256 and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"{where}: a sha256 has 64 hexadecimal digits")
    return Source(url, sha256)


def where_published(path: Path, file: Path = PUBLISHED) -> str:
    """Return a sentence on where a missing file of this name can be downloaded; "" if unknown."""
    sources = published(file)
    if path.name in sources:
        source = sources[path.name]
        where = f"Its authors publish it at {source.url}"
        if source.sha256:
            return f"{where}: train.py and val.py fetch it with --download"
        return f"{where}: download it, and give its path to --weights"

    # The same name with another suffix, or in other case.
    for name, source in sources.items():
        if Path(name).stem == path.stem.casefold():
            where = f"Its authors publish {name} at {source.url}"
            return f"{where}: download it, and give its path to --weights"
    return ""


def source_of_missing(weights: str, file: Path = PUBLISHED) -> Source | None:
    """Return where `fetch_weights` would download this checkpoint from.

    None if it exists or its name is not known. Raises ValueError if its digest is not stated.
    """
    path = Path(weights)
    source = published(file).get(path.name)
    if source is None or os.path.exists(path):
        return None
    if not source.sha256:
        raise ValueError(
            f"{printable(path)}: --download needs a sha256 in models/pretrained.yaml to check the "
            f"file, and has none. {where_published(path, file)}"
        )
    return source


def fetch_weights(weights: str, file: Path = PUBLISHED) -> None:
    """Download a missing checkpoint whose name is in models/pretrained.yaml.

    One process does it, the others wait. Nothing is done if it exists or its name is not known.

    Raises ValueError if its digest is not stated, and FaultError as `fetch` does.
    """
    path = Path(weights)
    source = source_of_missing(weights, file)
    if source is None:
        return
    with exclusive_access(path.parent / f".{path.name}.download"):
        if not os.path.exists(path):
            fetch(source, path)
