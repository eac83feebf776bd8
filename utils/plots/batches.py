"""train_batch*.jpg, val_batch*.jpg: the images of a batch with their boxes, as a grid.

B images, T boxes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from utils.images.opencv import cv2
from utils.plots.annotate import draw_boxes, font_for, text_size
from utils.plots.canvas import FAINT, color_of, short_name, write_atomically

MOSAIC_SIDE = 1920  # pixels at most
SMALL_IMAGE = 480  # images of fewer pixels are enlarged up to this long side
GAP = 4  # pixels between the images
IGNORED = (120, 124, 130)  # color of ignored regions


def plot_batch(
    images: np.ndarray,
    targets: np.ndarray,
    names: Sequence[str],
    path: str | Path,
    *,
    scores: np.ndarray | None = None,
    titles: Sequence[str] | None = None,
    max_images: int = 16,
) -> None:
    """Draw a batch as a grid of its images with their boxes.

    Args:
        images: uint8 [B, H, W, 3] RGB.
        targets: [T, 6] image of the batch, class, x1, y1, x2, y2 in pixels; class -1 is an ignored
            region.
        names: of the classes.
        path: of the picture.
        scores: [T] in [0, 1], written beside the class.
        titles: one per image.
        max_images: further images of the batch are not drawn.
    """
    images = np.asarray(images)[:max_images]
    targets = np.asarray(targets, np.float64).reshape(-1, 6)
    if scores is not None:
        scores = np.asarray(scores, np.float64).reshape(-1)
    if not images.size:
        _write_image(_empty_mosaic(), Path(path))
        return

    # The grid, as square as possible.
    count, height, width, _ = images.shape
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)

    # The tiles that the images are resized to: small images are enlarged, large grids shrunk.
    scale_to_fit = min(MOSAIC_SIDE / (across * width), MOSAIC_SIDE / (down * height))
    enlarged = max(1.0, SMALL_IMAGE / max(width, height))
    scale = min(scale_to_fit, enlarged)
    tile_width = max(1, round(width * scale))
    tile_height = max(1, round(height * scale))
    box_scale = np.array([tile_width / width, tile_height / height] * 2)

    mosaic_width = across * (tile_width + GAP) + GAP
    mosaic_height = down * (tile_height + GAP) + GAP
    mosaic = Image.new("RGB", (mosaic_width, mosaic_height), "white")
    is_finite = np.isfinite(targets).all(1)
    for number, image in enumerate(images):
        is_own = is_finite & (targets[:, 0] == number)
        classes = targets[is_own, 1].astype(int)
        boxes = targets[is_own, 2:] * box_scale
        own_scores = None if scores is None else scores[is_own]

        drawn = _draw_tile(image, (tile_width, tile_height), classes, boxes, own_scores, names)
        if titles is not None and number < len(titles):
            _draw_title(drawn, short_name(titles, number, longest=48))

        row, column = divmod(number, across)
        left = GAP + column * (tile_width + GAP)
        top = GAP + row * (tile_height + GAP)
        mosaic.paste(drawn, (left, top))
    _write_image(mosaic, Path(path))


def _draw_tile(
    image: np.ndarray,
    tile: tuple[int, int],
    classes: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray | None,
    names: Sequence[str],
) -> Image.Image:
    """Return an image, resized to a tile, with its boxes.

    Args:
        image: uint8 [H, W, 3].
        tile: (width, height).
        classes: [T], -1 for an ignored region.
        boxes: [T, 4] in pixels of the tile.
        scores: [T].
        names: of the classes.
    """
    shrinks = tile[0] < image.shape[1]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    contiguous = np.ascontiguousarray(image)
    pixels: NDArray[Any] = cv2.resize(contiguous, tile, interpolation=interpolation)

    for box in boxes[classes < 0]:
        _hatch(pixels, box)

    labels = []
    colors = []
    for number, class_id in enumerate(classes.tolist()):
        if class_id < 0:
            words = ["ignored"]
            color = IGNORED
        else:
            words = [short_name(names, class_id)]
            color = color_of(class_id)

        if scores is not None:
            words.append(f"{scores[number]:.2f}")
        labels.append(words)
        colors.append(color)
    draw_boxes(pixels, boxes, labels, colors, scores=scores)
    return Image.fromarray(pixels)


def _hatch(pixels: np.ndarray, box: np.ndarray) -> None:
    """Gray out a box x1, y1, x2, y2 of an image with diagonal stripes."""
    height, width = pixels.shape[:2]
    corners = np.round(box).astype(int)
    x1, y1, x2, y2 = np.clip(corners, 0, [width, height, width, height])
    part = pixels[y1:y2, x1:x2]  # a view: it is painted in place

    # Stripes of 6 diagonals each.  [H, W]
    rows = np.arange(part.shape[0])[:, None]
    columns = np.arange(part.shape[1])
    diagonal = columns + rows
    is_stripe = diagonal // 6 % 2 == 0

    grayed = 0.3 * part[is_stripe] + 0.7 * 150
    part[is_stripe] = grayed.astype(np.uint8)


def _draw_title(image: Image.Image, title: str) -> None:
    """Write the title on a dark strip at the bottom."""
    font = font_for(title, text_size(*image.size))
    ascent, descent = font.getmetrics()
    strip_height = ascent + descent + 4
    top = image.height - strip_height

    strip = image.crop((0, top, image.width, image.height))
    darkened = strip.point(lambda value: value * 0.35)
    image.paste(darkened, (0, top))
    ImageDraw.Draw(image).text((5, top + 2), title, fill="white", font=font)


def _empty_mosaic() -> Image.Image:
    """Return the picture of a batch without images."""
    image = Image.new("RGB", (480, 320), "white")
    font = font_for("", text_size(*image.size))
    ImageDraw.Draw(image).text((240, 160), "no data", fill=FAINT, font=font, anchor="mm")
    return image


def _write_image(image: Image.Image, path: Path) -> None:
    """Write a PNG or JPEG file atomically."""
    file_format = "PNG" if path.suffix.lower() == ".png" else "JPEG"
    content = io.BytesIO()
    image.save(content, file_format, quality=92)
    write_atomically(path, content.getvalue())
