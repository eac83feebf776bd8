"""Plan the shapes of an image and their positions, as numbers.

Points are (x, y) pixels; pixel i covers [i, i + 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NAMES = (
    "circle",
    "square",
    "triangle",
    "star",
    "cross",
    "ring",
    "crescent",
    "arrow",
    "heart",
    "checker",
)

# The difficulty: smaller or more shapes, more occlusion and less contrast make the data set harder.
MIN_DIAMETER = 0.04  # as a fraction of the image's side
MAX_DIAMETER = 0.8
SMALL_ARE_RARE = 0.4  # with 1 diameters are log-uniform, below 1 they are larger on average
MEAN_EXTRA_SHAPES = 2.3  # min(1 + Poisson(mean), MAX_SHAPES) shapes per image
MAX_SHAPES = 7
EMPTY_SHARE = 0.05  # fraction of images without shapes
OUTLINED_SHARE = 0.1  # fraction of outlined shapes, among the classes and sizes that allow it
NEVER_OUTLINED = ("circle", "ring", "crescent", "checker")  # an outlined circle would be a ring
LARGEST_TURN = 0.4  # max rotation in radians
# random positions, of which the one farthest from other shapes is used; 1 gives the most occlusion
POSITIONS_TRIED = 8
POINTS_PER_CURVE = 72


@dataclass(frozen=True)
class Shape:
    """One planned shape: its class, its closed loops in pixels, and how it is filled."""

    label: int
    center: tuple[float, float]
    diameter: float  # of the circumscribed circle, before the shape is stretched
    angle: float  # radians
    loops: tuple[np.ndarray, ...]  # each [P, 2] float64; a second loop is a hole
    stroke: int  # line width in pixels if only the outline is drawn, 0 for a filled shape
    edged: bool
    fill: str  # plain, gradient or striped


def plan_shapes(random: np.random.Generator, size: int) -> list[Shape]:
    """Return the shapes of one image from back to front; none in EMPTY_SHARE of images.

    Larger ones are mostly behind.
    """
    if random.random() < EMPTY_SHARE:
        return []

    count = min(1 + random.poisson(MEAN_EXTRA_SHAPES), MAX_SHAPES)
    shapes: list[Shape] = []
    for _ in range(count):
        shapes.append(_plan_shape(random, size, shapes))

    diameters = np.array([shape.diameter for shape in shapes])
    depths = diameters * random.lognormal(0.0, 0.7, count)
    return [shapes[number] for number in np.argsort(-depths)]


def _plan_shape(random: np.random.Generator, size: int, others: list[Shape]) -> Shape:
    """Return a random shape, at the best of POSITIONS_TRIED random positions."""
    label = int(random.integers(len(NAMES)))
    name = NAMES[label]
    size_range = MAX_DIAMETER / MIN_DIAMETER
    diameter = size * MIN_DIAMETER * size_range ** (random.random() ** SMALL_ARE_RARE)

    # The position farthest from the other shapes.
    margin = 0.3 * diameter  # up to a fifth of the diameter may be outside the image on a side
    positions = random.uniform(margin, size - margin, (POSITIONS_TRIED, 2))
    center = max(positions.tolist(), key=lambda position: _clearance(position, diameter, others))

    # The outline: stretched, turned and moved to that position.
    angle = float(random.uniform(-LARGEST_TURN, LARGEST_TURN))
    stretch = np.exp(random.uniform(-0.2, 0.2))
    cos = np.cos(angle)
    sin = np.sin(angle)
    turn = np.array([[cos, sin], [-sin, cos]])
    scale = diameter / 2 * np.array([stretch**0.5, stretch**-0.5])
    loops = tuple(loop * scale @ turn + center for loop in unit_loops(name))

    # A line along the outline, or a filled shape.
    may_be_outlined = diameter > 16 and name not in NEVER_OUTLINED
    outlined = random.random() < OUTLINED_SHARE and may_be_outlined
    stroke = 0
    if outlined:
        stroke = max(2, round(diameter * random.uniform(0.06, 0.11)))
    fill = str(random.choice(["plain", "gradient", "striped"], p=[0.4, 0.45, 0.15]))
    edged = bool(random.random() < 0.35)

    return Shape(label, (center[0], center[1]), diameter, angle, loops, stroke, edged, fill)


def _clearance(position: list[float], diameter: float, others: list[Shape]) -> float:
    """Return the pixels from a shape's circle to the nearest other circle, negative on overlap."""
    x, y = position
    gaps = []
    for other in others:
        other_x, other_y = other.center
        distance = float(np.hypot(x - other_x, y - other_y))
        gaps.append(distance - (diameter + other.diameter) / 2)
    return min(gaps, default=0.0)


