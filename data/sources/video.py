"""Read the frames of a video file, and tell a damaged file from one whose frame count is wrong."""

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from stat import S_ISREG

import numpy as np

from data.sources.capture import (
    codec_of,
    frames_per_second,
    is_cover_picture,
    open_file,
    stated_frames,
)
from data.sources.containers import HEAD_BYTES, container_of, is_cut_off, presented_ms
from utils.images.detections import Frame
from utils.images.opencv import cv2
from utils.printable import printable

# Grabs that fail in a row before a video counts as ended: at least, and at most.
MIN_TRIES = 8
MAX_TRIES = 1000
# Headers of intact files state this many frames too many,
FEW_FRAMES = 3
FEW_SHARE = 0.02
# or an end this much later than the last frame, because of the sound.
SHORT_S = 0.5
SHORT_SHARE = 0.05
# Frames may be this far from an even rate: see Reading.timing.
DRIFT_S = 0.25
DRIFT_SHARE = 0.01
DRIFT_FRAMES = 4
CODEC_NAMES = {
    "AV01": "AV1",
    "VVC1": "H.266",
    "VVI1": "H.266",
    "HEV1": "H.265",
    "HVC1": "H.265",
    "HEVC": "H.265",
}
MAX_PIXELS = 2**28  # of a frame: 800 MB


@dataclass
class Reading:
    """How far a video was read.

    A video without a damaged frame has `failed` 0, but may have a wrong `stated`.
    """

    stated: int  # number of frames by the header, 0 if unknown
    fps: float
    read: int = 0  # frames decoded, including those left out by the frame step
    failed: int = 0  # frames that could not be decoded, but were followed by one that could
    last_ms: float = 0.0  # time of the last frame
    # How long the video plays, None if the file does not say; less than its frames take if an edit
    # list leaves some of them out.
    presented_ms: float | None = None
    # How far a frame is from the time that an even frame rate would give it; 0 if never much.
    drift_ms: float = 0.0
    # Time of frame 1, at an even rate; it changes where times start anew, as in a file that was
    # joined from several.
    start_ms: float = 0.0
    before_ms: float = 0.0  # time of the frame before

    @property
    def total(self) -> int:
        """The number of frames in the video, as far as known."""
        return max(self.stated, self.read + self.failed)

    def shortfall(self, is_cut: bool) -> str:
        """Return what is missing, as half a sentence, or "" if the video was read to its end.

        A wrong frame count alone is no damage: if the last frame is close to the end of the stated
        duration, nothing is missing.

        is_cut: the file is known to be shorter than it was.
        """
        lost = self.total - self.read
        counts = f"{self.read} of {self.total} frames were read"
        if self.failed or (is_cut and lost):
            return f"{counts}; the rest is damaged"
        if is_cut and not self.stated:
            return f"{self.read} frames were read; the end of the file is missing"

        # By the clock.
        duration_ms = 1000 * self.stated / self.fps
        if self.presented_ms is not None:
            duration_ms = min(duration_ms, self.presented_ms)
        ended_early = self.last_ms < duration_ms * (1 - SHORT_SHARE) - 1000 * SHORT_S
        lost_many = lost > max(FEW_FRAMES, FEW_SHARE * self.total)
        if ended_early and lost_many:
            return f"{counts}; the rest is damaged, or the frame count in the file is wrong"
        return ""

    def timing(self) -> str:
        """Return what an even frame rate would lose, as half a sentence, "" if it is little."""
        if not self.drift_ms:
            return ""
        return (
            f"its frames do not come at an even rate of {self.fps:.4g} per second; "
            f"an annotated video shows them so, up to {self.drift_ms / 1000:.1f} s from their time"
        )

    def add_frame(self, time_ms: float) -> None:
        """Count a frame that was decoded, with its time in milliseconds, 0 if unknown."""
        self.read += 1
        self.last_ms = max(self.last_ms, time_ms)

        # Near times may go back and forth: those of B-frames do.
        number = self.read + self.failed
        even_ms = 1000 * (number - 1) / self.fps
        near_ms = 1000 * DRIFT_S + 1000 * DRIFT_FRAMES / self.fps
        is_new_start = self.read == 1 or time_ms < self.before_ms - near_ms
        if is_new_start:
            self.start_ms = time_ms - even_ms
        self.before_ms = time_ms

        drift_ms = abs(time_ms - self.start_ms - even_ms)
        if time_ms > 0 and drift_ms > near_ms + DRIFT_SHARE * even_ms:
            self.drift_ms = max(self.drift_ms, drift_ms)


