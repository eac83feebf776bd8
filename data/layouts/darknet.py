"""Darknet's obj.data: the lists of images, and the file with the class names."""

import os
from pathlib import Path

from data.formats.name_lists import names_in_lines
from data.images import read_lines
from data.layouts.base import Layout, in_order
from utils.printable import printable

SUFFIX = ".data"
KEYS = {"train": "train", "valid": "val", "val": "val", "test": "test"}


def is_darknet(file: Path) -> bool:
    """Whether a file is an obj.data: lines `key = value`, with `names` and a list of images."""
    try:
        entries = _entries(file)
    except ValueError:
        return False
    return "names" in entries and any(key in entries for key in KEYS)


def darknet_layout(file: Path) -> Layout:
    """Return the layout of an obj.data.

    Raises ValueError with its path if a file that it names does not exist.
    """
    entries = _entries(file)
    names_file = _beside(file, entries["names"])
    splits = {}
    for key, split in KEYS.items():
        if entries.get(key):
            splits[split] = [_beside(file, entries[key])]
    return Layout("Darknet", file, in_order(splits), names_in_lines(names_file))


def _entries(file: Path) -> dict[str, str]:
    """Return the values by key. Raises ValueError with the path if it cannot be read."""
    entries = {}
    for line in read_lines(file):
        key, separator, value = line.partition("=")
        if separator:
            entries[key.strip()] = value.strip()
    return entries


def _beside(file: Path, name: str) -> Path:
    """Return a file that an obj.data names, by its path or in the folder of the obj.data.

    CVAT writes `data/train.txt` for `train.txt`. Raises ValueError if it does not exist.
    """
    plain = name.replace("\\", "/")
    inside = plain.partition("/")[2] or plain
    for candidate in (plain, inside, os.path.basename(plain)):
        path = file.parent / candidate
        if path.is_file():
            return path
    raise ValueError(f"{printable(file)} names {printable(name)}, which does not exist")
