"""Draw boxes with labels on images: detections on photos and video frames, and the boxes of
batches.

Boxes and label backgrounds are drawn by OpenCV; the text is rendered by Pillow, because OpenCV's
own fonts lack most letters. D boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from utils.images.opencv import cv2
from utils.plots.canvas import colour_of, fonts, has_letters, short_name

Colour = tuple[int, ...]  # three values in [0, 255], in the channel order of the image
Corners = tuple[int, int, int, int]  # first and last pixel of a box: left, top, right, bottom
BLACK, WHITE = (0, 0, 0), (255, 255, 255)
MAX_LABEL_SHARE = 0.25  # of the image height


def draw_detections(
    image: NDArray[np.uint8],
    found_boxes_xyxy: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    scores: NDArray[np.floating] | None,
    names: Sequence[str],
    *,
    line_width: int | None = None,
    show_labels: bool = True,
    show_scores: bool = True,
) -> NDArray[np.uint8]:
    """A copy of an image with boxes and labels `name score`, the best score on top, or the smallest
    box without scores.

    image: uint8 [H, W, 3], blue green red. found_boxes_xyxy: [D, 4] in pixels. class_ids, scores:
    [D]. A box with nan or infinity is left out. line_width: in pixels, by default chosen from the
    image size. Without show_labels no text is drawn.
    """
    drawn: NDArray[np.uint8] = np.array(image, order="C")
    boxes, ids = (
        np.asarray(found_boxes_xyxy, np.float64).reshape(-1, 4),
        np.asarray(class_ids).tolist(),
    )
    labels = [
        _label(names, k, None if scores is None or not show_scores else scores[i])
        for i, k in enumerate(ids)
    ]
    draw_boxes(
        drawn,
        boxes,
        labels if show_labels else [()] * len(ids),
        [colour_of(k)[::-1] for k in ids],
        scores=scores,
        line_width=line_width,
    )
    return drawn


def _label(names: Sequence[str], class_id: int, score: float | None) -> tuple[str, ...]:
    name = short_name(names, class_id)
    return (name,) if score is None else (name, f"{score:.2f}")


def draw_boxes(
    image: NDArray[np.uint8],
    boxes_xyxy: NDArray[np.float64],
    labels: Sequence[Sequence[str]],
    colours: Sequence[Colour],
    *,
    scores: NDArray[np.floating] | None = None,
    line_width: int | None = None,
) -> None:
    """Draw boxes [D, 4] in pixels, in place: all boxes, then all labels, the best score last.

    labels: the words of each label, none for a box without label. colours: in the channel order of
    the image. scores:
    [D]; without them the smallest box is drawn last.
    """
    height, width = image.shape[:2]
    boxes = np.asarray(boxes_xyxy, np.float64)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order = np.argsort(-areas if scores is None else np.asarray(scores), kind="stable")
    order = order[np.isfinite(boxes[order]).all(1)]
    low = np.clip(boxes[:, :2], 0, [width - 1, height - 1])
    high = np.clip(boxes[:, 2:], low, [width - 1, height - 1])
    corners = np.round(np.nan_to_num(np.concatenate([low, high], 1))).astype(int).tolist()
    lines, letters = line_width or default_line_width(width, height), text_size(width, height)
    for number in order.tolist():
        _draw_box(image, tuple(corners[number]), tuple(colours[number]), lines)
    for number in order.tolist():
        if labels[number]:
            _draw_label(
                image,
                tuple(corners[number]),
                tuple(labels[number]),
                tuple(colours[number]),
                letters,
            )


def default_line_width(width: int, height: int) -> int:
    """The line width in pixels for an image of this size.

    >>> default_line_width(64, 64), default_line_width(640, 480), default_line_width(1920, 1080)
    (1, 2, 4)
    """
    return max(1, round(min(width, height) / 300))


def text_size(width: int, height: int) -> int:
    """The font size in pixels for an image of this size.

    >>> text_size(64, 64), text_size(640, 480), text_size(1920, 1080)
    (9, 14, 22)
    """
    return round(8 + min(width, height) / 80)


def contrasting(colour: Colour) -> Colour:
    """Black for a bright colour, white for a dark one. The order of the channels, RGB or BGR, makes
    no difference.

    >>> contrasting((255, 255, 0)), contrasting((37, 99, 235))
    ((0, 0, 0), (255, 255, 255))
    """
    outer, green = (colour[0] + colour[2]) / 2, colour[1]
    return BLACK if 0.413 * outer + 0.587 * green > 140 else WHITE


def _draw_box(image: NDArray[np.uint8], corners: Corners, colour: Colour, line_width: int) -> None:
    """A box between two thin lines of a contrasting colour, so that it is visible on a background
    of its colour.

    The outer edge of the box is at `corners`. Small boxes have thinner lines, so that their content
    stays visible.
    """
    left, top, right, bottom = corners
    side = min(right - left, bottom - top) + 1
    thick = max(1, min(line_width, side // 6))
    edge = max(1, thick // 4)
    inner = edge if side > 4 * (thick + edge) else 0
    around = (left - edge, top - edge, right + edge, bottom + edge)
    _draw_strips(image, around, contrasting(colour), edge + thick + inner)
    _draw_strips(image, corners, colour, thick)


def _draw_strips(image: NDArray[np.uint8], corners: Corners, colour: Colour, thick: int) -> None:
    """The four sides of a rectangle, inside its corners. cv2.rectangle would centre thick lines on
    them.
    """
    left, top, right, bottom = corners
    for strip in (
        (left, top, right, min(top + thick - 1, bottom)),
        (left, max(bottom - thick + 1, top), right, bottom),
        (left, top, min(left + thick - 1, right), bottom),
        (max(right - thick + 1, left), top, right, bottom),
    ):
        cv2.rectangle(image, strip[:2], strip[2:], colour, cv2.FILLED)


def _draw_label(
    image: NDArray[np.uint8], corners: Corners, words: tuple[str, ...], colour: Colour, size: int
) -> None:
    """Draw a label above a box, or inside it if there is no room above; never outside the image.

    On an image so low that labels would hide its content, nothing is drawn.
    """
    height, width = image.shape[:2]
    mask = _label_mask(words, size, width)
    tall, wide = mask.shape
    if tall > MAX_LABEL_SHARE * height:
        return
    left, top, _, _ = corners
    left, top = min(left, width - wide), top - tall if top >= tall else min(top, height - tall)
    image[top : top + tall, left : left + wide] = _shades(colour)[mask]


@lru_cache(maxsize=512)
def _shades(colour: Colour) -> NDArray[np.uint8]:
    """[256, 3]: the colours from a label's background to its text."""
    weight = np.linspace(0, 1, 256)[:, None]
    return np.round((1 - weight) * colour + weight * contrasting(colour)).astype(np.uint8)


