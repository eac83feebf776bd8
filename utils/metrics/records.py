"""Ground truth and detections as flat arrays: G ground truths, D detections. Boxes are xywh in
pixels, as COCO's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class GroundTruth:
    """The boxes to detect. Crowd boxes are regions: a detection in them is neither right nor wrong.

    image_ids, class_ids: int64 [G]. boxes_xywh: float64 [G, 4], pixels. areas: float64 [G], square
    pixels, which decide whether a box is small, medium or large, and may differ from width times
    height. crowd: bool [G]. Raises: ValueError if the lengths differ or a number is not finite.
    """

    image_ids: np.ndarray
    class_ids: np.ndarray
    boxes_xywh: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray

    def __post_init__(self) -> None:
        set_columns(self, {"areas": np.float64, "crowd": np.bool_})


@dataclass(frozen=True)
class Detections:
    """The detected boxes.

    image_ids, class_ids: int64 [D]. boxes_xywh: float64 [D, 4], pixels. scores: float64 [D], higher
    is more confident. Raises: ValueError if the lengths differ or a number is not finite.
    """

    image_ids: np.ndarray
    class_ids: np.ndarray
    boxes_xywh: np.ndarray
    scores: np.ndarray

    def __post_init__(self) -> None:
        set_columns(self, {"scores": np.float64})


def set_columns(record: GroundTruth | Detections, own_columns: Mapping[str, Any]) -> None:
    """Convert each column of a frozen record to its type.

    Raises: ValueError if lengths or shapes differ, or a number is not finite.
    """
    rows = len(record.image_ids)
    shared_columns = {"image_ids": np.int64, "class_ids": np.int64, "boxes_xywh": np.float64}
    for name, dtype in (shared_columns | dict(own_columns)).items():
        values = np.asarray(getattr(record, name), dtype=dtype)
        shape = (rows, 4) if name == "boxes_xywh" else (rows,)
        if rows == 0:
            values = values.reshape(shape)
        if values.shape != shape:
            raise ValueError(
                f"{type(record).__name__}.{name} has shape {values.shape}, but image_ids requires "
                f"{shape}."
            )
        if values.dtype == np.float64 and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(
                f"{type(record).__name__}.{name} row {row} is {values[row]}, but must be finite."
            )
        object.__setattr__(record, name, values)
