"""OpenCV, or one sentence that says what it lacks. Import it from here: `from utils.opencv import cv2`."""

import sys

try:
    import cv2
except ImportError as error:  # the wheel is there, a system library is not; or there is no wheel
    print(
        f"error: OpenCV cannot start ({error}). Install the system libraries it needs (apt-get install "
        "libgl1 libglib2.0-0), or the wheel that needs none: "
        "pip uninstall opencv-python && pip install opencv-python-headless",
        file=sys.stderr,
    )
    raise SystemExit(2) from error

__all__ = ["cv2"]