def _label_mask(words: tuple[str, ...], size: int, max_width: int) -> NDArray[np.uint8]:
    """uint8 [h, w]: the words in a row. If that is wider than max_width, only the first word,
    shortened to fit.
    """
    masks = [_text_mask(word, size) for word in words]
    if sum(mask.shape[1] for mask in masks) <= max_width:
        return np.concatenate(masks, 1)
    if masks[0].shape[1] <= max_width:
        return masks[0]
    keep = int(len(words[0]) * max_width / masks[0].shape[1]) - 1
    return _text_mask(short_name(words[:1], 0, max(3, keep)), size)[:, :max_width]


@lru_cache(maxsize=1024)
def _text_mask(text: str, size: int) -> NDArray[np.uint8]:
    """uint8 [h, w]: one word, 255 where the text is. The height depends on the size alone."""
    ascent, descent = font_for("", size).getmetrics()
    font, margin = font_for(text, size), max(1, size // 6)
    mask = Image.new("L", (round(font.getlength(text)) + 2 * margin, ascent + descent))
    ImageDraw.Draw(mask).text((margin, ascent), text, fill=255, font=font, anchor="ls")
    return np.asarray(mask)


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont:
    """A font of `size` pixels that has the letters of the text, if one is installed."""
    font = next((font for font in fonts() if has_letters(font, text)), fonts()[-1])
    return _font(font.fname, size)


@lru_cache(maxsize=64)
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)
