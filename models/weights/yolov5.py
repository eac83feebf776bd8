"""YOLOv5's models: their tables and tensors under Kestrel's names."""

import re
from typing import Any

from models.tables.entries import KEYS
from models.weights.pickled_module import ExternalCheckpoint


def owns(external: ExternalCheckpoint) -> bool:
    """Whether a checkpoint's model has YOLOv5's head, the one with anchors."""
    return external.anchors_px is not None


def table_entries(external: ExternalCheckpoint) -> dict[str, Any]:
    """Return the entries of its model table, with the anchors in the model's state.

    Unknown keys are left out: the shapes of the tensors or the activations show whatever they could
    change.
    """
    table = external.table
    entries = {key: table[key] for key in KEYS if key in table and key != "scales"}

    entries["anchors"] = []
    if external.anchors_px is not None:
        entries["anchors"] = external.anchors_px.flatten(1).tolist()
    return entries


def renamed(key: str, head: int) -> str:
    """Return the name of a tensor or layer in a Detector; "" for anchors.

    The reader has converted these to pixels; anchor_grid, in releases before 6.0, only repeats
    them. head: the number of the last layer.

    >>> renamed("model.24.m.0.bias", 24), renamed("model.24.anchor_grid", 24)
    ('layers.24.m.0.bias', '')
    """
    if key in (f"model.{head}.anchors", f"model.{head}.anchor_grid"):
        return ""
    return re.sub(r"^model\.", "layers.", key)
