"""Choose the images of a val split where a data set has none."""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from data.images import IMAGE_FOLDERS
from data.layouts.similar import Groups
from utils.printable import printable


class HeldOut(NamedTuple):
    """The paths of two splits. wanted: images of `val`, if none had to stay together."""

    train: list[str]
    val: list[str]
    wanted: int


def hold_out(
    names: Mapping[str, str],
    *,
    share: float,
    group: str = "",
    seed: int = 0,
    similar: Sequence[int] = (),
) -> HeldOut:
    """Return the images of a train split, and this share of all, rounded, for a val split.

    At least one image is in each. The images of a group stay together, and `val` is then as near to
    the share as `_chosen` gets. Groups are chosen in the order of their hashes, which depend on the
    seed and on the first of a group's names. So images that are added later change few sides: those
    of the groups that they join, and of about as many others as they displace.

    Args:
        names: of the images, by their paths; those below the data set's folder, with slashes.
        share: of the images that are held out, above 0 and below 1.
        group: a regular expression; images with the same match are a group, or with the same first
            group of the expression if it has groups. "" puts each image into a group of its own.
        seed: gives another choice.
        similar: a number for each of the sorted paths; images with the same one stay together.

    Raises ValueError if `group` is not a regular expression or matches no name, or there are fewer
    than two groups.
    """
    paths = sorted(names)
    groups = _groups(paths, names, group, similar)
    if len(groups) < 2:
        what = "there is only one image"
        if len(paths) > 1:
            what = f"all {len(paths):,} images are nearly identical"
        if group:
            what = f"there is only one group of --group {group}"
        raise ValueError(f"{what}, so no val split can be held out: give 'val' in a data YAML")

    rounded = math.floor(share * len(paths) + 0.5)
    wanted = min(max(rounded, 1), len(paths) - 1)
    ranked = sorted(groups, key=lambda members: _fraction(_key(names[members[0]]), seed))
    val = {path for members in _chosen(ranked, wanted) for path in members}
    train = [path for path in paths if path not in val]
    return HeldOut(train, sorted(val), wanted)


def _chosen(ranked: Sequence[list[str]], wanted: int) -> list[list[str]]:
    """Return groups that have about `wanted` images together: at least one, and not all.

    Each group is taken that still fits, from the first on. One more is, if that comes nearer: the
    one that comes nearest.

    >>> _chosen([["a", "b"], ["c"], ["d", "e", "f"], ["g"]], 4)
    [['a', 'b'], ['c'], ['g']]
    >>> _chosen([["a", "b", "c"], ["d", "e"]], 1)
    [['d', 'e']]
    """
    chosen = []
    left = []
    missing = wanted
    for members in ranked:
        if len(members) <= missing:
            chosen.append(members)
            missing -= len(members)
        else:
            left.append(members)

    nearest = min(left, key=len)
    is_nearer = len(nearest) - missing < missing
    if not chosen or (is_nearer and len(left) > 1):
        chosen.append(nearest)
    return chosen


def _groups(
    paths: Sequence[str], names: Mapping[str, str], group: str, similar: Sequence[int]
) -> list[list[str]]:
    """Return the paths of each group, in their order.

    Args:
        paths: of all images, sorted.
        names: as in `hold_out`, like the following.
        group: the regular expression.
        similar: a number for each path.
    """
    try:
        pattern = re.compile(group)
    except re.error as error:
        raise ValueError(f"--group '{group}' is not a regular expression: {error}") from None

    matches = 0
    joined = Groups(len(paths))
    first_of: dict[str | int, int] = {}  # the first image of each match, and of each similar group
    for index, path in enumerate(paths):
        match = pattern.search(names[path]) if group else None
        if match is not None:
            matches += 1
            key = match[1] if pattern.groups else match[0]
            joined.join(first_of.setdefault(key, index), index)
        if similar:
            joined.join(first_of.setdefault(similar[index], index), index)

    if group and paths and not matches:
        shown = printable(names[paths[0]])
        raise ValueError(f"--group '{group}' matches no image name, such as {shown}")

    groups = defaultdict(list)
    for path, number in zip(paths, joined.numbers(), strict=True):
        groups[number].append(path)
    return list(groups.values())


def _key(name: str) -> str:
    """Return the name of an image without the folders that only say that images are in them.

    So the choice is the same if such a folder is given in place of the data set's.

    >>> _key("images/street/a.jpg"), _key("street/images.jpg")
    ('street/a.jpg', 'street/images.jpg')
    """
    *folders, file = name.split("/")
    kept = [folder for folder in folders if folder.casefold() not in IMAGE_FOLDERS]
    return "/".join([*kept, file])


def _fraction(name: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on the seed and the name of an image only."""
    digest = hashlib.sha256(f"{seed} {name}".encode(errors="surrogateescape"))
    return int.from_bytes(digest.digest()[:8], "big") / 2**64
