"""Pixels drawn by OpenCV: colors against a slow oracle, resizing, mixup, copy-paste, flips."""

from collections import Counter
from collections.abc import Callable

import cv2
import numpy as np
import pytest

from data.augment.draw import _scaled, color_tables
from data.augment.geometry import translation
from data.augment.records import CanvasLayer, Paste, Patch, Plan
from tests.support.drawn import draw
from utils.images.letterbox import GRAY

EYE = np.eye(3)
NO_TARGETS = np.zeros((0, 5), np.float32)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def identity_plan(image: np.ndarray, **changes: object) -> tuple[Plan, Callable[[int], np.ndarray]]:
    """Return a plan that draws an image unchanged, and its reader."""
    height, width = image.shape[:2]
    patch = Patch(0, (0, 0, width, height), EYE, (0, 0, width, height))
    values = {
        "size": (height, width),
        "layers": (CanvasLayer((patch,)),),
        "targets": NO_TARGETS,
    } | changes
    return Plan(**values), lambda _: image  # type: ignore[arg-type]


def test_drawing_converts_bgr_to_rgb() -> None:
    image = noise(5, 7)
    assert (draw(*identity_plan(image)) == image[:, :, ::-1]).all()


def test_opencv_canvas_without_patches_is_gray() -> None:
    plan = Plan((4, 6), (CanvasLayer(()),), NO_TARGETS)
    assert (draw(plan, lambda _: noise(1, 1)) == np.full((4, 6, 3), GRAY)).all()


@pytest.mark.parametrize(
    "gains", [(1.015, 1.7, 1.4), (0.985, 0.3, 0.6), (1.4, 1.0, 0.0), (0.0, 2.5, 1.5)]
)
def test_hsv_scaling_equals_color_tables(gains: tuple[float, float, float]) -> None:
    hsv = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    scaled = _scaled(hsv, gains, np.empty_like(hsv)).astype(int)
    scaled[..., 0] %= 180
    assert (scaled.reshape(256, 3)[:180] == color_tables(gains)[:180]).all()


@pytest.mark.parametrize("up", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_flips_reverse_rows_and_columns(up: bool, left: bool) -> None:
    image = noise(5, 8)
    drawn = draw(*identity_plan(image, flip_up=up, flip_left=left))
    assert (drawn == image[:: -1 if up else 1, :: -1 if left else 1, ::-1]).all()
    assert drawn.flags.c_contiguous


def slow_colors(pixel: np.ndarray, gains: tuple[float, float, float]) -> list[int]:
    """Return red, green, blue of one pixel (blue, green, red), computed one by one; OpenCV only
    converts.
    """
    hue, saturation, value = (
        int(v) for v in cv2.cvtColor(pixel[None, None], cv2.COLOR_BGR2HSV)[0, 0]
    )
    new = [
        round(hue * gains[0]) % 180,
        min(round(saturation * gains[1]), 255),
        min(round(value * gains[2]), 255),
    ]
    return cv2.cvtColor(np.array([[new]], np.uint8), cv2.COLOR_HSV2RGB)[0, 0].tolist()


@pytest.mark.parametrize(
    "gains",
    [(1.0, 1.0, 1.0), (1.015, 1.7, 1.4), (0.985, 0.3, 0.6), (1.5, 1.0, 0.9), (1.0, 0.0, 1.0)],
)
def test_hsv_gains_equal_slow_per_pixel_computation(gains: tuple[float, float, float]) -> None:
    image = noise(17, 13, seed=2)
    drawn = draw(*identity_plan(image.copy(), hsv=gains))
    slow = np.array([[slow_colors(pixel, gains) for pixel in row] for row in image])
    assert (
        np.abs(drawn.astype(int) - slow).max() <= 1
    )  # OpenCV uses different instructions for one pixel and for many


def test_hsv_gains_of_one_equal_conversion_to_hsv_and_back() -> None:
    image = noise(16, 16)
    converted = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2HSV), cv2.COLOR_HSV2RGB)
    assert (draw(*identity_plan(image.copy(), hsv=(1.0, 1.0, 1.0))) == converted).all()


def test_opencv_hue_wraps_around() -> None:
    # Hue 178 of 180 is red with a little blue; times 1.02 it is 181.56, so 2: red with a little
    # green.
    image = cv2.cvtColor(np.full((2, 2, 3), (178, 255, 255), np.uint8), cv2.COLOR_HSV2BGR)
    red, green, blue = draw(*identity_plan(image, hsv=(1.02, 1.0, 1.0)))[0, 0].tolist()
    assert red == 255
    assert 0 < green < 20
    assert blue == 0


def test_drawing_does_not_change_source_image() -> None:
    image = noise(8, 8)
    before = image.copy()
    draw(*identity_plan(image, hsv=(0.9, 0.5, 0.5), flip_up=True))
    assert (image == before).all()


