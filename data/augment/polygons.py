"""Clip polygons to convex windows.

A polygon is a list of its corners in order, float [P, 2], in either direction.
"""

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
# px; objects often end exactly at the image's edge, and rounding must not move them outside
TOUCHING = 1e-6


def rectangle(x1: float, y1: float, x2: float, y2: float) -> Points:
    """Return the four corners of an upright rectangle, [4, 2]."""
    return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float64)


def clip_convex(points: Points, width: float, height: float) -> Points:
    """Return the part of a convex polygon inside (0, 0, width, height); [0, 2] if there is none.

    The polygon must be convex: the pieces of a concave one would be joined along the rectangle's
    border. Source: Sutherland and Hodgman, Reentrant Polygon Clipping (1974).

    >>> clip_convex(np.array([[-2., -2.], [2., -2.], [2., 2.], [-2., 2.]]), 9, 9).tolist()
    [[2.0, 0.0], [2.0, 2.0], [0.0, 2.0], [0.0, 0.0]]
    """
    # x >= 0, y >= 0, -x >= -width, -y >= -height
    sides = ((0, 1, 0.0), (1, 1, 0.0), (0, -1, -width), (1, -1, -height))
    for axis, sign, limit in sides:
        if len(points):
            distance = points[:, axis] * sign - limit
            points = _half_plane(points, distance)
    return points


def _half_plane(points: Points, distance: NDArray[np.float64]) -> Points:
    """Return the part of the polygon on the inner side of a line.

    distance: of each corner from the line, [P], negative outside.
    """
    inside = distance >= 0
    next_distance = _next_rows(distance)
    crosses = inside != (next_distance >= 0)

    # The point of each edge on the line.
    fraction = distance / np.where(crosses, distance - next_distance, 1)
    crossing = points + fraction[:, None] * (_next_rows(points) - points)

    # Each corner, then the crossing on the edge to the next one.
    both = np.stack([points, crossing], 1).reshape(-1, 2)
    kept = np.stack([inside, crosses], 1).reshape(-1)
    return both[kept]


def signed_distances(points: Points, window: Points) -> NDArray[np.float64]:
    """Return the distance of each point from each side of the window, negative outside.

    [P, sides] in pixels; the window is convex.

    >>> # from the top, right, bottom, left
    >>> signed_distances(np.array([[1., 3.]]), rectangle(0, 0, 1, 4)).tolist()
    [[3.0, 0.0, 1.0, 1.0]]
    """
    # The unit normal of each side that points inward.  [sides, 2]
    along = _next_rows(window) - window
    inward = np.stack([-along[:, 1], along[:, 0]], 1)
    length = np.maximum(np.hypot(*along.T), TOUCHING)
    orientation = 1 if _signed_area(window) > 0 else -1
    inward /= length[:, None] * orientation

    measured: NDArray[np.float64] = points @ inward.T - (window * inward).sum(1)
    return np.where(np.abs(measured) < TOUCHING, 0, measured)


def visible_box(points: Points, window: Points) -> NDArray[np.float64]:
    """Return x1, y1, x2, y2 of the part of a polygon inside a convex window; zeros for none.

    Exact for concave polygons too: the extremes of that part are ends of the polygon's edges,
    clipped to the window, or corners of the window inside the polygon.

    >>> visible_box(np.array([[-5., 5.], [5., -5.], [5., 5.]]), rectangle(0, 0, 10, 10)).tolist()
    [0.0, 0.0, 5.0, 5.0]
    """
    if len(points) < 3 or len(window) < 3:
        return np.zeros(4)

    inside = signed_distances(points, window)  # [P, sides]
    if inside.min() >= 0:
        return np.concatenate([points.min(0), points.max(0)])
    if inside.max(0).min() < 0:  # completely outside one side
        return np.zeros(4)

    corners_inside = window[_contains(points, window)]
    visible = np.concatenate([_cut_edges(points, inside), corners_inside])
    if len(visible) == 0:
        return np.zeros(4)
    return np.concatenate([visible.min(0), visible.max(0)])


def _next_rows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return for each row the next one, for the last the first.

    It is np.roll(values, -1, 0) in a sixth of its time.
    """
    return np.concatenate([values[1:], values[:1]])


def _signed_area(points: Points) -> float:
    """Return the area, positive if the corners go from the x axis toward the y axis.

    Source: the shoelace formula.
    """
    x, y = (points - points[0]).T
    return float(x @ _next_rows(y) - y @ _next_rows(x)) / 2


def _cut_edges(points: Points, inside: NDArray[np.float64]) -> Points:
    """Return both ends of the part of every edge that is inside all sides.

    inside: the signed_distances of the points, [P, sides]. Source: Cyrus and Beck (1978).
    """
    next_inside = _next_rows(inside)
    starts = inside >= 0
    ends = next_inside >= 0

    # The fraction of the edge before each side that it crosses.  [P, sides]
    crossing = inside / np.where(starts == ends, 1, inside - next_inside)
    enter = np.where(ends & ~starts, crossing, 0).max(1)
    leave = np.where(starts & ~ends, crossing, 1).min(1)
    kept = (starts | ends).all(1) & (enter <= leave)

    first = points[kept]
    along = (_next_rows(points) - points)[kept]
    entries = first + enter[kept, None] * along
    exits = first + leave[kept, None] * along
    return np.concatenate([entries, exits])


def _contains(points: Points, queries: Points) -> NDArray[np.bool_]:
    """Whether each query point [Q, 2] is inside the polygon: an odd number of edges right of it."""
    x1, y1 = points.T[:, None]  # [1, P]
    x2, y2 = _next_rows(points).T[:, None]
    x = queries[:, :1]  # [Q, 1]
    y = queries[:, 1:]

    spans = (y1 > y) != (y2 > y)
    height = np.where(y2 == y1, 1, y2 - y1)
    crossing = x1 + (y - y1) * (x2 - x1) / height  # of the edge and the query's row, [Q, P]
    edges_on_right = (spans & (x < crossing)).sum(1)
    return edges_on_right % 2 == 1
