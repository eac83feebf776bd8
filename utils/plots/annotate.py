"""Draw boxes with labels on images: detections on photos and frames, and the boxes of batches.

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
from utils.plots.canvas import color_of, fonts, has_letters, short_name

Color = tuple[int, ...]  # three values in [0, 255], in the channel order of the image
Corners = tuple[int, int, int, int]  # first and last pixel of a box: left, top, right, bottom
BLACK = (0, 0, 0)
WHITE = (255, 255, 255)
MAX_LABEL_SHARE = 0.25  # of the image height


def draw_detections(
    image: NDArray[np.uint8],
    boxes_xyxy: NDArray[np.floating],
    class_ids: NDArray[np.integer],
    scores: NDArray[np.floating] | None,
    names: Sequence[str],
    *,
    line_width: int | None = None,
    show_labels: bool = True,
    show_scores: bool = True,
) -> NDArray[np.uint8]:
    """Return a copy of an image with boxes and labels `name score`.

    The best score is on top, or the smallest box without scores. A box with nan or infinity is left
    out.

    Args:
        image: uint8 [H, W, 3], blue green red.
        boxes_xyxy: [D, 4] in pixels.
        class_ids: [D].
        scores: [D].
        names: of the classes.
        line_width: in pixels, by default chosen from the image size.
        show_labels: False to draw no text.
        show_scores: False to leave the scores out of the labels.
    """
    drawn: NDArray[np.uint8] = np.array(image, order="C")
    boxes = np.asarray(boxes_xyxy, np.float64).reshape(-1, 4)

    labels: list[tuple[str, ...]] = []
    colors = []
    for number, class_id in enumerate(np.asarray(class_ids).tolist()):
        words: tuple[str, ...] = ()
        if show_labels:
            words = (short_name(names, class_id),)
            if show_scores and scores is not None:
                words += (f"{scores[number]:.2f}",)
        labels.append(words)

        red, green, blue = color_of(class_id)
        colors.append((blue, green, red))

    draw_boxes(drawn, boxes, labels, colors, scores=scores, line_width=line_width)
    return drawn


def draw_boxes(
    image: NDArray[np.uint8],
    boxes_xyxy: NDArray[np.float64],
    labels: Sequence[Sequence[str]],
    colors: Sequence[Color],
    *,
    scores: NDArray[np.floating] | None = None,
    line_width: int | None = None,
) -> None:
    """Draw boxes [D, 4] in pixels, in place: all boxes, then all labels, the best score last.

    Args:
        image: uint8 [H, W, 3].
        boxes_xyxy: [D, 4]; one with nan or infinity is left out.
        labels: the words of each label, none for a box without label.
        colors: in the channel order of the image.
        scores: [D]; without them the smallest box is drawn last.
        line_width: in pixels, by default chosen from the image size.
    """
    height, width = image.shape[:2]
    boxes = np.asarray(boxes_xyxy, np.float64)
    line_width = line_width or default_line_width(width, height)
    letter_size = text_size(width, height)

    # The order in which they are drawn: the last one is on top.
    if scores is None:
        x1, y1, x2, y2 = boxes.T
        areas = (x2 - x1) * (y2 - y1)
        order = np.argsort(-areas, kind="stable")
    else:
        order = np.argsort(np.asarray(scores), kind="stable")
    is_finite = np.isfinite(boxes[order]).all(1)
    order = order[is_finite]

    # First and last pixel of each box, inside the image.  [D, 4]
    last_pixel = [width - 1, height - 1]
    low = np.clip(boxes[:, :2], 0, last_pixel)
    high = np.clip(boxes[:, 2:], low, last_pixel)
    clipped = np.nan_to_num(np.concatenate([low, high], 1))
    pixels = np.round(clipped).astype(int).tolist()
    corners: list[Corners] = [tuple(box) for box in pixels]

    for number in order.tolist():
        _draw_box(image, corners[number], tuple(colors[number]), line_width)

    for number in order.tolist():
        words = tuple(labels[number])
        if words:
            _draw_label(image, corners[number], words, tuple(colors[number]), letter_size)


def default_line_width(width: int, height: int) -> int:
    """Return the line width in pixels for an image of this size.

    >>> default_line_width(64, 64), default_line_width(640, 480), default_line_width(1920, 1080)
    (1, 2, 4)
    """
    return max(1, round(min(width, height) / 300))


def text_size(width: int, height: int) -> int:
    """Return the font size in pixels for an image of this size.

    >>> text_size(64, 64), text_size(640, 480), text_size(1920, 1080)
    (9, 14, 22)
    """
    return round(8 + min(width, height) / 80)


def contrasting(color: Color) -> Color:
    """Return black for a bright color, white for a dark one.

    The order of the channels, RGB or BGR, makes no difference.

    >>> contrasting((255, 255, 0)), contrasting((37, 99, 235))
    ((0, 0, 0), (255, 255, 255))
    """
    first, green, last = color
    red_and_blue = (first + last) / 2
    brightness = 0.413 * red_and_blue + 0.587 * green
    return BLACK if brightness > 140 else WHITE


def _draw_box(image: NDArray[np.uint8], corners: Corners, color: Color, line_width: int) -> None:
    """Draw a box between two thin lines of a contrasting color, visible on any background.

    The outer edge of the box is at `corners`. Small boxes have thinner lines, so that their content
    stays visible, and none inside.
    """
    left, top, right, bottom = corners
    short_side = min(right - left, bottom - top) + 1
    thick = max(1, min(line_width, short_side // 6))
    outer = max(1, thick // 4)
    has_room_inside = short_side > 4 * (thick + outer)
    inner = outer if has_room_inside else 0

    # One wide contrasting line. What the box leaves of it are the two thin ones.
    around = (left - outer, top - outer, right + outer, bottom + outer)
    _draw_strips(image, around, contrasting(color), outer + thick + inner)
    _draw_strips(image, corners, color, thick)


def _draw_strips(image: NDArray[np.uint8], corners: Corners, color: Color, thick: int) -> None:
    """Draw the four sides of a rectangle, inside its corners.

    cv2.rectangle would center thick lines on them.
    """
    left, top, right, bottom = corners

    # The innermost pixels of the four sides.
    inner_left = min(left + thick - 1, right)
    inner_top = min(top + thick - 1, bottom)
    inner_right = max(right - thick + 1, left)
    inner_bottom = max(bottom - thick + 1, top)

    cv2.rectangle(image, (left, top), (right, inner_top), color, cv2.FILLED)
    cv2.rectangle(image, (left, inner_bottom), (right, bottom), color, cv2.FILLED)
    cv2.rectangle(image, (left, top), (inner_left, bottom), color, cv2.FILLED)
    cv2.rectangle(image, (inner_right, top), (right, bottom), color, cv2.FILLED)


def _draw_label(
    image: NDArray[np.uint8], corners: Corners, words: tuple[str, ...], color: Color, size: int
) -> None:
    """Draw a label above a box, or inside it if there is no room above; never outside the image.

    On an image so low that labels would hide its content, nothing is drawn.

    Args:
        image: uint8 [H, W, 3].
        corners: of the box.
        words: of the label.
        color: of the box.
        size: of the letters in pixels.
    """
    height, width = image.shape[:2]
    mask = _label_mask(words, size, width)
    label_height, label_width = mask.shape
    if label_height > MAX_LABEL_SHARE * height:
        return

    box_left, box_top, _, _ = corners
    left = min(box_left, width - label_width)
    if box_top >= label_height:  # there is room above
        top = box_top - label_height
    else:
        top = min(box_top, height - label_height)
    image[top : top + label_height, left : left + label_width] = _shades(color)[mask]


@lru_cache(maxsize=512)
def _shades(color: Color) -> NDArray[np.uint8]:
    """Return the colors from a label's background to its text, [256, 3]."""
    weight = np.linspace(0, 1, 256)[:, None]
    mixed = (1 - weight) * color + weight * contrasting(color)
    return np.round(mixed).astype(np.uint8)


