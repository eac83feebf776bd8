"""Ground truth and detections as flat arrays: G ground truths, D detections.

Boxes are xywh in pixels, as COCO's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ids = Sequence[int] | np.ndarray

SHOWN_CONFIDENCE = 0.25  # lowest score of a detection in pictures and counts, as in detect.py


@dataclass(frozen=True)
class GroundTruth:
    """The boxes to detect. Crowd boxes are regions: a detection in them is neither right nor wrong.

    areas: decide whether a box is small, medium or large, and may differ from width times height.

    Raises: ValueError if the lengths differ or a number is not finite.
    """

    image_ids: np.ndarray  # int64 [G]
    class_ids: np.ndarray  # int64 [G]
    boxes_xywh: np.ndarray  # float64 [G, 4], pixels
    areas: np.ndarray  # float64 [G], square pixels
    crowd: np.ndarray  # bool [G]

    def __post_init__(self) -> None:
        set_columns(self, {"areas": np.float64, "crowd": np.bool_})


@dataclass(frozen=True)
class Detections:
    """The detected boxes.

    Raises: ValueError if the lengths differ or a number is not finite.
    """

    image_ids: np.ndarray  # int64 [D]
    class_ids: np.ndarray  # int64 [D]
    boxes_xywh: np.ndarray  # float64 [D, 4], pixels
    scores: np.ndarray  # float64 [D], higher is more confident

    def __post_init__(self) -> None:
        set_columns(self, {"scores": np.float64})


def set_columns(record: GroundTruth | Detections, own_columns: Mapping[str, Any]) -> None:
    """Convert each column of a frozen record to its type.

    Raises: ValueError if lengths or shapes differ, or a number is not finite.
    """
    rows = len(record.image_ids)
    record_name = type(record).__name__
    shared_columns = {"image_ids": np.int64, "class_ids": np.int64, "boxes_xywh": np.float64}
    for name, dtype in (shared_columns | dict(own_columns)).items():
        values = np.asarray(getattr(record, name), dtype=dtype)

        shape = (rows, 4) if name == "boxes_xywh" else (rows,)
        if rows == 0:
            values = values.reshape(shape)  # an empty list of boxes is [0], not [0, 4]
        if values.shape != shape:
            raise ValueError(
                f"{record_name}.{name} has shape {values.shape}, but image_ids requires {shape}."
            )

        if values.dtype == np.float64 and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(
                f"{record_name}.{name} row {row} is {values[row]}, but must be finite."
            )
        object.__setattr__(record, name, values)
