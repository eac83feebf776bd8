"""Draw the pixels of a plan with OpenCV: uint8 [H, W, 3] RGB. Uses no random numbers."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from data.augment.geometry import transformed, translation
from data.augment.polygons import rectangle
from data.augment.records import CanvasLayer, Matrix, Plan, Reader
from utils.images.letterbox import GRAY, Image, Region
from utils.images.opencv import cv2

HUES = 180  # levels of hue in OpenCV
# (up, left) -> OpenCV's code of the flip
FLIP_CODES = {(True, False): 0, (False, True): 1, (True, True): -1}


class Drawer:
    """Draws plans with the base images that `read` returns.

    Scratch canvases are reused: allocating a new array of 640 x 640 (0.7 ms of page faults) takes
    longer than any operation on it.
    """

    def __init__(self, read: Reader) -> None:
        self.read = read
        self._scratch = np.empty((2, 0), np.uint8)

    def draw(self, plan: Plan, out: Image | None = None) -> Image:
        """Return the sample of the plan, uint8 [H, W, 3] RGB, drawn into `out` if it is given."""
        shape = (*plan.size, 3)
        canvas = np.empty(shape, np.uint8) if out is None else out
        scratch, more_scratch = self._scratch_canvases(shape)
        read = cache(self.read)  # several patches and pastes may use the same image

        # Mixup: a weighted mean of two layers.
        _draw_layer(plan.layers[0], canvas, read)
        for layer in plan.layers[1:]:
            _draw_layer(layer, scratch, read)
            cv2.addWeighted(canvas, plan.mix, scratch, 1 - plan.mix, 0, dst=canvas)

        # Colors, and BGR to RGB. A flip needs another array as its source.
        flips = plan.flip_up or plan.flip_left
        colored = scratch if flips else canvas
        if plan.hsv is None:
            cv2.cvtColor(canvas, cv2.COLOR_BGR2RGB, dst=colored)
        else:
            cv2.cvtColor(canvas, cv2.COLOR_BGR2HSV, dst=scratch)
            scaled = _scaled(scratch, plan.hsv, more_scratch)
            cv2.cvtColor(scaled, cv2.COLOR_HSV2RGB, dst=colored)

        if flips:
            cv2.flip(colored, FLIP_CODES[plan.flip_up, plan.flip_left], dst=canvas)
        return canvas

    def __reduce__(self) -> tuple[type["Drawer"], tuple[Reader]]:
        return Drawer, (self.read,)

    def _scratch_canvases(self, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
        """Return two scratch canvases of a shape."""
        size = int(np.prod(shape))
        if self._scratch.shape[1] < size:
            self._scratch = np.empty((2, size), np.uint8)
        return self._scratch[:, :size].reshape(2, *shape)


def _draw_layer(layer: CanvasLayer, canvas: Image, read: Reader) -> None:
    """Fill the canvas with the layer's patches, on gray, and its pastes."""
    canvas[:] = GRAY
    for patch in layer.patches:
        image = read(patch.index)
        if patch.target is None:
            _draw_warped(canvas, image, patch.matrix, [rectangle(*patch.region)])
        else:
            _draw_upright(canvas, image, patch.region, patch.target)

    for paste in layer.pastes:
        outlines = [rectangle(*paste.region), paste.outline]
        _draw_warped(canvas, read(paste.index), paste.matrix, outlines)


def _draw_upright(canvas: Image, image: Image, region: Region, target: Region) -> None:
    """Resize a region of the image into the target region of the canvas.

    It is several times faster than a warp.
    """
    crop = _part(image, region)
    area = _part(canvas, target)
    if crop.shape == area.shape:
        area[:] = crop
    else:
        height, width = area.shape[:2]
        cv2.resize(crop, (width, height), dst=area, interpolation=cv2.INTER_LINEAR)


def _part(image: Image, region: Region) -> Image:
    x1, y1, x2, y2 = region
    return image[y1:y2, x1:x2]


def _draw_warped(
    canvas: Image, image: Image, matrix: Matrix, outlines: Sequence[NDArray[np.float64]]
) -> None:
    """Draw the part of the image inside all outlines (image pixels, [P, 2]).

    Uses a mask, because OpenCV's transparent border mode blends edges with the canvas in some
    versions and omits them in others, which gives gray seams between patches. matrix: maps image to
    canvas pixels.
    """
    # OpenCV's integers are pixel centers
    outlines = [transformed(outline, matrix) - 0.5 for outline in outlines]

    # The area of the canvas where the outlines' boxes overlap.
    low = np.max([outline.min(0) for outline in outlines], 0)
    high = np.min([outline.max(0) for outline in outlines], 0)
    x1, y1 = np.floor(low).astype(int).clip(0).tolist()
    x2, y2 = np.ceil(high).astype(int).tolist()
    area = canvas[y1 : max(y2 + 1, 0), x1 : max(x2 + 1, 0)]
    if area.size == 0:
        return
    height, width = area.shape[:2]

    # The pixels of the area inside all outlines.
    mask: Image = np.full((height, width), 255, np.uint8)
    for outline in outlines:
        sixteenths = np.round((outline - [x1, y1]) * 16).astype(np.int32)
        inside = np.zeros((height, width), np.uint8)
        cv2.fillPoly(inside, [sixteenths], 255, shift=4)
        mask = cv2.bitwise_and(mask, inside)

    # The image, moved into the area.
    to_area = translation(-x1 - 0.5, -y1 - 0.5) @ matrix @ translation(0.5, 0.5)
    size = (width, height)
    border = cv2.BORDER_REPLICATE
    if np.allclose(matrix[2], (0, 0, 1)):
        warped = cv2.warpAffine(image, to_area[:2], size, borderMode=border)
    else:
        warped = cv2.warpPerspective(image, to_area, size, borderMode=border)
    cv2.copyTo(warped, mask, area)


def _scaled(hsv: Image, gains: tuple[float, float, float], out: Image) -> Image:
    """Return hue, saturation and value times their gains, as `color_tables` has them, in `out`.

    If no hue exceeds 255, a matrix does it in a fifth of the time of tables.
    """
    if gains[0] * (HUES - 1) <= 255:  # OpenCV's conversion back to RGB wraps hues of 180 and more
        return cv2.transform(hsv, np.diag(gains).astype(np.float32), dst=out)
    return cv2.LUT(hsv, color_tables(gains)[None], dst=out)


def color_tables(gains: tuple[float, float, float]) -> NDArray[np.uint8]:
    """Return each level of hue, saturation and value times its gain, uint8 [256, 3].

    Hues are modulo HUES, the others are clipped.
    """
    levels = np.arange(256, dtype=np.float32)[:, None]
    levels = np.round(levels * np.array(gains, np.float32))  # as cv2.transform does
    levels[:, 0] %= HUES
    return levels.clip(0, 255).astype(np.uint8)
