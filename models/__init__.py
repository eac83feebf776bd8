"""Models: tables of layers, built into detectors, and the losses that train them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.detector import Detector, check_shapes
from models.heads.registry import build_loss
from models.losses import LossGains
from models.table import Anchors, find_model, resolve

__all__ = ["Detector", "LossGains", "build_loss", "build_model"]


def build_model(
    cfg: str | Path | Mapping[str, Any],
    num_classes: int,
    *,
    channels: int = 3,
    anchors: Anchors | None = None,
) -> Detector:
    """A detector with fresh weights.

    cfg: a name (`yolov5s.yaml`), a YAML file, or a table already read; see `models.table`.
    channels: of the images.
    anchors: in place of the table's, if it has any; pixels w, h, w, h, ... per level, or a number per level to be
    fitted to data.

    Raises: ValueError that names the file and row at fault.
    """
    table, scale = (cfg, None) if isinstance(cfg, Mapping) else find_model(cfg)
    resolved = resolve(table, scale, num_classes, channels=channels, anchors=anchors)
    check_shapes(resolved)
    return Detector(resolved)