def video_frames(path: str, name: str, frame_step: int) -> Generator[Frame, None, tuple[int, str]]:
    """Yield every `frame_step`-th frame of a video file; return what is to be reported.

    That is the number of lost frames, and a text: what is missing, or else what is uneven in its
    timing, or "". Raises ValueError, with the path, if no frame can be read.
    """
    capture, container = _opened(path)
    try:
        stated = stated_frames(capture)
        fps = frames_per_second(capture)
        reading = Reading(stated, fps, presented_ms=presented_ms(path, container))
        yield from capture_frames(capture, reading, path, name, frame_step)

        if not reading.read:
            hint = codec_hint(capture)
            raise ValueError(f"{printable(path)} has no frame that OpenCV can decode{hint}")
        missing = reading.shortfall(is_cut_off(path, container))
        if missing:
            return reading.total - reading.read, missing
        return 0, reading.timing()
    finally:
        capture.release()


def video_length(path: str, frame_step: int) -> int | None:
    """Return how many frames `video_frames` should yield, by the header, which may be wrong.

    0 if the video cannot be opened, None if unknown.
    """
    try:
        capture, _ = _opened(path)
    except ValueError:
        return 0
    stated = stated_frames(capture)
    capture.release()
    return -(-stated // frame_step) if stated else None  # rounded up


def capture_frames(
    capture: cv2.VideoCapture, reading: Reading, path: str, name: str, frame_step: int
) -> Iterator[Frame]:
    """Yield every `frame_step`-th frame of an open capture, from the first on, up to its end.

    Args:
        capture: the open capture.
        reading: counts the frames.
        path: of the video, as in Frame.
        name: of its outputs, as in Frame.
        frame_step: use every n-th frame.
    """
    fps = reading.fps / frame_step
    for number in _grabbed(capture, reading):
        if (number - 1) % frame_step:
            continue
        image = retrieved(capture)
        if image is None:
            # It was grabbed, but is damaged.
            reading.read -= 1
            reading.failed += 1
        else:
            yield Frame(image, path, name, number, fps, frame_step)


def retrieved(capture: cv2.VideoCapture) -> np.ndarray | None:
    """Return the pixels of the frame that was grabbed last, uint8 [H, W, 3]; None if damaged."""
    try:
        is_decoded, image = capture.retrieve()
    except cv2.error:  # a frame larger than the memory
        return None
    return image if is_decoded and image is not None and image.size else None


def codec_hint(capture: cv2.VideoCapture) -> str:
    """Return the codec of a capture that cannot be decoded, as the end of a sentence, or ""."""
    code = codec_of(capture)
    if not code:
        return ""
    name = CODEC_NAMES.get(code.upper())
    shown = f"{name} ({code})" if name else code
    return f"; its codec is {shown}, which this OpenCV may have no decoder for: convert it to H.264"


def known_codec_hint(capture: cv2.VideoCapture) -> str:
    """Return `codec_hint` for the codecs that some versions of OpenCV cannot decode, or ""."""
    is_known = codec_of(capture).upper() in CODEC_NAMES
    return codec_hint(capture) if is_known else ""


def _grabbed(capture: cv2.VideoCapture, reading: Reading) -> Iterator[int]:
    """Yield the number of each frame once it is grabbed.

    A grab fails at a damaged frame as at the end of the video.
    """
    failures = 0  # in a row
    while True:
        missing = reading.stated - reading.read - reading.failed
        if failures >= max(MIN_TRIES, min(MAX_TRIES, missing)):
            return
        if not capture.grab():
            failures += 1
            continue

        # The frames that could not be grabbed were damaged ones, as one follows them.
        reading.failed += failures
        failures = 0
        reading.add_frame(capture.get(cv2.CAP_PROP_POS_MSEC))
        yield reading.read + reading.failed


def _opened(path: str) -> tuple[cv2.VideoCapture, str]:
    """Return an open capture and the container of a video file. Raises ValueError with the path."""
    shown = printable(path)
    try:
        path.encode()
    except UnicodeEncodeError:  # OpenCV would crash
        raise ValueError(
            f"{shown} cannot be opened as a video: its name is not UTF-8; rename it"
        ) from None

    container = container_of(_head(path))
    if container is None:
        known = "the known containers (mp4, avi, mkv ...)"
        raise ValueError(f"{shown} is not a video: it starts like none of {known}")

    capture = open_file(path, container)
    problem = _problem(capture)
    if problem:
        capture.release()
        raise ValueError(f"{shown} {problem}")
    return capture, container


def _problem(capture: cv2.VideoCapture) -> str:
    """Return why no frame can be read from a capture, as the rest of a sentence, or ""."""
    if not capture.isOpened():
        return "is damaged, truncated or not a video that OpenCV can decode"
    if is_cover_picture(capture):
        return "has no video, only a cover picture"

    width = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH))
    height = int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
    if not 0 < width * height <= MAX_PIXELS:
        return f"has frames of {width} x {height} pixels, allowed are 1 to {MAX_PIXELS}"
    return ""


def _head(path: str) -> bytes:
    """Return the first bytes of a regular, non-empty file. Raises ValueError with its path."""
    try:
        # Opening a pipe may block.
        if not S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a regular file")
        with open(path, "rb") as stream:
            head = stream.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{printable(path)} cannot be read: {reason}") from None
    if not head:
        raise ValueError(f"{printable(path)} is empty")
    return head