def _label_mask(words: tuple[str, ...], size: int, max_width: int) -> NDArray[np.uint8]:
    """Return the words in a row, uint8 [h, w], 255 where the text is.

    If that is wider than max_width, it is only the first word, shortened to fit.
    """
    masks = [_text_mask(word, size) for word in words]
    row = np.concatenate(masks, 1)
    if row.shape[1] <= max_width:
        return row

    first_width = masks[0].shape[1]
    if first_width <= max_width:
        return masks[0]

    fitting_letters = int(len(words[0]) * max_width / first_width) - 1
    shortened = short_name(words[:1], 0, max(3, fitting_letters))
    return _text_mask(shortened, size)[:, :max_width]


@lru_cache(maxsize=1024)
def _text_mask(text: str, size: int) -> NDArray[np.uint8]:
    """Return one word, uint8 [h, w], 255 where the text is. The size alone decides h."""
    ascent, descent = font_for("", size).getmetrics()
    font = font_for(text, size)
    margin = max(1, size // 6)
    width = round(font.getlength(text)) + 2 * margin

    mask = Image.new("L", (width, ascent + descent))
    baseline = (margin, ascent)
    ImageDraw.Draw(mask).text(baseline, text, fill=255, font=font, anchor="ls")
    return np.asarray(mask)


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont:
    """Return a font of `size` pixels that has the letters of the text, if one is installed."""
    for font in fonts():
        if has_letters(font, text):
            return _font(font.fname, size)
    return _font(fonts()[-1].fname, size)


@lru_cache(maxsize=64)
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)
