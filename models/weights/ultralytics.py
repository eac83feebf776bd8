"""Ultralytics' models with heads of distances under Kestrel's names.

These are YOLOv5u, YOLOv8, YOLO11 and YOLO26.
"""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

from models.weights.pickled_module import ExternalCheckpoint

NESTED_SCALES = {"m", "l", "x"}  # whose C3k2 blocks are nested whatever their row says
ONE_TO_ONE = re.compile(r"model\.\d+\.one2one_")
BRANCHES = {
    "cv2": "branches.sides",
    "cv3": "branches.classes",
    "one2one_cv2": "one_to_one.sides",
    "one2one_cv3": "one_to_one.classes",
}
SEPARABLE = {"0": "dconv", "1": "pconv"}


def owns(external: ExternalCheckpoint) -> bool:
    """Whether a checkpoint's model has a head of distances."""
    for branch in ("cv2", "cv3"):
        weight = external.state.get(f"model.{external.last_layer}.{branch}.0.2.weight")
        if weight is None or weight.ndim != 4:
            return False
    return True


def table_entries(external: ExternalCheckpoint) -> dict[str, Any]:
    """Return the entries of its model table: multiples, backbone, head.

    Raises ValueError for a table that has no such entries, and for bins that do not stand for 0, 1,
    2, ...
    """
    table = external.table
    scale = table.get("scale")
    backbone = _rows(table, "backbone")
    head = _rows(table, "head")

    # Large models nest the blocks of all C3k2.
    if isinstance(scale, str) and scale in NESTED_SCALES:
        for row in (*backbone, *head):
            if row[2] == "C3k2":
                args = row[3]
                row[3] = [*args[:1], True, *args[2:]]

    # The last row is the head, whose arguments the tensors tell.
    sources = head[-1][0]
    head[-1] = [sources, 1, *_head_and_args(external)]
    return _multiples(table, scale) | {"backbone": backbone, "head": head}


def _head_and_args(external: ExternalCheckpoint) -> tuple[str, list[Any]]:
    """Return the name of the head and its args, as rows of our tables have them."""
    state = external.state
    prefix = f"model.{external.last_layer}"
    is_dual = any(ONE_TO_ONE.match(key) for key in state)
    name = "DualDistanceDetect" if is_dual else "DistanceDetect"

    bins = len(state[f"{prefix}.cv2.0.2.weight"]) // 4
    distances = state.get(f"{prefix}.dfl.conv.weight")
    if distances is not None:
        expected = range(min(bins, distances.numel() + 1))  # `bins` may be any number here
        if distances.flatten().tolist() != list(expected):
            raise ValueError(f"its {bins} bins of a distance do not stand for 0 to {bins - 1}")

    is_separable = f"{prefix}.cv3.0.0.0.conv.weight" in state
    return name, ["nc", bins, is_separable]


def _rows(table: Mapping[str, Any], part: str) -> list[list[Any]]:
    """Return copies of the rows of a part of the table."""
    rows = table.get(part)
    if not isinstance(rows, list) or not rows or not all(_is_row(row) for row in rows):
        raise ValueError(
            f"`{part}` of its table is not a list of rows [from, number, module, args]"
        )
    return [list(row) for row in rows]


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 4:
        return False
    return isinstance(row[2], str) and isinstance(row[3], list)


def _multiples(table: Mapping[str, Any], scale: Any) -> dict[str, Any]:
    """Return the multiples and most channels of a table's scale, or else of the table itself."""
    scales = table.get("scales")
    if isinstance(scales, dict) and isinstance(scale, str) and scale in scales:
        values = scales[scale]
    else:
        values = [table.get("depth_multiple", 1.0), table.get("width_multiple", 1.0)]
    if not isinstance(values, list) or not 2 <= len(values) <= 3:
        given = reprlib.repr(values)
        raise ValueError(f"its scale is {given}, but must be [depth, width, most channels]")
    return dict(zip(("depth_multiple", "width_multiple", "max_channels"), values, strict=False))


def renamed(key: str, head: int) -> str:
    """Return the name of a tensor or layer in a Detector; "" for a constant that it does not have.

    That is what the bins stand for. head: the number of the last layer.

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
