"""The files of weights that torchvision publishes for the networks of TorchvisionBackbone.

Their addresses are those in the installed torchvision. The file names end with the first 8 digits
of the SHA-256.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from models.blocks.torchvision_backbone import NAMES
from utils.files.download import DownloadSource

FILE_NAME = re.compile(r"[a-z][a-z0-9_]*-([0-9a-f]{8})\.pth", re.ASCII)


class PublishedFile(NamedTuple):
    """A file of torchvision's weights: the name of its network, and where it is."""

    network: str
    source: DownloadSource


def torchvision_file(name: str) -> PublishedFile | None:
    """Return what is known of a file of this name; None if torchvision publishes none."""
    # torchvision, whose import takes a second, is asked only for names of the form of its files.
    if not FILE_NAME.fullmatch(name):
        return None
    return torchvision_files().get(name)


@lru_cache
def torchvision_files() -> dict[str, PublishedFile]:
    """Return the published files of all networks, by their names."""
    from torchvision.models import get_model_weights

    files = {}
    for network in NAMES:
        for weights in get_model_weights(network):
            url = weights.url
            name = Path(urlsplit(url).path).name
            digits = FILE_NAME.fullmatch(name)
            if digits:
                files[name] = PublishedFile(network, DownloadSource(url, sha256_prefix=digits[1]))
    return files
