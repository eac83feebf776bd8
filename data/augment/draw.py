"""Draw the pixels of a plan with OpenCV: uint8 [H, W, 3] RGB. Uses no random numbers."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from data.augment.geometry import transformed, translation
from data.augment.polygons import rectangle
from data.augment.records import CanvasLayer, Matrix, Plan
from data.base_images import Reader
from utils.images.letterbox import GREY, Image, Region
from utils.images.opencv import cv2

HUES = 180  # levels of hue in OpenCV


class Drawer:
    """Draws plans with the base images that `read` returns.

    Scratch canvases are reused: allocating a new array of 640 x 640 (0.7 ms of page faults) takes
    longer than any operation on it.
    """

    def __init__(self, read: Reader) -> None:
        self.read = read
        self._scratch = np.empty((2, 0), np.uint8)

    def draw(self, plan: Plan, out: Image | None = None) -> Image:
        """Draw the sample that `plan` describes, uint8 [H, W, 3] RGB, into `out` if it is given;
        return it.
        """
        shape = (*plan.size, 3)
        canvas = np.empty(shape, np.uint8) if out is None else out
        one, two = self._scratch_canvases(shape)
        read = cache(self.read)  # several tiles and pastes may use the same image
        _draw_layer(plan.layers[0], canvas, read)
        for layer in plan.layers[1:]:
            _draw_layer(layer, one, read)
            cv2.addWeighted(canvas, plan.mix, one, 1 - plan.mix, 0, dst=canvas)
        done = one if plan.flip_up or plan.flip_left else canvas
        if plan.hsv is None:
            cv2.cvtColor(canvas, cv2.COLOR_BGR2RGB, dst=done)
        else:
            cv2.cvtColor(canvas, cv2.COLOR_BGR2HSV, dst=one)
            cv2.cvtColor(_scaled(one, plan.hsv, two), cv2.COLOR_HSV2RGB, dst=done)
        if done is not canvas:
            cv2.flip(
                done, {(1, 0): 0, (0, 1): 1, (1, 1): -1}[plan.flip_up, plan.flip_left], dst=canvas
            )
        return canvas

    def __reduce__(self) -> tuple[type["Drawer"], tuple[Reader]]:
        return Drawer, (self.read,)

    def _scratch_canvases(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """Return two scratch canvases of a shape."""
        size = int(np.prod(shape))
        if self._scratch.shape[1] < size:
            self._scratch = np.empty((2, size), np.uint8)
        return self._scratch[:, :size].reshape(2, *shape)


def draw(plan: Plan, read: Reader) -> Image:
    """Return the sample that one plan describes, as `Drawer.draw` does."""
    return Drawer(read).draw(plan)


def _draw_layer(layer: CanvasLayer, canvas: Image, read: Reader) -> None:
    canvas[:] = GREY
    for tile in layer.tiles:
        if tile.target is None:
            _draw_warped(canvas, read(tile.index), tile.matrix, [rectangle(*tile.region)])
        else:
            _draw_upright(canvas, read(tile.index), tile.region, tile.target)
    for paste in layer.pastes:
        _draw_warped(
            canvas, read(paste.index), paste.matrix, [rectangle(*paste.region), paste.outline]
        )


def _draw_upright(canvas: Image, image: Image, region: Region, target: Region) -> None:
    """Resize a region of the image into the target region of the canvas: several times faster than
    a warp.
    """
    crop, area = _part(image, region), _part(canvas, target)
    if crop.shape == area.shape:
        area[:] = crop
    else:
        cv2.resize(crop, (area.shape[1], area.shape[0]), dst=area, interpolation=cv2.INTER_LINEAR)


def _part(image: Image, region: Region) -> Image:
    x1, y1, x2, y2 = region
    return image[y1:y2, x1:x2]


def _draw_warped(
    canvas: Image, image: Image, matrix: Matrix, outlines: Sequence[NDArray[np.float64]]
) -> None:
    """Draw the part of the image inside all outlines (image pixels, [P, 2]); `matrix` maps image to
    canvas pixels.

    Uses a mask, because OpenCV's transparent border mode blends edges with the canvas in some
    versions and omits them in others, which gives grey seams between tiles.
    """
    # OpenCV's integers are pixel centres
    outlines = [transformed(outline, matrix) - 0.5 for outline in outlines]
    x1, y1 = np.floor(np.max([o.min(0) for o in outlines], 0)).astype(int).clip(0).tolist()
    x2, y2 = np.ceil(np.min([o.max(0) for o in outlines], 0)).astype(int).tolist()
    area = canvas[y1 : max(y2 + 1, 0), x1 : max(x2 + 1, 0)]
    if area.size == 0:
        return
    height, width = area.shape[:2]
    mask: Image = np.full((height, width), 255, np.uint8)
    for outline in outlines:
        sixteenths = np.round((outline - [x1, y1]) * 16).astype(np.int32)
        mask = cv2.bitwise_and(
            mask, cv2.fillPoly(np.zeros((height, width), np.uint8), [sixteenths], 255, shift=4)
        )
    to_area = translation(-x1 - 0.5, -y1 - 0.5) @ matrix @ translation(0.5, 0.5)
    if np.allclose(matrix[2], (0, 0, 1)):
        warped = cv2.warpAffine(
            image, to_area[:2], (width, height), borderMode=cv2.BORDER_REPLICATE
        )
    else:
        warped = cv2.warpPerspective(
            image, to_area, (width, height), borderMode=cv2.BORDER_REPLICATE
        )
    cv2.copyTo(warped, mask, area)


def _scaled(hsv: Image, gains: tuple[float, float, float], out: Image) -> Image:
    """Multiply hue, saturation and value by gains, as `colour_tables` does, into `out`; return it.

    If no hue exceeds 255, a matrix does it in a fifth of the time of tables.
    """
    if gains[0] * (HUES - 1) <= 255:  # OpenCV's conversion back to RGB wraps hues of 180 and more
        return cv2.transform(hsv, np.diag(gains).astype(np.float32), dst=out)
    return cv2.LUT(hsv, colour_tables(gains)[None], dst=out)


def colour_tables(gains: tuple[float, float, float]) -> NDArray[np.uint8]:
    """Return each level of hue (modulo HUES), saturation and value after multiplication by gains,
    uint8 [256, 3].
    """
    # as cv2.transform does
    levels = np.round(np.arange(256, dtype=np.float32)[:, None] * np.array(gains, np.float32))
    levels[:, 0] %= HUES
    return levels.clip(0, 255).astype(np.uint8)