def unit_loops(name: str) -> list[np.ndarray]:
    """Return the closed loops [P, 2] of a shape of radius 1 around the origin, y down.

    A second loop is a hole.

    >>> unit_loops("square")[0].round(3).tolist()
    [[0.707, 0.707], [-0.707, 0.707], [-0.707, -0.707], [0.707, -0.707]]
    """
    if name in ("square", "checker"):
        return [_on_circle([45, 135, 225, 315])]
    if name == "triangle":
        return [_on_circle([-90, 30, 150])]
    if name == "star":
        return [_star(inner_radius=0.45)]
    if name == "cross":
        return [_cross(arm=0.32)]
    if name == "crescent":
        return [_crescent(shift=0.45, radius=0.8)]
    if name == "arrow":
        return [_arrow()]
    if name == "heart":
        return [_heart()]

    circle = _on_circle(np.linspace(0, 360, POINTS_PER_CURVE, endpoint=False))
    if name == "ring":
        return [circle, 0.58 * circle]
    return [circle]


def _on_circle(degrees: list[int] | np.ndarray) -> np.ndarray:
    """Return points of the unit circle, [P, 2]; 0 is on the x axis, 90 on the y axis."""
    radians = np.radians(np.asarray(degrees, np.float64))
    return np.stack([np.cos(radians), np.sin(radians)], 1)


def _star(inner_radius: float) -> np.ndarray:
    """Return five tips on the unit circle, and the points between them on the inner one."""
    numbers = np.arange(10)
    radius = np.where(numbers % 2, inner_radius, 1.0)
    return _on_circle(numbers * 36 - 90) * radius[:, None]


def _cross(arm: float) -> np.ndarray:
    tip = (1 - arm**2) ** 0.5  # the corners of the arms are on the unit circle
    corner = np.array([[tip, -arm], [tip, arm], [arm, arm]])
    quarter_turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    arms = [corner @ np.linalg.matrix_power(quarter_turn, k) for k in range(4)]
    return np.concatenate(arms)


def _crescent(shift: float, radius: float) -> np.ndarray:
    """Return the unit circle minus a circle of `radius` whose center is `shift` to the right."""
    # Where the two circles intersect: the point, and its angle on each of them.
    x = (1 + shift**2 - radius**2) / (2 * shift)
    y = (1 - x**2) ** 0.5
    outer = np.arctan2(y, x)
    inner = np.arctan2(y, x - shift)

    # Along the unit circle from there to the other intersection, and back along the other circle.
    outer_angles = np.linspace(outer, 2 * np.pi - outer, POINTS_PER_CURVE)
    inner_angles = np.linspace(2 * np.pi - inner, inner, POINTS_PER_CURVE)
    outer_arc = _on_circle(np.degrees(outer_angles))
    inner_arc = _on_circle(np.degrees(inner_angles))[1:-1] * radius + [shift, 0.0]
    return np.concatenate([outer_arc, inner_arc])


def _arrow() -> np.ndarray:
    half = np.array([[1.0, 0.0], [0.1, 0.72], [0.1, 0.27], [-0.95, 0.27]])
    return np.concatenate([half, half[:0:-1] * [1, -1]])


def _heart() -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, POINTS_PER_CURVE, endpoint=False)
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    heart = np.stack([16 * np.sin(t) ** 3, y - 2.5], 1)
    return heart / np.linalg.norm(heart, axis=1).max()
