"""Import OpenCV, or exit with one sentence that says what is missing.

Use `from utils.images.opencv import cv2`.
"""

import sys

try:
    import cv2
except ImportError as error:  # a system library is missing, or OpenCV is not installed
    print(
        f"error: OpenCV cannot be imported ({error}). Install the system libraries it needs "
        "(apt-get install "
        "libgl1 libglib2.0-0), or the wheel that does not need them: "
        "pip uninstall opencv-python && pip install opencv-python-headless",
        file=sys.stderr,
    )
    raise SystemExit(2) from error

__all__ = ["cv2"]
