"""Weights that other projects publish: where they are, and how they are fetched when asked.

models/pretrained.yaml lists them; the installed torchvision knows its own. OpenMMLab and
torchvision end a file's name with the first 8 digits of its SHA-256, as in resnet18-f37072fd.pth.
"""

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode

from models.tables.find import model_names
from models.weights.torchvision_files import torchvision_file
from utils.files.disk import exclusive_access
from utils.files.download import DownloadSource, check_url, fetch, sha256_of
from utils.files.yaml_tree import pairs, read_tree
from utils.printable import printable
from utils.terminal import print_lines

PUBLISHED = Path(__file__).parents[1] / "pretrained.yaml"
MAX_BYTES = 1 << 16
KEYS = {"url", "sha256", "sha256_prefix"}
NAMED_DIGITS = re.compile(r"-([0-9a-f]{8})\.pth", re.IGNORECASE)
DATES = ("%Y%m%d", "%d%m%Y", "%m%d%Y")


def published(file: Path = PUBLISHED) -> dict[str, DownloadSource]:
    """Return the URL and, if they are stated, the digits of the digest of each file name.

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


def _source(node: Node, table: str, where: str) -> DownloadSource:
    """Return one entry of the table. Raises ValueError if it is malformed."""
    entry = dict(pairs(node, table, "an entry")) if isinstance(node, MappingNode) else {}
    has_keys = {"url"} <= entry.keys() <= KEYS
    if not has_keys or not all(isinstance(value, ScalarNode) for value in entry.values()):
        raise ValueError(f"{where} must have a url and may have a sha256 or a sha256_prefix")

    values = {key: value.value for key, value in entry.items()}
    try:
        check_url(values["url"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None

    source = DownloadSource(**values)
    if source.sha256 and not re.fullmatch("[0-9a-fA-F]{64}", source.sha256):
        raise ValueError(f"{where}: a sha256 has 64 hexadecimal digits")
    if source.sha256_prefix and not re.fullmatch("[0-9a-fA-F]{8}", source.sha256_prefix):
        raise ValueError(f"{where}: a sha256_prefix has 8 hexadecimal digits")
    agrees = source.sha256.lower().startswith(source.sha256_prefix.lower())
    if source.sha256 and not agrees:
        raise ValueError(f"{where}: its sha256 does not begin with its sha256_prefix")
    return source


def where_published(path: Path, file: Path = PUBLISHED) -> str:
    """Return a sentence on where a missing file of this name can be downloaded; "" if unknown."""
    sources = published(file)
    source = _source_named(path.name, sources)
    if source:
        where = f"Its authors publish it at {source.url}"
        if source.digits and torchvision_file(path.name):
            return f"{where}: train.py fetches it with --download, for a table given with --cfg"
        if source.digits:
            return f"{where}: train.py and val.py fetch it with --download"
        return f"{where}: download it, and give its path"

    # The same name with another suffix, or in other case; or only the name of its model.
    stem = path.stem.casefold()
    is_model = stem in model_names()
    for name, source in sources.items():
        if Path(name).stem == stem or (is_model and name.startswith(f"{stem}_")):
            where = f"Its authors publish {name} at {source.url}"
            return f"{where}: download it, and give its path"
    return ""


def _source_named(name: str, sources: Mapping[str, DownloadSource]) -> DownloadSource | None:
    """Return where a file of this name is published: in the table, or by torchvision."""
    if name in sources:
        return sources[name]
    known = torchvision_file(name)
    return known.source if known else None


def source_of_missing(weights: str, file: Path = PUBLISHED) -> DownloadSource | None:
    """Return where `fetch_weights` would download this checkpoint from.

    None if it exists or its name is not known. Raises ValueError if its digest is not stated.
    """
    path = Path(weights)
    if os.path.exists(path):
        return None
    source = _source_named(path.name, published(file))
    if source is None:
        return None
    if not source.digits:
        raise ValueError(
            f"{printable(path)}: --download needs a sha256 in models/pretrained.yaml to check the "
            f"file, and has none. {where_published(path, file)}"
        )
    return source


def fetch_weights(weights: str, file: Path = PUBLISHED) -> None:
    """Download a missing checkpoint of a published name, of models/pretrained.yaml or torchvision.

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
            if not source.sha256:
                print_lines(
                    f"{printable(path.name)}: only {len(source.digits)} digits of its SHA-256 are "
                    "known and were compared: they guard against damage, not against forgery"
                )


def require_named_digest(path: Path) -> None:
    """Raise ValueError if a file's name ends in digits that its SHA-256 does not begin with.

    For files of those who state that convention. Digits that can be read as a date are not taken
    for a digest, so that a copy called rtmdet-20261127.pth is left alone.
    """
    named = NAMED_DIGITS.fullmatch(path.name[-len("-00000000.pth") :])
    if named is None or _is_date(named[1]):
        return
    problem = _wrong_digits(path, named[1])
    if problem:
        raise ValueError(
            f"{printable(path)}: its name says that its SHA-256 begins with {problem}. If the "
            "digits in its name mean something else, rename it"
        )


def require_published_digest(path: Path, file: Path = PUBLISHED) -> None:
    """Raise ValueError for a file that has the name of a published file and another digest."""
    source = published(file).get(path.name)
    if source is None or not source.digits:
        return
    problem = _wrong_digits(path, source.digits)
    if problem:
        raise ValueError(
            f"{printable(path)}: the SHA-256 of the published file of this name begins with "
            f"{problem}"
        )


def _wrong_digits(path: Path, digits: str) -> str:
    """Return half a sentence if the SHA-256 of a file begins with other digits, else ""."""
    try:
        found = sha256_of(path)[: len(digits)]
    except OSError:  # the reader says so
        return ""
    if found == digits.lower():
        return ""
    return f"{digits.lower()}, but it begins with {found}: the file is damaged or was changed"


def _is_date(digits: str) -> bool:
    """Return whether 8 digits can be read as a date of 1970 to 2099, in any usual order.

    >>> _is_date("20261127"), _is_date("27112026"), _is_date("78301299"), _is_date("78e30dcc")
    (True, True, False, False)
    """
    for form in DATES:
        try:
            date = datetime.strptime(digits, form)
        except ValueError:
            continue
        if 1970 <= date.year < 2100:
            return True
    return False
