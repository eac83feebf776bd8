"""Boxes of polygons clipped to windows, against points sampled along every edge."""

import cv2
import numpy as np
import pytest

from data.augment.polygons import clip_convex, rectangle, visible_box

EMPTY = np.zeros((0, 2))
U = np.array(
    [[0.0, 0], [9, 0], [9, 3], [3, 3], [3, 6], [9, 6], [9, 9], [0, 9]]
)  # open to the right


def edge_points(points: np.ndarray, count: int = 300) -> np.ndarray:
    """Return points along every edge of a polygon."""
    fraction = np.linspace(0, 1, count)[:, None]
    return np.concatenate(
        [a + fraction * (b - a) for a, b in zip(points, np.roll(points, -1, 0), strict=True)]
    )


def is_inside(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    contour = polygon.astype(np.float32)
    return np.array(
        [cv2.pointPolygonTest(contour, (float(x), float(y)), False) >= 0 for x, y in points]
    )


def sampled_box(polygon: np.ndarray, window: np.ndarray) -> np.ndarray:
    """Return the box of the intersection's outline: slow, and too small by up to the distance
    between two samples.
    """
    seen = [
        edge_points(a)[is_inside(edge_points(a), b)]
        for a, b in ((polygon, window), (window, polygon))
    ]
    found = np.concatenate(seen)
    return np.concatenate([found.min(0), found.max(0)]) if len(found) else np.zeros(4)


def rotated(points: np.ndarray, angle: float) -> np.ndarray:
    return points @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def random_polygon(random: np.random.Generator, corners: int) -> np.ndarray:
    """Return a concave polygon around a random point, in random direction."""
    angles = np.sort(random.uniform(0, 2 * np.pi, corners))
    radii = random.uniform(3, 40, corners)
    points = random.uniform(-20, 80, 2) + np.stack(
        [radii * np.cos(angles), radii * np.sin(angles)], 1
    )
    return points[::-1] if random.random() < 0.5 else points


@pytest.mark.parametrize("seed", range(40))
def test_visible_box_agrees_with_sampled_edges(seed: int) -> None:
    random = np.random.default_rng(seed)
    polygon = random_polygon(random, int(random.integers(3, 12)))
    window = clip_convex(rotated(rectangle(5, 5, 55, 45), random.uniform(-1, 1)), 60, 50)
    window = window[::-1] if seed % 2 else window
    step = 80 / 299  # distance of two samples on the longest edge
    assert np.abs(visible_box(polygon, window) - sampled_box(polygon, window)).max() < 2 * step


def test_visible_box_of_concave_polygon_by_hand() -> None:
    # Right of x = 5 are only the two arms; left of it, above y = 4, the spine and the upper arm.
    assert visible_box(U, rectangle(5, 0, 20, 20)).tolist() == [5, 0, 9, 9]
    assert visible_box(U, rectangle(5, 4, 20, 20)).tolist() == [5, 6, 9, 9]
    assert visible_box(U, rectangle(4, 3.5, 20, 5.5)).tolist() == [0, 0, 0, 0]  # between the arms


def test_clipping_adds_no_edge_along_window_border() -> None:
    # A hook that enters the window only through its left side, at y 5 to 6, and goes around its
    # upper left corner.
    hook = np.array([[-3.0, -3], [8, -3], [8, -2], [-2, -2], [-2, 5], [2, 5], [2, 6], [-3, 6]])
    assert visible_box(hook, rectangle(0, 0, 10, 10)).tolist() == [0, 5, 2, 6]


@pytest.mark.parametrize("angle", np.arange(0, 6, 0.25))
def test_polygon_edge_on_window_border_is_visible(angle: float) -> None:
    # An edge of the U is on the left side of the window, both rotated; only its spine (x 0 to 3) is
    # inside.
    window, spine = rectangle(0, -5, 3, 20), rectangle(0, 0, 3, 9)
    expected = np.concatenate([rotated(spine, angle).min(0), rotated(spine, angle).max(0)])
    assert visible_box(rotated(U, angle) + 50, rotated(window, angle) + 50) == pytest.approx(
        expected + 50
    )


def test_polygon_edge_on_window_border_is_visible_despite_rounding() -> None:
    # The corner of a rotated image in the canvas, and an object along the image's upper side, whose
    # ends have computed distances of 0 and -5e-13 from it.
    window = np.array([[0.0, 122.5190441186394], [15.55994294783455, 128.0], [0.0, 128.0]])
    above = np.array(
        [[-5.262852931563042, 120.66521568079152], [32.23857065525346, 133.87501014190565]]
    )
    polygon = np.concatenate(
        [above, [[24.741177710393966, 168.5707699623663], [-12.34070978912696, 155.2011642423107]]]
    )
    assert visible_box(polygon, window) == pytest.approx([0, 122.519044, 15.559943, 128])


def test_visible_box_is_window_if_window_is_inside_polygon() -> None:
    assert visible_box(rectangle(-9, -9, 99, 99), rectangle(1, 2, 3, 4)).tolist() == [1, 2, 3, 4]


def test_visible_box_is_polygon_box_if_polygon_is_inside_window() -> None:
    assert visible_box(U, rectangle(-1, -1, 10, 10)).tolist() == [0, 0, 9, 9]


def test_rotated_triangle_is_tighter_than_its_rotated_box() -> None:
    triangle = np.array([[0.0, 0], [10, 0], [0, 10]])
    # Half of a square: 10 sqrt(2) along the long side, half of that across; its rotated box has
    # sides of 10 sqrt(2).
    assert sorted(np.ptp(rotated(triangle, np.pi / 4), axis=0)) == pytest.approx(
        [50**0.5, 200**0.5]
    )
    assert np.ptp(rotated(rectangle(0, 0, 10, 10), np.pi / 4), axis=0) == pytest.approx(
        [200**0.5, 200**0.5]
    )
    seen = visible_box(rotated(triangle, np.pi / 4), rectangle(-50, -50, 50, 50))
    assert sorted(seen[2:] - seen[:2]) == pytest.approx([50**0.5, 200**0.5])


@pytest.mark.parametrize("points", [EMPTY, np.zeros((2, 2)), np.full((5, 2), 70.0)])
def test_empty_degenerate_or_outside_polygons_give_zero_box(points: np.ndarray) -> None:
    assert visible_box(points, rectangle(0, 0, 9, 9)).tolist() == [0, 0, 0, 0]


def test_empty_window_gives_zero_box() -> None:
    assert visible_box(U, EMPTY).tolist() == [0, 0, 0, 0]
    assert len(clip_convex(rectangle(20, 0, 30, 9), 9, 9)) == 0
    assert len(clip_convex(EMPTY, 9, 9)) == 0


def test_touching_corners_and_flat_polygons_give_boxes_without_area() -> None:
    assert visible_box(rectangle(9, 9, 12, 12), rectangle(0, 0, 9, 9)).tolist() == [9, 9, 9, 9]
    assert visible_box(np.array([[1.0, 1], [5, 1], [3, 1]]), rectangle(0, 0, 9, 9)).tolist() == [
        1,
        1,
        5,
        1,
    ]
