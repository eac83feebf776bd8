"""Ultralytics' models with heads of distances (YOLOv5u, YOLOv8, YOLO11, YOLO26) under Kestrel's
names.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from models.weights.pickled_module import ExternalCheckpoint

NESTED_SCALES = {"m", "l", "x"}  # whose C3k2 blocks are nested whatever their row says
ONE_TO_ONE = re.compile(r"model\.\d+\.one2one_")
BRANCHES = {"cv2": "branches.sides", "cv3": "branches.classes"}
BRANCHES |= {"one2one_cv2": "one_to_one.sides", "one2one_cv3": "one_to_one.classes"}
SEPARABLE = {"0": "dconv", "1": "pconv"}


def owns(external: ExternalCheckpoint) -> bool:
    """Whether a checkpoint's model has a head of distances."""
    outputs = [
        external.state.get(f"model.{external.last_layer}.{branch}.0.2.weight")
        for branch in ("cv2", "cv3")
    ]
    return all(weight is not None and weight.ndim == 4 for weight in outputs)


def table_entries(external: ExternalCheckpoint) -> dict[str, Any]:
    """Return the entries of its model table: multiples, backbone, head.

    Raises ValueError for a table that has no such entries, and for bins that do not stand for 0, 1,
    2, ...
    """
    table, state, head = external.table, external.state, external.last_layer
    scale, rows = table.get("scale"), [_rows(table, part) for part in ("backbone", "head")]
    for row in (*rows[0], *rows[1]):
        if row[2] == "C3k2" and isinstance(scale, str) and scale in NESTED_SCALES:
            row[3] = [*row[3][:1], True, *row[3][2:]]
    kind = "DualDistanceDetect" if any(ONE_TO_ONE.match(key) for key in state) else "DistanceDetect"
    bins = len(state[f"model.{head}.cv2.0.2.weight"]) // 4
    stand_for = state.get(f"model.{head}.dfl.conv.weight")
    if stand_for is not None and stand_for.flatten().tolist() != list(
        range(min(bins, stand_for.numel() + 1))
    ):
        raise ValueError(f"its {bins} bins of a distance do not stand for 0 to {bins - 1}")
    separable = f"model.{head}.cv3.0.0.0.conv.weight" in state
    rows[1][-1] = [rows[1][-1][0], 1, kind, ["nc", bins, separable]]
    return _multiples(table, scale) | {"backbone": rows[0], "head": rows[1]}


def _rows(table: Mapping[str, Any], part: str) -> list[list[Any]]:
    rows = table.get(part)
    if not isinstance(rows, list) or not rows or not all(_is_row(row) for row in rows):
        raise ValueError(
            f"`{part}` of its table is not a list of rows [from, number, module, args]"
        )
    return [list(row) for row in rows]


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[2], str)
        and isinstance(row[3], list)
    )


def _multiples(table: Mapping[str, Any], scale: Any) -> dict[str, Any]:
    """Return the multiples and most channels of a table's scale, or those that stand in the table
    itself.
    """
    scales = table.get("scales")
    if isinstance(scales, dict) and isinstance(scale, str) and scale in scales:
        values = scales[scale]
    else:
        values = [table.get("depth_multiple", 1.0), table.get("width_multiple", 1.0)]
    if not isinstance(values, list) or not 2 <= len(values) <= 3:
        raise ValueError(
            f"its scale is {reprlib.repr(values)}, but must be [depth, width, most channels]"
        )
    return dict(zip(("depth_multiple", "width_multiple", "max_channels"), values, strict=False))


def renamed(key: str, head: int) -> str:
    """Return the name of a tensor or layer in a Detector; "" for what the bins stand for, which is
    constant.

    head: the number of the last layer.

    >>> renamed("model.23.cv3.0.1.0.conv.weight", 23)
    'layers.23.branches.classes.0.1.dconv.conv.weight'
    >>> renamed("model.23.one2one_cv2.2.0.bn.bias", 23), renamed("model.23.dfl.conv.weight", 23)
    ('layers.23.one_to_one.sides.2.0.bn.bias', '')
    """
    number, _, rest = key.removeprefix("model.").partition(".")
    if number != str(head):
        return f"layers.{number}.{rest}".rstrip(".")
    branch, _, rest = rest.partition(".")
    if branch == "dfl":
        return ""
    parts = rest.split(".")
    if branch.endswith("cv3") and len(parts) > 3 and parts[2] in SEPARABLE:
        parts[2] = SEPARABLE[parts[2]]
    return ".".join(["layers", number, BRANCHES.get(branch, branch), *parts])
