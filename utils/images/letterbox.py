"""Letterboxing: put a resized image on a gray canvas, and map boxes between the two.

Coordinate frames: *image* pixels as in the file, *base* pixels of the image after its long side was
resized to the training size, *canvas* pixels. A size is (width, height); a canvas shape is (height,
width), as in arrays.

A letterbox names where the image lies on the canvas: in the center, or at the top left, where some
other projects put it. `canvas_region` is the one place that computes it.

Both data/ (loading) and models/ (prediction) use this module, because they must place images
identically and do not import each other.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from utils.images.opencv import cv2

Image = np.ndarray  # uint8 [H, W, 3]
Region = tuple[int, int, int, int]  # x1, y1, x2, y2
Letterbox = Literal["center", "top_left"]
LETTERBOXES: tuple[Letterbox, ...] = get_args(Letterbox)
GRAY = 114  # pixel value of the canvas around the image
EVALUATION_PAD = 0.5  # gray padding in strides, added in evaluation and prediction


class Placement(NamedTuple):
    """Position of an image on a canvas: canvas pixels = image pixels * scale_xy + shift_xy."""

    scale_xy: NDArray[np.float64]  # [2]
    shift_xy: NDArray[np.float64]  # [2]

    def to_canvas(self, boxes_xyxy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert boxes [N, 4] from image pixels to canvas pixels."""
        scale = np.tile(self.scale_xy, 2)  # [4]
        shift = np.tile(self.shift_xy, 2)
        return boxes_xyxy * scale + shift

    def to_image(
        self, boxes_xyxy: NDArray[np.float64], size: tuple[int, int]
    ) -> NDArray[np.float64]:
        """Convert boxes [N, 4] from canvas pixels to image pixels, clipped to the image.

        size: (width, height) of the image.

        >>> # 640 x 480 on 320 x 320
        >>> placement = Placement(np.array([0.5, 0.5]), np.array([0.0, 40.0]))
        >>> placement.to_image(np.array([[-10.0, 60.0, 100.0, 240.0]]), (640, 480)).tolist()
        [[0.0, 40.0, 200.0, 400.0]]
        """
        scale = np.tile(self.scale_xy, 2)  # [4]
        shift = np.tile(self.shift_xy, 2)
        image_boxes = (boxes_xyxy - shift) / scale

        highest = np.tile(np.array(size, np.float64), 2)
        return image_boxes.clip(0, highest)


def place(
    size: tuple[int, int],
    base_size: tuple[int, int],
    canvas: tuple[int, int],
    at: Letterbox = "center",
) -> Placement:
    """Return the placement of an image of `size`, resized to `base_size`, on a canvas.

    size, base_size: (width, height). canvas: (height, width). at: where the image lies.

    >>> place((640, 480), (320, 240), (320, 320))
    Placement(scale_xy=array([0.5, 0.5]), shift_xy=array([ 0., 40.]))
    """
    x1, y1, x2, y2 = canvas_region(base_size, canvas, at)
    drawn_size = np.array([x2 - x1, y2 - y1])

    # From image to base pixels, and from these to canvas pixels.
    base_scale = np.array(base_size) / np.array(size)
    canvas_scale = drawn_size / np.array(base_size)
    shift = np.array([x1, y1], np.float64)
    return Placement(base_scale * canvas_scale, shift)


def canvas_region(
    base_size: tuple[int, int], canvas: tuple[int, int], at: Letterbox = "center"
) -> Region:
    """Return the canvas region of a base image.

    An image that does not fit is shrunk, to at least 1 px per side.

    >>> canvas_region((320, 239), (320, 320)), canvas_region((320, 240), (160, 160))
    ((0, 40, 320, 279), (0, 20, 160, 140))
    >>> canvas_region((320, 239), (320, 320), "top_left")
    (0, 0, 320, 239)
    """
    base_width, base_height = base_size
    canvas_height, canvas_width = canvas
    ratio = min(canvas_height / base_height, canvas_width / base_width, 1.0)

    width = max(1, round(base_width * ratio))
    height = max(1, round(base_height * ratio))
    if at == "top_left":
        return 0, 0, width, height
    left = (canvas_width - width) // 2
    top = (canvas_height - height) // 2
    return left, top, left + width, top + height


def base_sizes(
    sizes: NDArray[np.int32],
    image_size: int,
    tile: int = 0,
    canvas: tuple[int, int] | None = None,
) -> NDArray[np.int32]:
    """Return the width and height of the base images, [M, 2], at least 1 px each.

    sizes: [M, 2] width and height of the images. image_size: of the long side. tile: side of the
    tiles that images are cut into, which are resized to image_size in place of the whole image.
    canvas: (height, width) that the base images fit on, so that no image is resized twice.

    >>> base_sizes(np.array([[640, 480], [20000, 10]], np.int32), 320).tolist()
    [[320, 240], [320, 1]]
    >>> base_sizes(np.array([[640, 480], [3000, 500]], np.int32), 320, tile=1000).tolist()
    [[320, 240], [960, 160]]
    >>> base_sizes(np.array([[640, 480], [640, 100]], np.int32), 320, canvas=(192, 320)).tolist()
    [[256, 192], [320, 50]]
    """
    long_sides = sizes.max(1, initial=1, keepdims=True)
    if tile:
        long_sides = np.minimum(long_sides, tile)
    ratios = image_size / long_sides  # [M, 1]
    if canvas:
        height, width = canvas
        fitting = (np.array([width, height]) / sizes).min(1, keepdims=True)
        ratios = np.minimum(ratios, fitting)
    rounded = np.round(sizes * ratios)
    return np.maximum(rounded, 1).astype(np.int32)