def test_opencv_mixup_is_a_weighted_mean() -> None:
    images = [noise(6, 6, seed) for seed in (1, 2)]
    layers = tuple(CanvasLayer((Patch(i, (0, 0, 6, 6), EYE, (0, 0, 6, 6)),)) for i in (0, 1))
    drawn = draw(Plan((6, 6), layers, NO_TARGETS, mix=0.3), lambda i: images[i])
    assert np.abs(drawn - (0.3 * images[0] + 0.7 * images[1])[:, :, ::-1]).max() <= 0.51


def test_image_used_by_many_patches_is_read_once() -> None:
    reads: Counter[int] = Counter()

    def read(index: int) -> np.ndarray:
        reads[index] += 1
        return noise(8, 8)

    outline = np.array([[1.0, 1], [5, 1], [5, 5]])
    pastes = tuple(Paste(i % 2, (0, 0, 8, 8), outline, EYE) for i in range(6))
    layer = CanvasLayer(tuple(Patch(i % 2, (0, 0, 8, 8), EYE) for i in range(4)), pastes)
    draw(Plan((8, 8), (layer, layer), NO_TARGETS, mix=0.5), read)
    assert reads == {0: 1, 1: 1}


def test_opencv_warp_by_whole_pixels_copies_pixels() -> None:
    image = noise(6, 6)
    for target in (None, (2, 1, 8, 7)):
        patch = Patch(0, (0, 0, 6, 6), translation(2, 1), target)
        drawn = draw(Plan((9, 10), (CanvasLayer((patch,)),), NO_TARGETS), lambda _: image)
        assert (drawn[1:7, 2:8] == image[:, :, ::-1]).all()
        rest = np.delete(
            drawn.reshape(-1, 3), [y * 10 + x for y in range(1, 8) for x in range(2, 9)], 0
        )
        assert (rest == GRAY).all()  # except the row and the column at the patch's border


@pytest.mark.parametrize("zoom", [0.5, 2.0, 3.0])
def test_opencv_warp_and_resize_agree(zoom: float) -> None:
    ramp = (
        np.add.outer(np.arange(24) * 4, np.arange(24) * 6).astype(np.uint8)[:, :, None].repeat(3, 2)
    )
    side = int(24 * zoom)
    drawn = []
    for target in (None, (0, 0, side, side)):
        patch = Patch(0, (0, 0, 24, 24), np.diag([zoom, zoom, 1]), target)
        drawn.append(
            draw(Plan((side, side), (CanvasLayer((patch,)),), NO_TARGETS), lambda _: ramp).astype(
                int
            )
        )
    assert np.abs(drawn[0] - drawn[1]).max() <= 1


@pytest.mark.parametrize("where", [(100, 0), (0, 100), (-100, 0), (0, -100), (99.9, 99.9)])
def test_patches_and_pastes_outside_canvas_are_not_drawn(where: tuple[float, float]) -> None:
    outline = np.array([[0.0, 0], [8, 0], [8, 8]])
    layer = CanvasLayer(
        (Patch(0, (0, 0, 8, 8), translation(*where)),),
        (Paste(0, (0, 0, 8, 8), outline, translation(*where)),),
    )
    assert (draw(Plan((20, 20), (layer,), NO_TARGETS), lambda _: noise(8, 8)) == GRAY).all()


def test_paste_is_clipped_to_its_outline_and_region() -> None:
    white = np.full((20, 20, 3), 255, np.uint8)
    u = np.array([[0.0, 0], [18, 0], [18, 4], [6, 4], [6, 14], [18, 14], [18, 18], [0, 18]])
    mirror = np.array([[-1.0, 0, 20], [0, 1, 0], [0, 0, 1]])
    drawn = draw(
        Plan((20, 20), (CanvasLayer((), (Paste(0, (4, 0, 20, 20), u, mirror),)),), NO_TARGETS),
        lambda _: white,
    )
    shown = drawn[:, :, 0] == 255
    # Mirrored: the arms extend from x = 20 - 18 = 2 to 20 - 4 = 16, where the region ends; between
    # them is nothing from x = 2 to 14. Borders may be one pixel outside.
    inside = np.zeros((20, 20), bool)
    inside[0:4, 2:16] = inside[14:18, 2:16] = inside[0:18, 14:16] = True
    assert shown[inside].all()
    around = cv2.dilate(inside.astype(np.uint8), np.ones((3, 3), np.uint8)).astype(bool)
    assert not shown[~around].any()


def test_pastes_cover_patches() -> None:
    images = [np.zeros((9, 9, 3), np.uint8), np.full((9, 9, 3), 200, np.uint8)]
    outline = np.array([[2.0, 2], [7, 2], [7, 7], [2, 7]])
    layer = CanvasLayer(
        (Patch(0, (0, 0, 9, 9), EYE, (0, 0, 9, 9)),), (Paste(1, (0, 0, 9, 9), outline, EYE),)
    )
    drawn = draw(Plan((9, 9), (layer,), NO_TARGETS), lambda i: images[i])
    assert (drawn[3:6, 3:6] == 200).all()
    assert (drawn[0] == 0).all()
