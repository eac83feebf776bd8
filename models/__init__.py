"""Models: layer tables, the detectors built from them, and their losses; `load` opens a trained
one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.detector import Detector, check_shapes
from models.head_registry import build_loss
from models.losses import LossGains
from models.python_api import load
from models.table import Anchors, load_model_table, resolve

__all__ = ["Detector", "LossGains", "build_loss", "build_model", "load"]


def build_model(
    cfg: str | Path | Mapping[str, Any],
    num_classes: int,
    *,
    channels: int = 3,
    anchors: Anchors | None = None,
) -> Detector:
    """Return a detector with newly initialized weights.

    cfg: a name (`yolov5s.yaml`), a YAML file, or a table that is already loaded; see
    `models.table`. channels: number of image channels. anchors: replaces the table's anchors, if it
    has any: pixels w, h, w, h, ... per level, or a number of anchors per level, which are to be
    fitted to data.

    Raises: ValueError that names the file and the wrong row.
    """
    table, scale = (cfg, None) if isinstance(cfg, Mapping) else load_model_table(cfg)
    resolved = resolve(table, scale, num_classes, channels=channels, anchors=anchors)
    check_shapes(resolved)
    return Detector(resolved)
