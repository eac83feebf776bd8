"""Compute the outline of the visible part of a shape from its mask."""

from __future__ import annotations

import numpy as np

from utils.images.opencv import cv2


def outline_of(visible: np.ndarray) -> np.ndarray:
    """Return the outline [P, 2] of a mask, bool [S, S], with at least one pixel.

    Its extent is exactly the mask's. Separate pieces are joined to one outline by bridges without
    width; holes are left out.
    """
    # The box of the mask.
    columns = np.flatnonzero(visible.any(0))
    rows = np.flatnonzero(visible.any(1))
    x1 = columns[0]
    x2 = columns[-1] + 1
    y1 = rows[0]
    y2 = rows[-1] + 1
    if x2 - x1 < 2 or y2 - y1 < 2:
        return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float64)

    crop = visible[y1:y2, x1:x2].astype(np.uint8)
    pieces, _ = cv2.findContours(crop, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    simpler = [cv2.approxPolyDP(piece, 0.6, True)[:, 0] for piece in pieces]
    points = _join(simpler)

    # OpenCV's outlines go through pixel centers, from 0 to extent - 1: half a pixel is missing on
    # each side.
    x, y = points.T
    stretched_x = np.interp(x, (x.min(), x.max()), (x1, x2))
    stretched_y = np.interp(y, (y.min(), y.max()), (y1, y2))
    return np.stack([stretched_x, stretched_y], 1)


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    """Return one closed line through all pieces.

    It connects their first points and goes back the same way.
    """
    if len(pieces) == 1:
        return pieces[0]
    forward = [np.concatenate([piece, piece[:1]]) for piece in pieces]
    back = [piece[:1] for piece in pieces[-2:0:-1]]
    return np.concatenate(forward + back)
