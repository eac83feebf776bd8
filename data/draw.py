"""Draw a plan's pixels with OpenCV: uint8 [H, W, 3], red first. No random number is drawn here."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from data.augment import Layer, Matrix, Plan, Region, transformed, translation
from data.polygons import rectangle
from utils.opencv import cv2

Image = np.ndarray  # uint8 [H, W, 3]
Reader = Callable[[int], Image]  # index -> base image, BGR as OpenCV decodes it

GREY = 114  # what lies outside every image


def draw(plan: Plan, read: Reader) -> Image:
    """The sample that `plan` describes, uint8 [H, W, 3] RGB. read(index) gives base images, BGR."""
    read = cache(read)  # an image may lie in several tiles and pastes
    canvas = _layer(plan.layers[0], plan.size, read)
    for layer in plan.layers[1:]:
        cv2.addWeighted(canvas, plan.mix, _layer(layer, plan.size, read), 1 - plan.mix, 0, dst=canvas)
    canvas = cv2.cvtColor(canvas, cv2.COLOR_BGR2RGB) if plan.hsv is None else _recoloured(canvas, plan.hsv)
    if plan.flip_up:
        canvas = cv2.flip(canvas, 0)
    if plan.flip_left:
        canvas = cv2.flip(canvas, 1)
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
        if tile.target is None:
            _draw_warped(canvas, read(tile.index), tile.matrix, [rectangle(*tile.region)])
        else:
            _draw_upright(canvas, read(tile.index), tile.region, tile.target)
    for paste in layer.pastes:
        _draw_warped(canvas, read(paste.index), paste.matrix, [rectangle(*paste.region), paste.outline])
    return canvas


def _draw_upright(canvas: Image, image: Image, region: Region, target: Region) -> None:
    """Fill the target with the region of the image: several times faster than a warp."""
    crop, area = _part(image, region), _part(canvas, target)
    if crop.shape == area.shape:
        area[:] = crop
    else:
        cv2.resize(crop, (area.shape[1], area.shape[0]), dst=area, interpolation=cv2.INTER_LINEAR)


def _part(image: Image, region: Region) -> Image:
    x1, y1, x2, y2 = region
    return image[y1:y2, x1:x2]


def _draw_warped(canvas: Image, image: Image, matrix: Matrix, outlines: Sequence[NDArray[np.float64]]) -> None:
    """Draw what lies inside all outlines (image pixels, [P, 2]) through `matrix` (image to canvas pixels).

    By a mask, because OpenCV's own transparent border mixes edges with the canvas in some versions and leaves them out
    in others: grey seams between tiles.
    """
    outlines = [transformed(outline, matrix) - 0.5 for outline in outlines]  # OpenCV counts from pixel centres
    x1, y1 = np.floor(np.max([o.min(0) for o in outlines], 0)).astype(int).clip(0).tolist()
    x2, y2 = np.ceil(np.min([o.max(0) for o in outlines], 0)).astype(int).tolist()
    area = canvas[y1 : max(y2 + 1, 0), x1 : max(x2 + 1, 0)]
    if area.size == 0:
        return
    height, width = area.shape[:2]
    mask: Image = np.full((height, width), 255, np.uint8)
    for outline in outlines:
        sixteenths = np.round((outline - [x1, y1]) * 16).astype(np.int32)
        mask = cv2.bitwise_and(mask, cv2.fillPoly(np.zeros((height, width), np.uint8), [sixteenths], 255, shift=4))
    through = translation(-x1 - 0.5, -y1 - 0.5) @ matrix @ translation(0.5, 0.5)
    if np.allclose(matrix[2], (0, 0, 1)):
        warped = cv2.warpAffine(image, through[:2], (width, height), borderMode=cv2.BORDER_REPLICATE)
    else:
        warped = cv2.warpPerspective(image, through, (width, height), borderMode=cv2.BORDER_REPLICATE)
    cv2.copyTo(warped, mask, area)


def _recoloured(image: Image, gains: tuple[float, float, float]) -> Image:
    """RGB of a BGR image whose hue (a circle of 180), saturation and value are multiplied; `image` is used up."""
    levels = np.arange(256)
    tables = np.stack([levels * gains[0] % 180, (levels * gains[1]).clip(0, 255), (levels * gains[2]).clip(0, 255)], 1)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    cv2.LUT(hsv, tables.astype(np.uint8)[None], dst=hsv)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB, dst=image)
