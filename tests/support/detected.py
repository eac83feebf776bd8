"""Frames and detections for tests of outputs."""

from collections.abc import Sequence

import numpy as np

from utils.images.detections import Frame, ImageDetections


def found_boxes(
    boxes: Sequence[Sequence[float]] = (), classes: Sequence[int] | None = None
) -> ImageDetections:
    """Detections with scores 0.9, 0.89, ..., of class 0 unless `classes` are given."""
    scores = 0.9 - 0.01 * np.arange(len(boxes))
    ids = np.zeros(len(boxes), np.int64) if classes is None else np.array(classes, np.int64)
    return ImageDetections(np.array(boxes, np.float64).reshape(-1, 4), scores, ids)


def drawn_frame(
    name: str = "a.jpg",
    number: int | None = None,
    *,
    width: int = 64,
    height: int = 48,
    value: int = 128,
) -> Frame:
    """A gray frame; a frame of a video at 12.5 frames per second if it has a number."""
    image = np.full((height, width, 3), value, np.uint8)
    return Frame(image, f"/data/{name}", name, number, 0.0 if number is None else 12.5)
