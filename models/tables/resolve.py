"""One model of a table: scale, classes, channels and anchors filled in, and all of it checked."""

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.tables.entries import (
    KEYS,
    Anchors,
    plain_anchors,
    plain_batch_norm,
    plain_channel_multiple,
    plain_class_groups,
    plain_distillation,
    plain_letterbox,
)
from models.tables.find import family_files, name_prefix, names_in
from models.tables.rows import MAX_NUMBER, all_rows, parse_rows, scale_number, with_scale
from models.tables.values import is_positive, is_whole
from utils.printable import excerpt

MAX_MULTIPLE = 100


def resolve(
    table: Mapping[str, Any],
    scale: str | None,
    num_classes: int | None,
    *,
    channels: int = 3,
    anchors: Anchors | None = None,
) -> dict[str, Any]:
    """Return the table of one model: scale, classes, channels and anchors filled in, rows checked.

    Only the form of the rows is checked.

    Args:
        table: of a family or of one model, as `load_model_table` returns it.
        scale: one of the family's; None for a table of one model.
        num_classes: written as `nc`.
        channels: of the images, written as `ch`.
        anchors: pixels as in the YAML, one list w, h, w, h, ... per level; or a number per level,
            to be fitted to data; None for the table's own. Ignored for a table without anchors.

    Raises: ValueError for an unknown or missing key, an unknown scale, or a value out of range.
    """
    source = str(table.get("source", "model table"))
    check_keys(table, source)
    depth, width, max_channels = multiples(table, scale, source)

    if not is_whole(num_classes, 1) or not is_whole(channels, 1):
        given = f"{num_classes} and {channels}"
        raise ValueError(
            f"{source}: a model needs 1 or more classes and image channels, got {given}"
        )
    if table.get("ch") not in (None, channels):
        wanted = reprlib.repr(table["ch"])
        raise ValueError(f"{source}: `ch` is {wanted}, but the images have {channels} channels")

    optional: dict[str, Any] = {}
    if max_channels is not None:
        optional["max_channels"] = max_channels
    if table.get("channel_multiple") is not None:
        optional["channel_multiple"] = plain_channel_multiple(table["channel_multiple"], source)
    if table.get("batch_norm") is not None:
        optional["batch_norm"] = plain_batch_norm(table["batch_norm"], source)
    if "anchors" in table:
        chosen = table["anchors"] if anchors is None else anchors
        optional["anchors"] = plain_anchors(chosen, source)
    letterbox = plain_letterbox(table.get("letterbox"), source)
    if letterbox != "center":
        optional["letterbox"] = letterbox
    if table.get("class_groups") is not None:
        optional["class_groups"] = plain_class_groups(table, source)
    if table.get("distillation") is not None:
        optional["distillation"] = plain_distillation(table["distillation"], source)

    resolved = {
        "source": source,
        "nc": num_classes,
        "ch": channels,
        "depth_multiple": depth,
        "width_multiple": width,
        **optional,
        "backbone": with_scale(table["backbone"], scale),
        "head": with_scale(table["head"], scale),
    }
    if table.get("auxiliary"):
        resolved["auxiliary"] = with_scale(table["auxiliary"], scale)
    check_depth(resolved)
    return resolved


def check_depth(resolved: Mapping[str, Any]) -> None:
    """Raise ValueError for a malformed row, and for more than MAX_NUMBER rows or layers."""
    source = resolved["source"]
    rows = len(all_rows(resolved))
    if rows > MAX_NUMBER:
        raise ValueError(f"{source}: {rows:,} rows, at most {MAX_NUMBER} are allowed")

    depth = resolved["depth_multiple"]
    layers = sum(scale_number(row.number, depth) for row in parse_rows(resolved))
    if layers > MAX_NUMBER:
        limit = f"at most {MAX_NUMBER} are allowed"
        raise ValueError(f"{source}: {layers:,} layers with all repeats, {limit}")


