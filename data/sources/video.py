"""Read the frames of a video file, and tell a damaged file from one whose frame count is wrong."""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from stat import S_ISREG

import numpy as np

from data.sources.capture import frames_per_second, open_file, stated_frames
from data.sources.containers import HEAD_BYTES, container_of, is_cut_off
from utils.images.detections import Frame
from utils.images.opencv import cv2
from utils.printable import printable

MIN_TRIES, MAX_TRIES = 8, 1000  # grabs that fail in a row at the end of a video, or where it is damaged
FEW_FRAMES, FEW_SHARE = 3, 0.02  # headers of intact files are wrong by this many frames
SHORT_S, SHORT_SHARE = 0.5, 0.05  # or end this much later than the last frame, because of the sound
MAX_PIXELS = 2**28  # of a frame: 800 MB


@dataclass
class Reading:
    """How far a video was read. A video without a damaged frame has `failed` 0, but may have a wrong `stated`.

    stated: number of frames by the header, 0 if unknown. read: frames decoded, including those left out by the frame
    step. failed: frames that could not be decoded, but were followed by one that could. last_ms: time of the last frame
    in milliseconds.
    """

    stated: int
    fps: float
    read: int = 0
    failed: int = 0
    last_ms: float = 0.0

    @property
    def total(self) -> int:
        """The number of frames in the video, as far as known."""
        return max(self.stated, self.read + self.failed)

    def shortfall(self, is_cut: bool) -> str:
        """Return what is missing, as half a sentence, or "" if the video was read to its end.

        is_cut: the file is known to be shorter than it was. A wrong frame count alone is no damage: if the last frame
        is close to the end of the stated duration, nothing is missing.
        """
        lost = self.total - self.read
        counts = f"{self.read} of {self.total} frames were read"
        if self.failed or (is_cut and lost):
            return f"{counts}; the rest is damaged"
        if is_cut and not self.stated:
            return f"{self.read} frames were read; the end of the file is missing"
        duration_ms = 1000 * self.stated / self.fps
        ended_early = self.last_ms < duration_ms * (1 - SHORT_SHARE) - 1000 * SHORT_S
        if ended_early and lost > max(FEW_FRAMES, FEW_SHARE * self.total):
            return f"{counts}; the rest is damaged, or the frame count in the file is wrong"
        return ""


def video_frames(path: str, name: str, frame_step: int) -> Generator[Frame, None, tuple[int, str]]:
    """Yield every `frame_step`-th frame of a video file; return the number of lost frames, and what is missing.

    Raises ValueError, with the path, if no frame can be read.
    """
    capture, container = _opened(path)
    try:
        reading = Reading(stated_frames(capture), frames_per_second(capture))
        yield from capture_frames(capture, reading, path, name, frame_step)
        if not reading.read:
            raise ValueError(f"{printable(path)} has no frame that OpenCV can decode")
        missing = reading.shortfall(is_cut_off(path, container))
        return (reading.total - reading.read if missing else 0), missing
    finally:
        capture.release()


def video_length(path: str, frame_step: int) -> int | None:
    """Return how many frames `video_frames` is expected to yield; 0 if it cannot be opened, None if unknown."""
    try:
        capture, _ = _opened(path)
    except ValueError:
        return 0
    stated = stated_frames(capture)
    capture.release()
    return -(-stated // frame_step) if stated else None


def capture_frames(
    capture: cv2.VideoCapture, reading: Reading, path: str, name: str, frame_step: int
) -> Iterator[Frame]:
    """Yield every `frame_step`-th frame of an open capture, from the first on, up to its end."""
    for number in _grabbed(capture, reading):
        if (number - 1) % frame_step:
            continue
        image = retrieved(capture)
        if image is None:
            reading.read, reading.failed = reading.read - 1, reading.failed + 1
        else:
            yield Frame(image, path, name, number, reading.fps / frame_step)


def retrieved(capture: cv2.VideoCapture) -> np.ndarray | None:
    """Return the pixels of the frame that was grabbed last, uint8 [H, W, 3], or None if it has none."""
    try:
        found, image = capture.retrieve()
    except cv2.error:  # a frame larger than the memory
        return None
    return image if found and image is not None and image.size else None


def _grabbed(capture: cv2.VideoCapture, reading: Reading) -> Iterator[int]:
    """Yield the number of each frame once it is grabbed. A grab fails at a damaged frame as at the end of the video."""
    failures = 0
    while failures < max(MIN_TRIES, min(MAX_TRIES, reading.stated - reading.read - reading.failed)):
        if not capture.grab():
            failures += 1
            continue
        reading.read, reading.failed, failures = reading.read + 1, reading.failed + failures, 0
        reading.last_ms = max(reading.last_ms, capture.get(cv2.CAP_PROP_POS_MSEC))
        yield reading.read + reading.failed


def _opened(path: str) -> tuple[cv2.VideoCapture, str]:
    """Return an open capture and the container of a video file. Raises ValueError with the path."""
    shown = printable(path)
    try:
        path.encode()
    except UnicodeEncodeError:  # OpenCV would crash
        raise ValueError(f"{shown} cannot be opened as a video: its name is not UTF-8; rename it") from None
    container = container_of(_head(path))
    if container is None:
        raise ValueError(f"{shown} is not a video: it starts like none of the known containers (mp4, avi, mkv ...)")
    capture = open_file(path, container)
    if not capture.isOpened():
        capture.release()
        raise ValueError(f"{shown} is damaged, truncated or not a video that OpenCV can decode")
    width, height = (int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    if not 0 < width * height <= MAX_PIXELS:
        capture.release()
        raise ValueError(f"{shown} has frames of {width} x {height} pixels, allowed are 1 to {MAX_PIXELS}")
    return capture, container


def _head(path: str) -> bytes:
    """Return the first bytes of a regular, non-empty file. Raises ValueError with its path."""
    try:  # opening a pipe may block
        if not S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a regular file")
        with open(path, "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        raise ValueError(f"{printable(path)} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not head:
        raise ValueError(f"{printable(path)} is empty")
    return head
