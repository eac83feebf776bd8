"""Letterboxing: put a resized image in the middle of a grey canvas, and map boxes between image and
canvas.

Coordinate frames: *image* pixels as in the file, *base* pixels of the image after its long side was
resized to the training size, *canvas* pixels. A size is (width, height); a canvas shape is (height,
width), as in arrays.

Both data/ (loading) and models/ (prediction) use this module, because they must place images
identically and do not import each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.images.opencv import cv2

Image = np.ndarray  # uint8 [H, W, 3]
Region = tuple[int, int, int, int]  # x1, y1, x2, y2
GREY = 114  # pixel value of the canvas around the image
EVALUATION_PAD = 0.5  # grey padding in strides, added in evaluation and prediction


class Placement(NamedTuple):
    """Position of an image on a canvas: canvas pixels = image pixels * scale_xy + shift_xy, float64
    [2] each.
    """

    scale_xy: NDArray[np.float64]
    shift_xy: NDArray[np.float64]

    def to_canvas(self, boxes_xyxy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert boxes [N, 4] from image pixels to canvas pixels."""
        return boxes_xyxy * np.tile(self.scale_xy, 2) + np.tile(self.shift_xy, 2)

    def to_image(
        self, boxes_xyxy: NDArray[np.float64], size: tuple[int, int]
    ) -> NDArray[np.float64]:
        """Convert boxes [N, 4] from canvas pixels to image pixels, clipped to the image of `size`
        (width, height).

        >>> # 640 x 480 on 320 x 320
        >>> placement = Placement(np.array([0.5, 0.5]), np.array([0.0, 40.0]))
        >>> placement.to_image(np.array([[-10.0, 60.0, 100.0, 240.0]]), (640, 480)).tolist()
        [[0.0, 40.0, 200.0, 400.0]]
        """
        image = (boxes_xyxy - np.tile(self.shift_xy, 2)) / np.tile(self.scale_xy, 2)
        return image.clip(0, np.tile(np.array(size, np.float64), 2))


def place(size: tuple[int, int], base_size: tuple[int, int], canvas: tuple[int, int]) -> Placement:
    """The placement of an image of `size`, resized to `base_size`, on a canvas (height, width).

    >>> place((640, 480), (320, 240), (320, 320))
    Placement(scale_xy=array([0.5, 0.5]), shift_xy=array([ 0., 40.]))
    """
    x1, y1, x2, y2 = centered(base_size, canvas)
    base_scale = np.array(base_size) / np.array(size)
    return Placement(
        base_scale * (np.array([x2 - x1, y2 - y1]) / np.array(base_size)),
        np.array([x1, y1], np.float64),
    )


def centered(base_size: tuple[int, int], canvas: tuple[int, int]) -> Region:
    """The centred canvas region of a base image. An image that does not fit is shrunk, to at least
    1 px per side.

    >>> centered((320, 239), (320, 320)), centered((320, 240), (160, 160))
    ((0, 40, 320, 279), (0, 20, 160, 140))
    """
    (wide, high), (height, width) = base_size, canvas
    ratio = min(height / high, width / wide, 1.0)
    fit_w, fit_h = max(1, round(wide * ratio)), max(1, round(high * ratio))
    left, top = (width - fit_w) // 2, (height - fit_h) // 2
    return left, top, left + fit_w, top + fit_h


def base_sizes(sizes: NDArray[np.int32], image_size: int, tile: int = 0) -> NDArray[np.int32]:
    """Width and height of the base images, [M, 2], at least 1 px each. sizes: [M, 2] width and
    height of the images.

    tile: side of the tiles that images are cut into, which are resized to image_size in place of
    the whole image.

    >>> base_sizes(np.array([[640, 480], [20000, 10]], np.int32), 320).tolist()
    [[320, 240], [320, 1]]
    >>> base_sizes(np.array([[640, 480], [3000, 500]], np.int32), 320, tile=1000).tolist()
    [[320, 240], [960, 160]]
    """
    long_sides = sizes.max(1, initial=1, keepdims=True)
    ratios = image_size / (np.minimum(long_sides, tile) if tile else long_sides)
    return np.maximum(np.round(sizes * ratios), 1).astype(np.int32)


def resized(image: Image, width: int, height: int) -> Image:
    """Resize an image: area averaging if a side shrinks, else bilinear interpolation."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = height < image.shape[0] or width < image.shape[1]
    return cv2.resize(
        image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    )


def draw_letterboxed(image: Image, base_size: tuple[int, int], canvas: Image) -> None:
    """Draw the resized image in the middle of a canvas [H, W, 3] and fill the rest with grey, in
    place.
    """
    canvas[:] = GREY
    x1, y1, x2, y2 = centered(base_size, canvas.shape[:2])
    canvas[y1:y2, x1:x2] = resized(image, x2 - x1, y2 - y1)


def round_up_to_stride(size: int, stride: int) -> int:
    """The smallest multiple of the stride that is at least `size` and at least two strides.

    With one stride a single image gives a feature map of one cell, which BatchNorm rejects in
    training.

    >>> round_up_to_stride(33, 32), round_up_to_stride(100, 32), round_up_to_stride(64, 64)
    (64, 128, 128)
    """
    return max(-(-size // stride), 2) * stride


def fit_to_stride(image_size: int, stride: int, say: Callable[[str], None]) -> int:
    """Round --imgsz up to a size that fits the largest stride of the model; log it if the size
    changes.
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
        """(height, width), multiples of the stride, of a canvas that holds images of these height /
        width ratios.

        >>> CanvasShapes(320, 32).shape(np.array([0.75, 0.7]))
        (256, 320)
        """
        low, high = float(ratios.min()), float(ratios.max())
        tall, wide = (high, 1.0) if high < 1 else (1.0, 1 / low) if low > 1 else (1.0, 1.0)
        sides = np.array([tall, wide]) * self.image_size / self.stride
        height, width = (max(1, int(np.ceil(s - 1e-9 + self.pad))) * self.stride for s in sides)
        return height, width

    @property
    def largest(self) -> tuple[int, int]:
        """(height, width) of the largest canvas that `shape` can return."""
        side = max(1, int(np.ceil(self.image_size / self.stride + self.pad))) * self.stride
        return side, side


@dataclass(frozen=True)
class FixedCanvas(CanvasShapes):
    """The same canvas for all images, (height, width), as an exported model of a fixed input size
    needs.
    """

    canvas: tuple[int, int] = (0, 0)

    def shape(self, ratios: NDArray[np.float64]) -> tuple[int, int]:
        return self.canvas

    @property
    def largest(self) -> tuple[int, int]:
        return self.canvas


def canvas_shapes(
    image_size: int, stride: int, fixed: tuple[int, int] | None = None
) -> CanvasShapes:
    """The canvases of evaluation and prediction: rectangular with padding, or `fixed` (height,
    width).

    image_size: long side in pixels, rounded up to a multiple of the stride; of a fixed canvas, its
    longer side is used.
    """
    if fixed:
        return FixedCanvas(max(fixed), stride, canvas=fixed)
    return CanvasShapes(round_up_to_stride(image_size, stride), stride, EVALUATION_PAD)
