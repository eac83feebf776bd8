"""The points of shapes whose extent is an object's box; angles are clockwise in the image."""

from math import cos, sin, tau

from data.labels import BadRowError

Point = tuple[float, float]
ELLIPSE_POINTS = 64  # its extent is right to 0.1 % of its diameter


def box_points(left: float, top: float, width: float, height: float) -> list[Point]:
    """Return two opposite corners of a box. Raises BadRowError if a side is negative.

    >>> box_points(1, 2, 10, 20)
    [(1, 2), (11, 22)]
    """
    if width < 0 or height < 0:
        raise BadRowError(f"box of {width:g} x {height:g}, must have an area")
    return [(left, top), (left + width, top + height)]


def turned(point: Point, center: Point, angle: float) -> Point:
    """Return a point that is turned around another one by an angle in radians.

    >>> x, y = turned((3, 1), (1, 1), tau / 4)
    >>> round(x, 9), round(y, 9)
    (1.0, 3.0)
    """
    right = point[0] - center[0]
    down = point[1] - center[1]
    x = center[0] + right * cos(angle) - down * sin(angle)
    y = center[1] + right * sin(angle) + down * cos(angle)
    return x, y


def rotated_box_points(
    left: float, top: float, width: float, height: float, center: Point, angle: float
) -> list[Point]:
    """Return the four corners of a box that is turned around a point by an angle in radians."""
    right = left + width
    bottom = top + height
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return [turned(corner, center, angle) for corner in corners]


def ellipse_points(
    center: Point, radius_x: float, radius_y: float, angle: float = 0.0
) -> list[Point]:
    """Return points of an ellipse whose axes are turned by an angle in radians."""
    points = []
    for step in range(ELLIPSE_POINTS):
        on_circle = tau * step / ELLIPSE_POINTS
        x = center[0] + radius_x * cos(on_circle)
        y = center[1] + radius_y * sin(on_circle)
        points.append(turned((x, y), center, angle))
    return points
