"""Compute the outline of the visible part of a shape from its mask."""

from __future__ import annotations

import numpy as np

from utils.images.opencv import cv2


def outline_of(visible: np.ndarray) -> np.ndarray:
    """Return the outline [P, 2] of a mask, bool [S, S], with at least one pixel; its extent is
    exactly the mask's.

    Separate pieces are joined to one outline by bridges without width; holes are left out.
    """
    rows, columns = np.flatnonzero(visible.any(1)), np.flatnonzero(visible.any(0))
    x1, x2, y1, y2 = columns[0], columns[-1] + 1, rows[0], rows[-1] + 1
    if x2 - x1 < 2 or y2 - y1 < 2:
        return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float64)
    crop = visible[y1:y2, x1:x2].astype(np.uint8)
    pieces, _ = cv2.findContours(crop, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    points = _join([cv2.approxPolyDP(piece, 0.6, True)[:, 0] for piece in pieces])
    # OpenCV's outlines go through pixel centres, from 0 to extent - 1: half a pixel is missing on
    # each side.
    x = np.interp(points[:, 0], (points[:, 0].min(), points[:, 0].max()), (x1, x2))
    y = np.interp(points[:, 1], (points[:, 1].min(), points[:, 1].max()), (y1, y2))
    return np.stack([x, y], 1)


def _join(pieces: list[np.ndarray]) -> np.ndarray:
    """Return one closed line through all pieces that connects their first points and goes back the
    same way.
    """
    forward = [np.concatenate([piece, piece[:1]]) for piece in pieces]
    back = [piece[:1] for piece in pieces[-2:0:-1]]
    return np.concatenate(forward + back) if len(pieces) > 1 else pieces[0]
