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
from utils.plots.canvas import FAINT, colour_of, short_name, write_atomically

MOSAIC_SIDE = 1920  # pixels at most
IGNORED = (120, 124, 130)  # colour of ignored regions


# train_batch*.jpg, val_batch*.jpg
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
        scores: [T] in [0, 1], written beside the class.
        titles: one per image.
    """
    images = np.asarray(images)[:max_images]
    targets = np.asarray(targets, np.float64).reshape(-1, 6)
    if not images.size:
        _write_image(_empty_mosaic(), Path(path))
        return
    count, height, width, _ = images.shape
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    scale = min(
        MOSAIC_SIDE / (across * width),
        MOSAIC_SIDE / (down * height),
        max(1.0, 480 / max(width, height)),
    )
    tile = max(1, round(width * scale)), max(1, round(height * scale))

    gap = 4
    mosaic = Image.new(
        "RGB", (across * (tile[0] + gap) + gap, down * (tile[1] + gap) + gap), "white"
    )
    for number, image in enumerate(images):
        own = (targets[:, 0] == number) & np.isfinite(targets).all(1)
        boxes = targets[own, 2:] * np.array([tile[0] / width, tile[1] / height] * 2)
        own_scores = None if scores is None else np.asarray(scores, np.float64).reshape(-1)[own]
        drawn = _draw_tile(image, tile, targets[own, 1].astype(int), boxes, own_scores, names)
        if titles is not None and number < len(titles):
            _draw_title(drawn, short_name(titles, number, longest=48))
        row, column = divmod(number, across)
        mosaic.paste(drawn, (gap + column * (tile[0] + gap), gap + row * (tile[1] + gap)))
    _write_image(mosaic, Path(path))


def _draw_tile(
    image: np.ndarray,
    tile: tuple[int, int],
    classes: np.ndarray,
    boxes: np.ndarray,
    scores: np.ndarray | None,
    names: Sequence[str],
) -> Image.Image:
    """An image, resized to tile (width, height), with its boxes [T, 4] in pixels of the tile."""
    shrinks = tile[0] < image.shape[1]
    pixels: NDArray[Any] = cv2.resize(
        np.ascontiguousarray(image),
        tile,
        interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
    )
    for box in boxes[classes < 0]:
        _hatch(pixels, box)
    labels, colours = [], []
    for number, class_id in enumerate(classes.tolist()):
        score = () if scores is None else (f"{scores[number]:.2f}",)
        labels.append(("ignored" if class_id < 0 else short_name(names, class_id), *score))
        colours.append(IGNORED if class_id < 0 else colour_of(class_id))
    draw_boxes(pixels, boxes, labels, colours, scores=scores)
    return Image.fromarray(pixels)


def _hatch(pixels: np.ndarray, box: np.ndarray) -> None:
    """Grey out a box x1, y1, x2, y2 of an image with diagonal stripes."""
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = np.clip(np.round(box).astype(int), 0, [width, height, width, height])
    part = pixels[y1:y2, x1:x2]
    stripes = (np.arange(part.shape[1]) + np.arange(part.shape[0])[:, None]) // 6 % 2 == 0
    part[stripes] = (0.3 * part[stripes] + 0.7 * 150).astype(np.uint8)


def _draw_title(image: Image.Image, title: str) -> None:
    """Write the title on a dark strip at the bottom."""
    font = font_for(title, text_size(*image.size))
    tall = sum(font.getmetrics()) + 4
    strip = image.crop((0, image.height - tall, image.width, image.height)).point(
        lambda value: value * 0.35
    )
    image.paste(strip, (0, image.height - tall))
    ImageDraw.Draw(image).text((5, image.height - tall + 2), title, fill="white", font=font)


def _empty_mosaic() -> Image.Image:
    image = Image.new("RGB", (480, 320), "white")
    ImageDraw.Draw(image).text(
        (240, 160), "no data", fill=FAINT, font=font_for("", text_size(*image.size)), anchor="mm"
    )
    return image


def _write_image(image: Image.Image, path: Path) -> None:
    content = io.BytesIO()
    image.save(content, "PNG" if path.suffix.lower() == ".png" else "JPEG", quality=92)
    write_atomically(path, content.getvalue())
