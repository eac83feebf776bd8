"""Draw a plan's pixels with OpenCV: uint8 [H, W, 3], red first. No random number is drawn here."""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from data.augment import Layer, Paste, Plan, Tile

Image = NDArray[np.uint8]
Reader = Callable[[int], Image]  # index -> base image, BGR as OpenCV decodes it

GREY = 114  # what lies outside every image


def draw(plan: Plan, read: Reader) -> Image:
    """The sample that `plan` describes, uint8 [H, W, 3] RGB. read(index) gives base images, BGR."""
    canvas = _layer(plan.layers[0], plan.size, read)
    for layer in plan.layers[1:]:
        canvas = cv2.addWeighted(canvas, plan.mix, _layer(layer, plan.size, read), 1 - plan.mix, 0)
    canvas = cv2.cvtColor(canvas, cv2.COLOR_BGR2RGB) if plan.hsv is None else _recoloured(canvas, plan.hsv)
    if plan.flip_up or plan.flip_left:
        canvas = cv2.flip(canvas, -1 if plan.flip_up and plan.flip_left else int(plan.flip_left))
    return canvas


def resized(image: Image, width: int, height: int) -> Image:
    """The image at another size: averaged where it shrinks, interpolated where it grows."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = height < image.shape[0] or width < image.shape[1]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def _layer(layer: Layer, size: tuple[int, int], read: Reader) -> Image:
    canvas = np.full((*size, 3), GREY, np.uint8)
    for tile in layer.tiles:
        _draw_tile(canvas, tile, read(tile.index))
    for paste in layer.pastes:
        _draw_paste(canvas, paste, read(paste.index))
    return canvas


def _draw_tile(canvas: Image, tile: Tile, image: Image) -> None:
    x1, y1, x2, y2 = tile.region
    crop = image[y1:y2, x1:x2]
    if tile.target is None:
        _warp(canvas, crop, tile.matrix @ np.array([[1.0, 0, x1], [0, 1, y1], [0, 0, 1]]))
        return
    left, top, right, bottom = tile.target
    area = canvas[top:bottom, left:right]
    if crop.shape == area.shape:
        area[:] = crop
    else:  # several times faster than a warp
        cv2.resize(crop, (right - left, bottom - top), dst=area, interpolation=cv2.INTER_LINEAR)


def _warp(canvas: Image, crop: Image, matrix: NDArray[np.float64]) -> None:
    """Draw `crop` through `matrix` (crop pixels to canvas pixels); the rest of the canvas stays as it is.

    OpenCV counts from pixel centres, plans count from pixel corners: half a pixel on either side.
    """
    half = np.array([[1.0, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])
    centered = np.linalg.inv(half) @ matrix @ half
    size = (canvas.shape[1], canvas.shape[0])
    if np.allclose(matrix[2], (0, 0, 1)):
        cv2.warpAffine(crop, centered[:2], size, dst=canvas, borderMode=cv2.BORDER_TRANSPARENT)
    else:
        cv2.warpPerspective(crop, centered, size, dst=canvas, borderMode=cv2.BORDER_TRANSPARENT)


def _draw_paste(canvas: Image, paste: Paste, image: Image) -> None:
    """Draw the pixels inside an outline over the canvas."""
    points = np.concatenate([paste.outline, np.ones((len(paste.outline), 1))], 1) @ paste.matrix.T
    mask = np.zeros(canvas.shape[:2], np.uint8)
    cv2.fillPoly(mask, [np.round(points[:, :2] / points[:, 2:] - 0.5).astype(np.int32)], 1)
    drawn = canvas.copy()
    _warp(drawn, image, paste.matrix)
    np.copyto(canvas, drawn, where=mask[:, :, None].astype(bool))


def _recoloured(image: Image, gains: tuple[float, float, float]) -> Image:
    """RGB of a BGR image whose hue (a circle of 180), saturation and value are multiplied, by table."""
    levels = np.arange(256)
    tables = np.stack([levels * gains[0] % 180, (levels * gains[1]).clip(0, 255), (levels * gains[2]).clip(0, 255)], 1)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    recoloured = cv2.LUT(hsv, tables.astype(np.uint8)[None])
    return cv2.cvtColor(recoloured, cv2.COLOR_HSV2RGB)
