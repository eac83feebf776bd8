"""Annotated videos: the frames of a video or a live stream as one file."""

import itertools
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from utils.files.atomic import name_os_errors
from utils.files.disk import require_free_space
from utils.images.decode import quiet_decoder
from utils.images.detections import Frame, ImageDetections
from utils.images.letterbox import draw_letterboxed
from utils.images.opencv import cv2
from utils.outputs.annotated import Annotator
from utils.outputs.names import OutputNames, prepare_file
from utils.outputs.recent import RecentlyUsed
from utils.outputs.sources_file import SourcesFile
from utils.printable import printable
from utils.terminal import FaultError

# Tried in this order, until one can be opened. H.264 plays everywhere, but OpenCV's wheels for
# Linux have no encoder. MPEG-4 plays in VLC, QuickTime and on Windows, though not in browsers; it
# takes a tenth of the time of VP8, which browsers play, and a fiftieth of that of VP9. VP8 and
# Motion JPEG take over at sides above 8191 px, MPEG-4's limit.
CODECS = (("avc1", ".mp4"), ("mp4v", ".mp4"), ("VP80", ".webm"), ("MJPG", ".avi"))
# so that a video can still be finished: OpenCV does not raise when the disk is full
MIN_FREE_BYTES = 16_000_000
MIN_FPS = 0.1
MAX_FPS = 1000.0
USUAL_FPS = 25.0


class VideoFiles:
    """Writes each video with its detections to a run folder as `<name>.mp4`, at Frame.fps.

    Frames that are missing, since the model is slower than a camera, are filled by the next one.

    A file gets its name when it is whole: when the video seems to have ended (see RecentlyUsed) or
    on `close`. Until then it is called `video.tmp.*`. A frame of another size than the first one is
    letterboxed into the first size; an odd width or height is made even by repeating the last
    column or row, which the codecs need.

    known: as for OutputNames. sources: gets a row for each file.

    Raises: FaultError if no codec can write the video, or if the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        annotator: Annotator,
        *,
        known: Sequence[tuple[str, bool]] | None = None,
        sources: SourcesFile | None = None,
    ) -> None:
        # no messages about codecs that are tried in vain
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
        self.folder = folder
        self.annotator = annotator
        self._names = OutputNames(known)
        self._sources = sources
        self._made: dict[str, int] = {}  # files by name of their video
        self._numbers = itertools.count(1)
        self._videos: RecentlyUsed[_Video] = RecentlyUsed(self._finish)

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        if frame.number is not None:
            image = self.annotator.draw(frame, detections)
            # the folder was removed: reported when the video is finished
            with suppress(FileNotFoundError):
                require_free_space(self.folder, MIN_FREE_BYTES)
            self._videos.get(frame.name, lambda: self._open(frame)).write(frame.number, image)

    def close(self) -> None:
        self._videos.close()

    def _finish(self, video: "_Video") -> None:
        video.finish()
        if self._sources:
            self._sources.add(video.path.relative_to(self.folder).as_posix(), video.source)

    def _open(self, frame: Frame) -> "_Video":
        """Raises FaultError if no codec can write frames of this size."""
        again = self._made[frame.name] = self._made.get(frame.name, 0) + 1
        stem, suffix = os.path.splitext(frame.name)
        stem = self._names.stem(
            frame if again == 1 else replace(frame, name=f"{stem}-{again}{suffix}")
        )
        return _Video(
            prepare_file(self.folder, stem),
            self.folder / f"video.tmp.{os.getpid()}.{next(self._numbers)}",
            frame,
        )


class _Video:
    """A video file that is being written.

    stem: its path without suffix. temporary: its path until it is whole.
    """

    def __init__(self, stem: Path, temporary: Path, frame: Frame) -> None:
        height, width = frame.image.shape[:2]
        self.source = frame.path
        self._step = frame.step
        self._last_number: int | None = None
        self.size = width + width % 2, height + height % 2
        fps = USUAL_FPS
        if math.isfinite(frame.fps) and frame.fps > 0:
            fps = min(max(frame.fps, MIN_FPS), MAX_FPS)

        # The first codec that this OpenCV has.
        for codec, suffix in CODECS:
            self.path = stem.with_name(stem.name + suffix)
            self.temporary = temporary.with_name(temporary.name + suffix)
            with name_os_errors(self.temporary):
                # an OSError that says why no file can be made, which OpenCV would not say
                self.temporary.touch()
            with quiet_decoder():
                fourcc = cv2.VideoWriter.fourcc(*codec)
                self._writer = cv2.VideoWriter(
                    os.path.abspath(self.temporary), cv2.CAP_ANY, fourcc, fps, self.size
                )
            if self._writer.isOpened():
                return
            self._remove()

        size = f"{width} x {height} px"
        raise FaultError(
            f"{printable(self.path)}: OpenCV has no codec for a video of {size}; --nosave writes "
            "no video"
        )

    def write(self, number: int, image: NDArray[np.uint8]) -> None:
        """Write a frame, in place of those before it that are missing, too, so that time is kept.

        number: of the frame in its video.
        """
        times = 1
        if self._last_number is not None:
            times = max(round((number - self._last_number) / self._step), 1)
        self._last_number = number
        fitted = _fit(image, self.size)
        for _ in range(times):
            self._writer.write(fitted)

    def finish(self) -> None:
        """Give the file its name.

        Raises FaultError if it is not whole: OpenCV does not report failed writes.
        """
        self._writer.release()
        try:
            if not _is_playable(self.temporary):
                raise FaultError(
                    f"{printable(self.path)}: the video could not be written; perhaps the disk is "
                    "full"
                )
            with name_os_errors(self.path):
                os.replace(self.temporary, self.path)
        finally:
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self.temporary.unlink(missing_ok=True)


def _fit(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the image in a size (width, height).

    Unchanged, with its last row or column repeated, or letterboxed.
    """
    height, width = image.shape[:2]
    wanted_width, wanted_height = size
    if (width, height) == size:
        return image
    if (width + width % 2, height + height % 2) == size:
        missing_rows = wanted_height - height
        missing_columns = wanted_width - width
        return np.pad(image, ((0, missing_rows), (0, missing_columns), (0, 0)), "edge")

    scale = min(wanted_width / width, wanted_height / height)
    scaled_size = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas: NDArray[np.uint8] = np.empty((wanted_height, wanted_width, 3), np.uint8)
    draw_letterboxed(image, scaled_size, canvas)
    return canvas


def _is_playable(path: Path) -> bool:
    with quiet_decoder():
        capture = cv2.VideoCapture(os.path.abspath(path))
        playable = bool(capture.isOpened() and capture.read()[0])
        capture.release()
    return playable
