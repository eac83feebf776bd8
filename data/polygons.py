"""Polygons against rectangles. A polygon is its corners in order, float [P, 2]."""

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


def clip(points: Points, region: tuple[float, float, float, float]) -> Points:
    """The part of a polygon inside the rectangle x1, y1, x2, y2; empty [0, 2] if there is none.

    Source: Sutherland and Hodgman, Reentrant Polygon Clipping (1974).

    >>> clip(np.array([[0., 0.], [4., 0.], [4., 4.], [0., 4.]]), (2, 2, 9, 9)).tolist()
    [[4.0, 2.0], [4.0, 4.0], [2.0, 4.0], [2.0, 2.0]]
    """
    x1, y1, x2, y2 = region
    if len(points) == 0 or ((points >= (x1, y1)) & (points <= (x2, y2))).all():
        return points
    for axis, sign, limit in ((0, 1, x1), (1, 1, y1), (0, -1, -x2), (1, -1, -y2)):
        points = _half_plane(points, points[:, axis] * sign - limit)
        if len(points) == 0:
            break
    return points


def _half_plane(points: Points, distance: NDArray[np.float64]) -> Points:
    """The part of the polygon where the signed distance of its corners, [P], is not negative."""
    following, beyond = np.roll(points, -1, 0), np.roll(distance, -1)
    inside = distance >= 0
    crosses = inside != (beyond >= 0)
    share = distance / np.where(crosses, distance - beyond, 1)
    crossing = points + share[:, None] * (following - points)
    both = np.stack([points, crossing], 1).reshape(-1, 2)  # each corner, then the crossing on its way to the next
    return both[np.stack([inside, crosses], 1).reshape(-1)]


def box_inside(points: Points, width: float, height: float) -> NDArray[np.float64]:
    """x1, y1, x2, y2 around what the rectangle (0, 0, width, height) shows of a polygon; zeros if nothing.

    Exact for concave polygons too: the shape's extremes are ends of edges cut at the rectangle, or its corners.

    >>> box_inside(np.array([[-5., 5.], [5., -5.], [5., 5.]]), 10, 10).tolist()
    [0.0, 0.0, 5.0, 5.0]
    """
    if len(points) < 3:
        return np.zeros(4)
    low, high = points.min(0), points.max(0)
    if (low >= 0).all() and high[0] <= width and high[1] <= height:
        return np.concatenate([low, high])
    corners = np.array([[0.0, 0.0], [width, 0.0], [width, height], [0.0, height]])
    seen = np.concatenate([_cut_edges(points, width, height), corners[_contains(points, corners)]])
    if len(seen) == 0:
        return np.zeros(4)
    return np.concatenate([seen.min(0), seen.max(0)])


def _cut_edges(points: Points, width: float, height: float) -> Points:
    """Both ends of every edge's part inside the rectangle. Source: Liang and Barsky (1984)."""
    move = np.roll(points, -1, 0) - points
    enter, leave = np.zeros(len(points)), np.ones(len(points))
    outside = np.zeros(len(points), bool)
    for axis, limit in ((0, width), (1, height)):
        for speed, room in ((-move[:, axis], points[:, axis]), (move[:, axis], limit - points[:, axis])):
            at = room / np.where(speed == 0, 1, speed)
            outside |= (speed == 0) & (room < 0)
            enter = np.where(speed < 0, np.maximum(enter, at), enter)
            leave = np.where(speed > 0, np.minimum(leave, at), leave)
    kept = ~outside & (enter <= leave)
    first = points[kept] + enter[kept, None] * move[kept]
    last = points[kept] + leave[kept, None] * move[kept]
    return np.concatenate([first, last]).clip(0, [width, height])


def _contains(points: Points, queries: Points) -> NDArray[np.bool_]:
    """Whether each query point [Q, 2] lies inside the polygon, by counting the edges to its right."""
    x1, y1 = points.T[:, None]
    x2, y2 = np.roll(points, -1, 0).T[:, None]
    x, y = queries[:, :1], queries[:, 1:]
    spans = (y1 > y) != (y2 > y)
    crossing = x1 + (y - y1) * (x2 - x1) / np.where(y2 == y1, 1, y2 - y1)
    return (spans & (x < crossing)).sum(1) % 2 == 1
