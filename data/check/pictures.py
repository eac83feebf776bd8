"""Thumbnails for the page: images of a finding, with their boxes."""

import base64

import numpy as np
from numpy.typing import NDArray

from data.check.findings import LABEL, Example, Mark, Picture
from utils.images.decode import read_image
from utils.images.opencv import cv2

LONG_SIDE = 200  # px of a thumbnail
CONTEXT = 2.0  # of the boxes' extent, that is shown around them
SMALLEST_VIEW = 96  # px of the image that are shown at least
QUALITY = 78
COLORS = {LABEL: (255, 144, 30)}  # blue, in OpenCV's order; others are orange
OTHER_COLOR = (0, 110, 255)


class Thumbnails:
    """Draws the pictures of examples, up to a number of bytes in all.

    most_bytes: of the encoded pictures, as they stand in the page.
    """

    def __init__(self, most_bytes: int) -> None:
        self.left = most_bytes

    def of(self, example: Example) -> list[str]:
        """Return a data URL for each picture of an example.

        None where the bytes that are left are too few, or an image cannot be read.
        """
        urls = []
        for picture in example.pictures:
            try:
                encoded = draw(picture)
            except (ValueError, MemoryError, cv2.error):
                return []
            urls.append(f"data:image/jpeg;base64,{base64.b64encode(encoded).decode()}")
        needed = sum(map(len, urls))
        if needed > self.left:
            return []
        self.left -= needed
        return urls


def draw(picture: Picture) -> bytes:
    """Return the thumbnail of an image as a JPEG: with boxes the part around them.

    Raises ValueError if the image cannot be read.
    """
    image = read_image(picture.path)
    left, top, right, bottom = view_of(picture.marks, image.shape[1], image.shape[0])
    view = image[top:bottom, left:right]
    scale = LONG_SIDE / max(view.shape[:2])
    size = [max(1, round(side * scale)) for side in (right - left, bottom - top)]
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    drawn: NDArray[np.uint8] = np.ascontiguousarray(cv2.resize(view, size, interpolation=method))

    for mark in picture.marks:
        x, y, width, height = mark.box_xywh
        corners = np.array([x - left, y - top, x + width - left, y + height - top]) * scale
        x1, y1, x2, y2 = np.rint(corners.clip(-LONG_SIDE, 2 * LONG_SIDE)).astype(int).tolist()
        color = COLORS.get(mark.kind, OTHER_COLOR)
        cv2.rectangle(drawn, (x1, y1), (x2, y2), color, 2)
    _, encoded = cv2.imencode(".jpg", drawn, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return encoded.tobytes()


def view_of(marks: tuple[Mark, ...], width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of the part of an image that shows its marks.

    >>> view_of((), 640, 480)
    (0, 0, 640, 480)
    >>> view_of((Mark((100.0, 100.0, 50.0, 100.0), "label"),), 640, 480)
    (25, 50, 225, 250)
    """
    if not marks:
        return 0, 0, width, height
    boxes = np.array([mark.box_xywh for mark in marks])
    low = boxes[:, :2].min(0)
    high = (boxes[:, :2] + boxes[:, 2:]).max(0)
    center = (low + high) / 2
    side = max(float((high - low).max()) * CONTEXT, SMALLEST_VIEW)
    size = np.array([width, height])
    start = np.floor(center - side / 2).clip(0, np.maximum(size - 1, 0))
    end = np.ceil(center + side / 2).clip(start + 1, size)
    left, top = start.astype(int).tolist()
    right, bottom = end.astype(int).tolist()
    return left, top, right, bottom
