"""Weights that other projects publish (models/pretrained.yaml): where they are, and how they are
fetched when asked.
"""

import os
import re
from pathlib import Path

from yaml.nodes import MappingNode, ScalarNode

from utils.files.disk import exclusive_access
from utils.files.download import Source, check_url, fetch
from utils.files.yaml_tree import pairs, read_tree
from utils.printable import printable

PUBLISHED = Path(__file__).parents[1] / "pretrained.yaml"
MAX_BYTES = 1 << 16


def published(file: Path = PUBLISHED) -> dict[str, Source]:
    """Return the URL and, if it is stated, the digest of each file name. Raises ValueError for a
    malformed entry.
    """
    name = "models/pretrained.yaml" if file == PUBLISHED else printable(file)
    tree = read_tree(file, name, "table of weights", MAX_BYTES)
    if not isinstance(tree, MappingNode):
        raise ValueError(f"{name}: expected entries `file name: {{url: ..., sha256: ...}}`")
    found = {}
    for key, node in pairs(tree, name, "the table"):
        entry = dict(pairs(node, name, "an entry")) if isinstance(node, MappingNode) else {}
        texts = {
            part: value.value for part, value in entry.items() if isinstance(value, ScalarNode)
        }
        if not {"url"} <= texts.keys() <= {"url", "sha256"} or len(texts) < len(entry):
            raise ValueError(f"{name}: {printable(key)} must have a url and may have a sha256")
        source = Source(texts["url"], texts.get("sha256", ""))
        try:
            check_url(source.url)
        except ValueError as error:
            raise ValueError(f"{name}: {printable(key)}: {error}") from None
        if source.sha256 and not re.fullmatch("[0-9a-fA-F]{64}", source.sha256):
            raise ValueError(f"{name}: {printable(key)}: a sha256 has 64 hexadecimal digits")
        found[key] = source
    return found


def where_published(path: Path, file: Path = PUBLISHED) -> str:
    """Return a sentence on where a missing file of this name can be downloaded; "" if that is not
    known.
    """
    sources = published(file)
    known = path.name in sources
    name = (
        path.name
        if known
        else next((name for name in sources if Path(name).stem == path.stem.casefold()), "")
    )
    if not name:
        return ""
    where = f"Its authors publish {'it' if known else name} at {sources[name].url}"
    if known and sources[name].sha256:
        return f"{where}: train.py and val.py fetch it with --download"
    return f"{where}: download it, and give its path to --weights"


def source_of_missing(weights: str, file: Path = PUBLISHED) -> Source | None:
    """Return where `fetch_weights` would download this checkpoint from; None if it exists or its
    name is not known.

    Raises ValueError if its digest is not stated.
    """
    path = Path(weights)
    source = published(file).get(path.name)
    if source is None or os.path.exists(path):
        return None
    if not source.sha256:
        raise ValueError(
            f"{printable(path)}: --download needs a sha256 in models/pretrained.yaml to check the "
            "file, and has none. "
            f"{where_published(path, file)}"
        )
    return source


def fetch_weights(weights: str, file: Path = PUBLISHED) -> None:
    """Download a missing checkpoint whose name is in models/pretrained.yaml. One process does it,
    the others wait.

    Nothing is done if it exists or its name is not known. Raises ValueError if its digest is not
    stated, and FaultError as `fetch` does.
    """
    path, source = Path(weights), source_of_missing(weights, file)
    if source is None:
        return
    with exclusive_access(path.parent / f".{path.name}.download"):
        if not os.path.exists(path):
            fetch(source, path)
