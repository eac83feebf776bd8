"""What a recognized data set is, and the words that name a split in paths."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from data.formats.base import ClassNames

UNASSIGNED = ""  # the split of images that no folder or list puts into one
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}


class Layout(NamedTuple):
    """A data set as it lies on the disk."""

    title: str  # what wrote it, for the log
    path: Path  # what to give as --data to choose it
    splits: Mapping[str, tuple[Path, ...]]  # sources by split, or UNASSIGNED
    names: ClassNames | None = None  # None: as the sources name them
    is_yaml: bool = False  # whether `path` is a data YAML, which says all of this


def split_of_path(parts: Iterable[str]) -> str:
    """Return the split that a folder or a file name of a path names, UNASSIGNED if none does.

    >>> split_of_path(["valid", "images"]), split_of_path(["instances_train2017.json"])
    ('val', 'train')
    >>> split_of_path(["photos"])
    ''
    """
    for part in parts:
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return UNASSIGNED


def in_order(splits: Mapping[str, Iterable[Path]]) -> dict[str, tuple[Path, ...]]:
    """Return sources by split, in the order of the splits, each once and sorted."""
    order = ("train", "val", "test", UNASSIGNED)
    return {split: tuple(sorted(set(splits[split]))) for split in order if split in splits}
