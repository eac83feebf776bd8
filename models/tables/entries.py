"""The entries of a table besides its rows: each is checked, and returned as plain values."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from models.tables.rows import MAX_CHANNELS, MAX_NUMBER
from models.tables.values import is_list, is_positive, is_whole
from utils.images.letterbox import LETTERBOXES, Letterbox

# in pixels; far from the limits of float32
SMALLEST_ANCHOR = 1e-3
LARGEST_ANCHOR = 100_000
KEYS = (
    "source",
    "nc",
    "ch",
    "scales",
    "depth_multiple",
    "width_multiple",
    "max_channels",
    "channel_multiple",
    "batch_norm",
    "anchors",
    "letterbox",
    "class_groups",
    "distillation",
    "backbone",
    "head",
    "auxiliary",
)
Anchors = int | Sequence[Sequence[float]]


def plain_channel_multiple(value: Any, source: str) -> int:
    """Return the `channel_multiple` of a table.

    Raises: ValueError unless it is a whole number of 1 to MAX_NUMBER.
    """
    if not is_whole(value, 1) or value > MAX_NUMBER:
        given = reprlib.repr(value)
        allowed = f"must be a whole number, 1 to {MAX_NUMBER}"
        raise ValueError(f"{source}: `channel_multiple` is {given}, but {allowed}")
    return int(value)


def plain_batch_norm(value: Any, source: str) -> dict[str, float]:
    """Return the `eps` and `momentum` of a table's `batch_norm`.

    Raises: ValueError unless both are given, above 0 and at most 1.

    >>> plain_batch_norm({"momentum": 1, "eps": 1e-5}, "table.yaml")
    {'eps': 1e-05, 'momentum': 1.0}
    """
    names = ("eps", "momentum")
    has_both = isinstance(value, Mapping) and value.keys() == set(names)
    if not has_both or not all(is_positive(value[name]) and value[name] <= 1 for name in names):
        given = reprlib.repr(value)
        wanted = "{eps: ..., momentum: ...}, both above 0 and at most 1"
        raise ValueError(f"{source}: `batch_norm` must be {wanted}, got {given}")
    return {name: float(value[name]) for name in names}


def plain_anchors(anchors: Any, source: str) -> int | list[list[float]]:
    """Return anchors as a number per level, or as one list w, h, w, h, ... in pixels per level.

    All lists have the same length.

    Raises: ValueError for anything else.

    >>> plain_anchors([[10, 13, 16, 30], (30, 61, 62, 45)], "table.yaml")
    [[10.0, 13.0, 16.0, 30.0], [30.0, 61.0, 62.0, 45.0]]
    """
    given = reprlib.repr(anchors)
    if is_whole(anchors, 1):
        if anchors > MAX_NUMBER:
            limit = f"at most {MAX_NUMBER} are allowed"
            raise ValueError(f"{source}: {given} anchors per level, {limit}")
        return int(anchors)

    levels = list(anchors) if is_list(anchors) else []
    if not levels or not all(is_list(level) for level in levels):
        raise ValueError(
            f"{source}: anchors must be one list w, h, w, h, ... per level, got {given}"
        )

    lengths = [len(level) for level in levels]
    if sum(lengths) > MAX_NUMBER:
        raise ValueError(f"{source}: more than {MAX_NUMBER} anchor sizes")

    sizes = [value for level in levels for value in level]
    if not all(_is_anchor_size(value) for value in sizes):
        wanted = f"positive numbers of pixels, up to {LARGEST_ANCHOR:,}"
        raise ValueError(f"{source}: anchor sizes must be {wanted}, got {given}")

    if lengths[0] % 2 or len(set(lengths)) > 1 or not sizes:
        raise ValueError(
            f"{source}: every level needs the same number of anchors w, h, got {given}"
        )
    return [[float(value) for value in level] for level in levels]


def _is_anchor_size(value: Any) -> bool:
    """Whether `value` is a number of pixels that an anchor can be wide or high."""
    return is_positive(value) and SMALLEST_ANCHOR <= value <= LARGEST_ANCHOR


def plain_letterbox(value: Any, source: str) -> Letterbox:
    """Return where a model takes images on the canvas, the center for None.

    Raises: ValueError for anything but one of LETTERBOXES.
    """
    for letterbox in LETTERBOXES:
        if value == letterbox:
            return letterbox
    if value is not None:
        given = reprlib.repr(value)
        allowed = " or ".join(LETTERBOXES)
        raise ValueError(f"{source}: `letterbox` is {given}, but must be {allowed}")
    return "center"


def plain_class_groups(table: Mapping[str, Any], source: str) -> list[int]:
    """Return the number of classes of each group of a table.

    Raises: ValueError unless they are 2 or more whole numbers that sum to `nc`, and for a table
    with an auxiliary branch.

    >>> plain_class_groups({"class_groups": (2, 1), "nc": 3}, "table.yaml")
    [2, 1]
    """
    groups = table["class_groups"]
    are_listed = is_list(groups) and 2 <= len(groups) <= MAX_NUMBER
    are_whole = are_listed and all(is_whole(group, 1) for group in groups)
    if not are_whole or sum(groups) != table.get("nc"):
        given = reprlib.repr(groups)
        wanted = f"2 or more whole numbers, which sum to `nc`, {reprlib.repr(table.get('nc'))}"
        raise ValueError(f"{source}: `class_groups` must be {wanted}, got {given}")
    if table.get("auxiliary"):
        raise ValueError(f"{source}: `class_groups` and `auxiliary` cannot be used together")
    return list(groups)


def plain_distillation(value: Any, source: str) -> dict[str, list[int]]:
    """Return the `channels` of a table's `distillation`.

    Raises: ValueError unless they are whole numbers, at least one of them above 0.

    >>> plain_distillation({"channels": (0, 64)}, "table.yaml")
    {'channels': [0, 64]}
    """
    channels = value.get("channels") if isinstance(value, Mapping) and len(value) == 1 else None
    numbers = list(channels or []) if is_list(channels) else []
    allowed = all(is_whole(number, 0) and number <= MAX_CHANNELS for number in numbers)
    if not any(numbers) or not allowed:
        given = reprlib.repr(value)
        wanted = f"{{channels: [...]}}, whole numbers up to {MAX_CHANNELS:,}, not all 0"
        raise ValueError(f"{source}: `distillation` must be {wanted}, got {given}")
    return {"channels": numbers}


def without_distillation(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without the projections that its model learns from a teacher with."""
    return {key: value for key, value in table.items() if key != "distillation"}
