"""Choose the images of a val split where a data set has none."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data.layouts.similar import Groups


class HeldOut(NamedTuple):
    """The paths of two splits."""

    train: list[str]
    val: list[str]


def hold_out(
    paths: Iterable[str],
    root: Path,
    *,
    share: float,
    group: str = "",
    seed: int = 0,
    similar: Sequence[int] = (),
) -> HeldOut:
    """Return the images of a train split, and about this share of all for a val split.

    The images of a group stay together. A group's side depends on the seed and on the first of its
    names, so that adding images moves only the group that they join. At least one group is on each
    side. A group with more than half of the images is not held out.

    Args:
        paths: of the images.
        root: the folder that their names are relative to.
        share: of the images that are held out, above 0 and below 1.
        group: a regular expression; images with the same match are a group, or with the same first
            group of the expression if it has groups. "" puts each image into a group of its own.
        seed: gives another choice.
        similar: a number for each of the sorted paths; images with the same one stay together.

    Raises ValueError if `group` is not a regular expression, or there are fewer than two groups.
    """
    ordered = sorted(paths)
    groups = _groups(ordered, root, group, similar)
    if len(groups) < 2:
        what = "image" if not group else f"group of --group {group}"
        raise ValueError(
            f"there is only one {what}, so no val split can be held out: give 'val' in a data YAML"
        )

    # The groups in the order of their hashes; those below the share are held out.
    ranked = sorted((_fraction(names[0], root, seed), names) for names in groups)
    most = len(ordered) / 2
    held_out = [names for fraction, names in ranked if fraction < share and len(names) <= most]
    if not held_out:
        held_out = [min((names for _, names in ranked), key=len)]
    if len(held_out) == len(ranked):
        held_out = [names for _, names in ranked[:-1]]

    val = {name for names in held_out for name in names}
    train = [name for names in groups for name in names if name not in val]
    return HeldOut(sorted(train), sorted(val))


def _groups(
    paths: Sequence[str], root: Path, group: str, similar: Sequence[int]
) -> list[list[str]]:
    """Return the images of each group, in the order of the paths; similar: as in `hold_out`."""
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise ValueError(f"--group '{group}' is not a regular expression: {error}") from None

    joined = Groups(len(paths))
    first_of: dict[str | int, int] = {}  # the first image of each match, and of each similar group
    for index, path in enumerate(paths):
        match = pattern.search(_name(path, root)) if group else None
        if match is not None:
            key = match[1] if pattern.groups else match[0]
            joined.join(first_of.setdefault(key, index), index)
        if similar:
            joined.join(first_of.setdefault(similar[index], index), index)

    groups = defaultdict(list)
    for path, number in zip(paths, joined.numbers(), strict=True):
        groups[number].append(path)
    return list(groups.values())


def _name(path: str, root: Path) -> str:
    """Return the path of an image relative to the root, with slashes on every system."""
    return os.path.relpath(path, root).replace(os.sep, "/")


def _fraction(path: str, root: Path, seed: int) -> float:
    """Return a number in [0, 1) that depends on the seed and the name of an image only."""
    digest = hashlib.sha256(f"{seed} {_name(path, root)}".encode(errors="surrogateescape"))
    return int.from_bytes(digest.digest()[:8], "big") / 2**64
