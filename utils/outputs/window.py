"""A window that shows annotated frames while they are detected."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from utils.images.detections import Frame, ImageDetections
from utils.images.opencv import cv2
from utils.outputs.annotated import Annotator
from utils.outputs.recent import RecentlyUsed
from utils.printable import printable

Result = TypeVar("Result")
IMAGE_S = 1.0  # seconds that an image is shown, unless a key is pressed
QUIT_KEYS = (ord("q"), ord("Q"), 27)  # 27: Esc
LARGEST = 1280, 720  # pixels of a window at first
IMAGES = "images"  # title of the window for all images


class WindowClosed(Exception):  # no suffix Error: the user ends the program
    """The user closed the window, or pressed q or Esc in it: the program should end."""


class Window:
    """Shows each frame: images in one window, and each video or stream in a window of its own.

    A frame of a video is shown until the next one, an image for IMAGE_S seconds or until a key is
    pressed: `write` never waits for the user for longer, so that a run without a user, and Ctrl-C,
    come to an end. Toolkits want all calls from one thread, so the window has its own one; on macOS
    this must be the main thread. `write` raises WindowClosed if the user ends it. Raises
    ValueError, in one sentence, if no window can be shown.
    """

    def __init__(self, annotator: Annotator, *, image_s: float = IMAGE_S) -> None:
        require_display()
        self.annotator, self.image_s = annotator, image_s
        self._thread = ThreadPoolExecutor(1, "window")
        self._windows: RecentlyUsed[str] = RecentlyUsed(_destroy)

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        image = self.annotator.draw(frame, detections)
        title = IMAGES if frame.number is None else printable(frame.name)
        if not self._call(
            lambda: self._show(title, image, 0.0 if frame.number is not None else self.image_s)
        ):
            raise WindowClosed

    def close(self) -> None:
        with suppress(RuntimeError):  # closed before
            self._call(self._windows.close)
        self._thread.shutdown()

    def _call(self, function: Callable[[], Result]) -> Result:
        return function() if sys.platform == "darwin" else self._thread.submit(function).result()

    def _show(self, title: str, image: NDArray[np.uint8], seconds: float) -> bool:
        """Show an image for this time, at least 1 ms; False if the user wants to end."""
        # closed while another window was shown
        if title in self._windows and not _is_visible(title):
            return False
        self._windows.get(title, lambda: _make(title, image))
        cv2.imshow(title, image)
        end = time.monotonic() + seconds
        while True:
            key = cv2.waitKey(max(1, min(50, round(1000 * (end - time.monotonic())))))
            if (key != -1 and key & 0xFF in QUIT_KEYS) or not _is_visible(title):
                return False
            if key != -1 or time.monotonic() >= end:
                return True


def require_display() -> None:
    """Raises ValueError if windows cannot be shown.

    No display, an OpenCV without windows, the wrong thread.
    """
    instead = "look at the files in the run folder instead of --view-img"
    if sys.platform.startswith("linux") and not _has_display():
        raise ValueError(
            f"--view-img: there is no display (DISPLAY={os.environ.get('DISPLAY', '')!r}); "
            f"{instead}"
        )
    if sys.platform == "darwin" and threading.current_thread() is not threading.main_thread():
        raise ValueError(f"--view-img: macOS shows windows only from the main thread; {instead}")
    if _toolkit() in ("", "NONE"):
        install = (
            "pip uninstall opencv-python-headless && pip install --force-reinstall opencv-python"
        )
        raise ValueError(f"--view-img: this OpenCV has no windows; {install}")


def _has_display() -> bool:
    """Return whether the X server of $DISPLAY answers.

    Qt, which OpenCV's wheels use, aborts the process if it does not.
    """
    if not os.environ.get("DISPLAY"):
        return bool(os.environ.get("WAYLAND_DISPLAY")) and not _toolkit().startswith("QT")
    try:
        x11 = ctypes.CDLL("libX11.so.6")
    except OSError:  # cannot be asked
        return True
    x11.XOpenDisplay.restype, x11.XOpenDisplay.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    x11.XCloseDisplay.argtypes = [ctypes.c_void_p]
    display = x11.XOpenDisplay(None)
    if display:
        x11.XCloseDisplay(display)
    return bool(display)


def _toolkit() -> str:
    """Return what OpenCV draws windows with, such as QT5 or GTK3.

    "" or "NONE" if it has no windows.
    """
    with suppress(AttributeError, cv2.error):
        return cv2.currentUIFramework()
    for line in cv2.getBuildInformation().splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "GUI":
            return value.strip()
    return ""


def _make(title: str, image: NDArray[np.uint8]) -> str:
    """Open a window that the user can resize, no larger at first than fits most screens."""
    height, width = image.shape[:2]
    scale = min(1.0, LARGEST[0] / width, LARGEST[1] / height)
    window_width = max(1, round(width * scale))
    window_height = max(1, round(height * scale))

    cv2.namedWindow(title, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO | cv2.WINDOW_GUI_NORMAL)
    cv2.resizeWindow(title, window_width, window_height)
    return title


def _is_visible(title: str) -> bool:
    try:
        return cv2.getWindowProperty(title, cv2.WND_PROP_VISIBLE) >= 1
    except cv2.error:  # the user closed the last window
        return False


def _destroy(title: str) -> None:
    with suppress(cv2.error):  # the user closed it
        cv2.destroyWindow(title)
