"""Boxes of images as NumPy arrays [..., 4]: x1, y1, x2, y2, in the same pixels as their regions."""

import numpy as np
from numpy.typing import NDArray

from utils.images.letterbox import Region


def clip_boxes(boxes_xyxy: NDArray[np.float64], region: Region) -> NDArray[np.float64]:
    """Return the parts of boxes [..., 4] inside a region. Those of boxes outside it have no area.

    >>> clip_boxes(np.array([[-5.0, 2.0, 3.0, 20.0], [7.0, 0.0, 9.0, 1.0]]), (0, 0, 6, 10)).tolist()
    [[0.0, 2.0, 3.0, 10.0], [6.0, 0.0, 6.0, 1.0]]
    """
    x1, y1, x2, y2 = region
    low = np.array((x1, y1, x1, y1), np.float64)
    high = np.array((x2, y2, x2, y2), np.float64)
    return np.minimum(np.maximum(boxes_xyxy, low), high)  # faster than np.clip


def box_areas(boxes_xyxy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the areas of boxes [N, 4], 0 for one whose corners are swapped."""
    width = (boxes_xyxy[:, 2] - boxes_xyxy[:, 0]).clip(0)
    height = (boxes_xyxy[:, 3] - boxes_xyxy[:, 1]).clip(0)
    return width * height
