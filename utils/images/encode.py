"""Encode images as JPEG and PNG files."""

import numpy as np
from numpy.typing import NDArray

from utils.images.opencv import cv2

JPEG_QUALITY = 95


def encode_bgr(image: NDArray[np.uint8], suffix: str) -> bytes:
    """Return an image [H, W, 3], BGR, as the content of a .png file or, with any other suffix, of a JPEG file."""
    if suffix.lower() == ".png":
        return cv2.imencode(".png", image)[1].tobytes()
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes()