def check_keys(table: Mapping[str, Any], source: str) -> None:
    """Raise ValueError for an unknown key, a bad `nc` or `ch`, or missing rows or anchors."""
    unknown = [excerpt(str(key)) for key in table if key not in KEYS]
    if unknown:
        allowed = ", ".join(KEYS[1:])
        raise ValueError(f"{source}: unknown keys {', '.join(unknown[:10])}; allowed are {allowed}")

    for key in ("nc", "ch"):
        value = table.get(key)
        if value is not None and not is_whole(value, 1):
            given = reprlib.repr(value)
            raise ValueError(f"{source}: `{key}` is {given}, but must be a whole number, 1 or more")

    for key in ("backbone", "head", "auxiliary"):
        is_left_out = key == "auxiliary" and table.get(key) is None
        if not is_left_out and not isinstance(table.get(key), list):
            raise ValueError(
                f"{source}: `{key}` must be a list of rows [from, number, module, args]"
            )

    if "anchors" not in table and any(_names_anchors(row) for row in all_rows(table)):
        wanted = "one list w, h, w, h, ... per level, or a number per level"
        raise ValueError(f"{source}: `anchors` is missing: {wanted}")


def _names_anchors(row: Any) -> bool:
    """Whether a row, which is not checked yet, has the word `anchors` among its args."""
    if not isinstance(row, (list, tuple)) or not row:
        return False

    args = row[-1]
    if not isinstance(args, (list, tuple)):
        return False
    return any(isinstance(arg, str) and arg == "anchors" for arg in args)


def multiples(
    table: Mapping[str, Any], scale: str | None, source: str
) -> tuple[float, float, int | None]:
    """Return the depth and width multiples of a table's scale, and its max channels.

    The max channels are None for no limit.

    Raises: ValueError if the scale is unknown or missing, if a multiple is not a positive number up
    to MAX_MULTIPLE, or if the max channels are not a whole number.
    """
    values = _scale_values(table, scale, source)
    two_or_three = isinstance(values, list) and 2 <= len(values) <= 3
    if not two_or_three or not all(is_positive(value) for value in values[:2]):
        given = reprlib.repr(values)
        raise ValueError(
            f"{source}: depth and width multiple must be two positive numbers, got {given}"
        )

    depth, width = values[:2]
    if max(depth, width) > MAX_MULTIPLE:
        limit = f"at most {MAX_MULTIPLE} is allowed"
        raise ValueError(f"{source}: depth and width multiple are {values[:2]}, {limit}")

    max_channels: int | None = None
    if len(values) == 3:
        if not is_whole(values[2], 1):
            given = reprlib.repr(values[2])
            raise ValueError(
                f"{source}: the most channels must be a whole number, 1 or more, got {given}"
            )
        max_channels = values[2]
    return float(depth), float(width), max_channels


def _scale_values(table: Mapping[str, Any], scale: str | None, source: str) -> Any:
    """Return [depth, width] or [depth, width, max channels] of a scale, not checked yet.

    Raises: ValueError if the table has scales, and not this one.
    """
    if "scales" not in table:
        values = [table.get("depth_multiple"), table.get("width_multiple")]
        if "max_channels" in table:
            values.append(table["max_channels"])
        return values

    scales = table["scales"]
    if not isinstance(scales, Mapping):
        raise ValueError(f"{source}: `scales` must be a mapping from a name to [depth, width]")

    if scale not in scales:
        if scale is not None:
            hint = f"got {scale!r}"
        elif source.startswith("models/"):
            prefix = name_prefix(Path(source))
            names = []
            for file in family_files():
                if name_prefix(file) == prefix:
                    names += names_in(file)
            hint = f"choose one of {', '.join(names)}"
        else:
            hint = (
                "give depth_multiple and width_multiple instead, as the table is given by its path"
            )
        known = ", ".join(excerpt(str(name)) for name in list(scales)[:20])
        raise ValueError(f"{source}: the table has the scales {known}; {hint}")
    return scales[scale]
