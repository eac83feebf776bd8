"""Open video files, streams and cameras with OpenCV, and ask what was opened.

FFmpeg is told which formats and protocols it may use, and is kept silent. OpenCV reads FFmpeg's
options from an environment variable, each time it opens a video. They are set for that moment. The
user's own options are added at the end, so that they win, as for `rtsp_transport;udp`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

from utils.images.opencv import cv2

OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
LOG_LEVEL = "OPENCV_FFMPEG_LOGLEVEL"
QUIET = "-8"  # FFmpeg's AV_LOG_QUIET; OpenCV reads it once, before the first video of a process
# All but file and those that wrap others: a stream must not name files of this machine.
STREAM_PROTOCOLS = (
    "crypto,data,http,httpproxy,https,"
    "rtmp,rtmpe,rtmps,rtmpt,rtmpte,rtmpts,rtp,rtsp,srtp,tcp,tls,udp"
)
MAX_FPS = 1000
USUAL_FPS = 30.0
# FFmpeg's frame rate of a picture that is attached to a recording: the ticks of its clock
PICTURE_FPS = 90000
# codes of what an attached picture can be
PICTURE_CODECS = ("MJPG", "MPNG", "PNG", "BMP", "GIF", "TIFF")
MAX_FRAMES = 10**9  # a larger count in a header is a wrong one


class _Environment:
    """The environment variables while videos open: those with the same options at the same time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._options = ""  # that are set now
        self._users = 0  # threads that open a video with them
        self._before: dict[str, str | None] = {}

    @contextmanager
    def options(self, ours: str) -> Iterator[None]:
        """Set FFmpeg's options inside of a `with`, once no video opens with other ones."""
        with self._changed:
            self._changed.wait_for(lambda: not self._users or self._options == ours)
            if not self._users:
                self._set(ours)
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if not self._users:
                    self._restore()
                    self._changed.notify_all()

    def _set(self, ours: str) -> None:
        self._options = ours
        self._before = {name: os.environ.get(name) for name in (OPTIONS, LOG_LEVEL)}

        theirs = self._before[OPTIONS]
        os.environ[OPTIONS] = "|".join(filter(None, (ours, theirs)))
        os.environ.setdefault(LOG_LEVEL, QUIET)

    def _restore(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_ENVIRONMENT = _Environment()  # one, because a process has one environment


def open_file(path: str, container: str) -> cv2.VideoCapture:
    """Return a capture of a video file, which may have failed to open.

    FFmpeg may use this container's demuxer and local files only, and does not follow the references
    of a .mov file to other files.

    path: of an existing file; made absolute, so that no part of it can be taken for a protocol.
    """
    only = f"input_format;{container}|format_whitelist;{container}|protocol_whitelist;file"
    no_references = "enable_drefs;0|use_absolute_path;0"
    with _ENVIRONMENT.options(f"{only}|{no_references}"):
        return cv2.VideoCapture(os.path.abspath(path), cv2.CAP_FFMPEG)


def open_stream(address: str, open_timeout_s: float, read_timeout_s: float) -> cv2.VideoCapture:
    """Return a capture of a network address, which may have failed to open."""
    open_timeout_ms = max(1, round(1000 * open_timeout_s))
    read_timeout_ms = max(1, round(1000 * read_timeout_s))
    timeouts = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, open_timeout_ms]
    timeouts += [cv2.CAP_PROP_READ_TIMEOUT_MSEC, read_timeout_ms]
    with _ENVIRONMENT.options(f"protocol_whitelist;{STREAM_PROTOCOLS}|rtsp_flags;prefer_tcp"):
        return cv2.VideoCapture(address, cv2.CAP_FFMPEG, timeouts)


def open_camera(index: int) -> cv2.VideoCapture:
    """Return a capture of a camera, which may have failed to open."""
    return cv2.VideoCapture(index)


def frames_per_second(capture: cv2.VideoCapture) -> float:
    """Return the frame rate of an open capture, or 30 if it has no usable one."""
    fps = float(capture.get(cv2.CAP_PROP_FPS))
    return fps if _is_usable(fps) else USUAL_FPS


def stated_frames(capture: cv2.VideoCapture) -> int:
    """Return the number of frames that an open capture states, which may be wrong; 0 for none.

    A count is not used beside an impossible frame rate: it is the duration times this rate.
    """
    count = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    fps = float(capture.get(cv2.CAP_PROP_FPS))
    return int(count) if _is_usable(fps) and 0 < count <= MAX_FRAMES else 0


def codec_of(capture: cv2.VideoCapture) -> str:
    """Return the four-character code of an open capture's codec, such as "AV01"; "" for none."""
    code = int(capture.get(cv2.CAP_PROP_FOURCC)) & 0xFFFFFFFF
    text = code.to_bytes(4, "little").decode("ascii", "replace").strip(" \0")
    return text if text.isprintable() else ""


def is_cover_picture(capture: cv2.VideoCapture) -> bool:
    """Whether an open capture shows the cover picture of a sound recording, and so no video."""
    has_picture_rate = float(capture.get(cv2.CAP_PROP_FPS)) == PICTURE_FPS
    return has_picture_rate and codec_of(capture).upper() in PICTURE_CODECS


def _is_usable(fps: float) -> bool:
    return isfinite(fps) and 0 < fps <= MAX_FPS