def resized(image: Image, width: int, height: int) -> Image:
    """Resize an image: area averaging if a side shrinks, else bilinear interpolation."""
    old_height, old_width = image.shape[:2]
    if (old_height, old_width) == (height, width):
        return image
    shrinks = height < old_height or width < old_width
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cv2.resize(image, (width, height), interpolation=interpolation)


def draw_letterboxed(
    image: Image, base_size: tuple[int, int], canvas: Image, at: Letterbox = "center"
) -> None:
    """Draw the resized image on a canvas [H, W, 3], the rest gray, in place."""
    canvas[:] = GRAY
    x1, y1, x2, y2 = canvas_region(base_size, canvas.shape[:2], at)
    canvas[y1:y2, x1:x2] = resized(image, x2 - x1, y2 - y1)


def round_up_to_stride(size: int, stride: int) -> int:
    """Return the smallest multiple of the stride that is at least `size` and at least two strides.

    With one stride a single image gives a feature map of one cell, which BatchNorm rejects in
    training.

    >>> round_up_to_stride(33, 32), round_up_to_stride(100, 32), round_up_to_stride(64, 64)
    (64, 128, 128)
    """
    strides = -(-size // stride)  # rounded up
    return max(strides, 2) * stride


def fit_to_stride(image_size: int, stride: int, say: Callable[[str], None]) -> int:
    """Return --imgsz, rounded up to a size that fits the model's largest stride.

    say: receives a log line if that changes it.
    """
    fitting = round_up_to_stride(image_size, stride)
    if fitting != image_size:
        rule = (
            f"must be a multiple of the largest stride, {stride}, and at least twice it "
            "(BatchNorm needs 2 cells)"
        )
        say(f"--imgsz {image_size} is rounded up to {fitting}: {rule}")
    return fitting


@dataclass(frozen=True)
class CanvasShapes:
    """Rectangular canvas shapes: the long side is `image_size`, the short side fits the images."""

    image_size: int
    stride: int
    pad: float = 0.0  # strides added before rounding up

    def shape(self, ratios: NDArray[np.float64]) -> tuple[int, int]:
        """Return the (height, width) of a canvas for images of these height / width ratios.

        Both are multiples of the stride.

        >>> CanvasShapes(320, 32).shape(np.array([0.75, 0.7]))
        (256, 320)
        """
        lowest = float(ratios.min())
        highest = float(ratios.max())

        # As fractions of image_size.
        height = highest if highest < 1 else 1.0
        width = 1 / lowest if lowest > 1 else 1.0

        strides_high = height * self.image_size / self.stride
        strides_wide = width * self.image_size / self.stride
        # A rounding error of the ratio must not add a stride.
        return self._side(strides_high - 1e-9), self._side(strides_wide - 1e-9)

    def _side(self, strides: float) -> int:
        """Return the pixels of a side of this many strides, padded and rounded up to whole ones."""
        return max(1, math.ceil(strides + self.pad)) * self.stride

    @property
    def largest(self) -> tuple[int, int]:
        """Return the (height, width) of the largest canvas that `shape` can return."""
        side = self._side(self.image_size / self.stride)
        return side, side


@dataclass(frozen=True)
class FixedCanvas(CanvasShapes):
    """The same canvas for all images, as an exported model of a fixed input size needs."""

    canvas: tuple[int, int] = (0, 0)  # (height, width)

    def shape(self, ratios: NDArray[np.float64]) -> tuple[int, int]:
        return self.canvas

    @property
    def largest(self) -> tuple[int, int]:
        return self.canvas


def size_text(image_size: int, canvas: tuple[int, int] | None) -> str:
    """Return the size of images as text: their long side, or width x height of the one canvas.

    >>> size_text(640, None), size_text(640, (480, 640))
    ('640 px', '640 x 480 px')
    """
    if canvas is None:
        return f"{image_size} px"
    height, width = canvas
    return f"{width} x {height} px"


def canvas_shapes(
    image_size: int, stride: int, fixed: tuple[int, int] | None = None
) -> CanvasShapes:
    """Return the canvases of evaluation and prediction: rectangular with padding, or `fixed`.

    image_size: long side in pixels, rounded up to a multiple of the stride. fixed: (height, width),
    whose longer side is used instead of image_size.
    """
    if fixed:
        return FixedCanvas(max(fixed), stride, canvas=fixed)
    long_side = round_up_to_stride(image_size, stride)
    return CanvasShapes(long_side, stride, EVALUATION_PAD)
