"""Encode images as JPEG and PNG files."""

import numpy as np
from numpy.typing import NDArray

from utils.images.opencv import cv2

JPEG_QUALITY = 95
MAX_JPEG_SIDE = 65500  # pixels: libjpeg's limit


def encode_bgr(image: NDArray[np.uint8], suffix: str) -> bytes:
    """Return an image [H, W, 3], BGR, as the content of an image file.

    suffix: .png for a PNG file; with any other one it is a JPEG file.

    Raises: ValueError if the image is too large for the format.
    """
    kind = ".jpg"
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    if suffix.lower() == ".png":
        kind = ".png"
        options = []

    encoded, content = cv2.imencode(kind, image, options)
    if not encoded:
        height, width = image.shape[:2]
        raise ValueError(
            f"an image of {width} x {height} px cannot be a {kind} file; JPEG allows "
            f"{MAX_JPEG_SIDE:,} px, PNG more"
        )
    return content.tobytes()
