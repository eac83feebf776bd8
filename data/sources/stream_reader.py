"""A thread that reads one camera or network address and keeps its newest frame."""

import threading
import time
from dataclasses import dataclass

from data.sources.addresses import Address
from data.sources.capture import (
    frames_per_second,
    is_cover_picture,
    open_camera,
    open_stream,
    stated_frames,
)
from data.sources.repeats import Beginning
from data.sources.video import Reading, capture_frames, known_codec_hint, retrieved
from utils.files.remote import open_remote
from utils.images.decode import decode_bgr
from utils.images.detections import Frame
from utils.images.opencv import cv2
from utils.terminal import FaultError

MAX_IMAGE_BYTES = 2**28
MAX_FAILED_GRABS = 10  # in a row: a damaged frame is not a lost stream
MAX_PAUSE_S = 30.0


@dataclass(frozen=True)
class ConnectionPolicy:
    """How patiently a stream is read; times in seconds."""

    open_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    reconnects: int = 10  # attempts in a row to reach a lost stream
    pause_s: float = (
        1.0  # before the first of them; doubled for each further one, up to MAX_PAUSE_S
    )
    settled_s: float = 10.0  # a connection that is lost sooner counts as a failed attempt, too


class StreamReader:
    """Reads one address in a thread.

    A live stream is read as fast as it comes, and a new frame replaces the one that was not taken.
    A recording, whose header states a number of frames or whose server states a number of bytes,
    waits until each frame is taken. An image is decoded as an image file is. A stream that gives
    its first frames again is a recording that has ended.

    All attributes are guarded by `changed`, which is notified of each change.
    """

    def __init__(
        self,
        address: Address,
        policy: ConnectionPolicy,
        frame_step: int,
        changed: threading.Condition,
        stop: threading.Event,
    ) -> None:
        """Prepare the thread.

        Args:
            address: what is read.
            policy: how patiently.
            frame_step: use every n-th frame, from the first on.
            changed: guards the attributes of all readers of a source.
            stop: ends the reading of all of them.
        """
        self.frame: Frame | None = None  # the newest frame, if it was not taken
        self.ended = False
        self.failure = ""  # why there was never a frame, in one sentence
        self.error: BaseException | None = None  # what the thread raised, for the consumer

        self._address = address
        self._policy = policy
        self._frame_step = frame_step
        self._changed = changed
        self._stop = stop

        self._messages: list[tuple[str, int]] = []
        self._received = 0  # frames of all connections
        self._beginning = Beginning()
        # whether the server states its length; None if it was not asked
        self._is_file: bool | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"stream {address.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, if it was started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def take(self) -> Frame | None:
        """Return the newest frame, once. The caller holds `changed`."""
        frame = self.frame
        self.frame = None
        self._changed.notify_all()
        return frame

    def take_messages(self) -> list[tuple[str, int]]:
        """Return new messages, each with the number of streams and frames that are left out.

        The caller holds `changed`.
        """
        messages = self._messages
        self._messages = []
        return messages

    def _run(self) -> None:
        try:
            self._read_and_reconnect()
        except BaseException as error:
            self.error = error
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _read_and_reconnect(self) -> None:
        """Read until the address is complete, or cannot be reached, or is lost too often."""
        shown = self._address.shown
        unreached = 0  # attempts in a row without a frame
        brief = 0  # connections in a row that were lost soon
        while True:
            received_before = self._received
            started_s = time.monotonic()
            is_complete = self._connect_and_read()
            if is_complete or self._stop.is_set():
                return
            if not self._received:
                self.failure = self.failure or f"{shown} cannot be opened, or gives no picture"
                self._add_message(self.failure, skipped=1)
                return

            was_connected = self._received > received_before
            has_held = time.monotonic() - started_s >= self._policy.settled_s
            if was_connected:
                unreached = 0
                brief = 0 if has_held else brief + 1
            else:
                unreached += 1

            # Give up after too many failures.
            ended = f"{shown}: the stream ended after {self._received} frames"
            if unreached >= self._policy.reconnects:
                if unreached:
                    ended += f", and was not reached again in {unreached} attempts"
                self._add_message(ended)
                return
            if brief > self._policy.reconnects:
                within = f"each time within {self._policy.settled_s:g} s"
                self._add_message(f"{ended}; it was lost {brief} times in a row, {within}")
                return

            # Otherwise connect again, after a pause that grows with them.
            if was_connected:
                self._add_message(f"{shown}: the stream was lost, connecting again")
            failures = max(unreached, brief - 1, 0)
            pause_s = min(MAX_PAUSE_S, self._policy.pause_s * 2.0**failures)
            if self._stop.wait(pause_s):
                return

    def _connect_and_read(self) -> bool:
        """Open the address and read it until it is lost or complete.

        Return whether it is complete.
        """
        if self._address.is_image and not self._received:
            is_read = self._read_image_file()
            if is_read is not None:
                return is_read

        if self._is_file is None:
            self._is_file = self._has_end()
        is_complete, reason = self._read_with_ffmpeg()
        if self._received or self.failure:
            return is_complete

        # FFmpeg found no picture. It reads fewer kinds of images than we do.
        is_read = self._read_image_file(only_if_stated=True)
        if is_read is None:
            self.failure = reason
        return is_read is True

    def _read_with_ffmpeg(self) -> tuple[bool, str]:
        """Read until the address is lost or complete.

        Return whether it is complete, and why there was no picture.
        """
        shown = self._address.shown
        capture = self._open()
        try:
            if not capture.isOpened():
                return False, ""
            if is_cover_picture(capture):
                return False, f"{shown} has no video, only a cover picture"
            is_complete = self._read(capture)
            hint = known_codec_hint(capture)
            reason = f"{shown} gives no picture{hint}" if hint else ""
            return is_complete, reason
        finally:
            capture.release()

    def _read(self, capture: cv2.VideoCapture) -> bool:
        """Read an open capture until it is lost or complete; return whether it is complete."""
        stated = stated_frames(capture)
        if stated or self._is_file:
            return self._read_recording(capture, stated)
        return self._read_live(capture)

    def _open(self) -> cv2.VideoCapture:
        camera = self._address.camera
        if camera is not None:
            return open_camera(camera)
        policy = self._policy
        return open_stream(self._address.text, policy.open_timeout_s, policy.read_timeout_s)

    def _has_end(self) -> bool:
        """Whether the address is that of a video file whose server says how many bytes it has."""
        if self._address.is_gif:
            return True
        if not self._address.is_video_file:
            return False
        try:
            with open_remote(self._address.text, self._policy.read_timeout_s) as remote:
                return remote.length is not None and not remote.kind.startswith("multipart/")
        except (FaultError, ValueError):
            return False

    def _read_image_file(self, only_if_stated: bool = False) -> bool | None:
        """Read the image file at the address as one on disk is read; return whether it was read.

        None if it is none: the server says that it sends a stream, or, with only_if_stated, does
        not say that it sends an image. Why an image was not read becomes `failure`.
        """
        if not self._address.is_web:
            return None
        shown = self._address.shown
        try:
            with open_remote(self._address.text, self._policy.read_timeout_s) as remote:
                if remote.is_stream or (only_if_stated and not remote.is_image):
                    return None
                data = remote.read(MAX_IMAGE_BYTES)
        except (FaultError, ValueError) as error:
            if only_if_stated:
                return None
            self.failure = f"{shown} cannot be read: {error}"
            return False

        try:
            image = decode_bgr(data, shown)
        except ValueError as error:
            self.failure = str(error)
            return False
        self._received += 1
        self._put(Frame(image, shown, self._address.name), wait=True)
        return True

    def _read_recording(self, capture: cv2.VideoCapture, stated: int) -> bool:
        """Read to the end, each frame once the one before was taken; return whether there is one.

        stated: the number of frames by the header, 0 if unknown.
        """
        shown = self._address.shown
        reading = Reading(stated, frames_per_second(capture))
        frames = capture_frames(capture, reading, shown, self._address.name, self._frame_step)
        for frame in frames:
            self._received += 1
            self._put(frame, wait=True)
            if self._stop.is_set():
                return True

        # What is missing, or else what is uneven in its timing.
        missing = reading.shortfall(is_cut=False) if reading.read else ""
        timing = reading.timing()
        if missing:
            self._add_message(f"{shown}: {missing}", skipped=reading.total - reading.read)
        elif timing:
            self._add_message(f"{shown}: {timing}")
        return reading.read > 0

    def _read_live(self, capture: cv2.VideoCapture) -> bool:
        """Read until the stream is lost, or begins again, which a recording does.

        Return whether the address is complete: a recording, or an image. A connection that ends
        after one frame is the address of an image, which is then read as an image file. So the
        first frame of an address of the web waits for the second one.
        """
        fps = frames_per_second(capture) / self._frame_step
        is_first_connection = self._received == 0
        self._beginning.connect()

        first: Frame | None = None  # while it waits
        failed_grabs = 0
        last_frame_s = time.monotonic()
        has_timed_out = False
        while failed_grabs < MAX_FAILED_GRABS and not has_timed_out and not self._stop.is_set():
            if not capture.grab():
                failed_grabs += 1
                has_timed_out = time.monotonic() - last_frame_s >= self._policy.read_timeout_s
                continue
            failed_grabs = 0
            last_frame_s = time.monotonic()
            self._received += 1

            frame = self._new_frame(capture, fps)
            if self._beginning.is_repeated:
                break
            if frame is None:
                continue

            if self._received == 1 and self._address.is_web:
                first = frame
            elif first is not None:
                self._put(first, wait=True)
                self._put(frame, wait=True)
                first = None
            else:
                self._put(frame)

        ended_alike = self._beginning.has_ended_alike and not has_timed_out
        if self._beginning.is_repeated or ended_alike:
            self._received -= self._beginning.matched
            self._add_message(
                f"{self._address.shown}: it began again after {self._received} frames, so it is a "
                "recording that has ended; it was read as a stream, which leaves frames out"
            )
            return True
        if is_first_connection and self._received == 1:
            return self._ends_as_image(first, has_timed_out)
        return False

    def _new_frame(self, capture: cv2.VideoCapture, fps: float) -> Frame | None:
        """Return the frame that was grabbed last, after it was compared with the first ones.

        None if it is damaged, or left out by the frame step, or one of those of an earlier
        connection.
        """
        is_used = (self._received - 1) % self._frame_step == 0
        is_compared = self._beginning.wants_frame
        if not is_used and not is_compared:
            return None

        image = retrieved(capture)
        if is_compared:
            self._beginning.add(image)
        if image is None or not is_used or self._beginning.matched:
            return None
        address = self._address
        step = self._frame_step
        return Frame(image, address.shown, address.name, self._received, fps, step)

    def _ends_as_image(self, frame: Frame | None, has_timed_out: bool) -> bool:
        """Whether a first connection that has ended after one frame was an image.

        frame: that frame if it still waits, otherwise None.
        """
        if frame is None:
            return self._address.camera is None and not has_timed_out

        if not has_timed_out and not self._stop.is_set():
            self._received = 0  # the same frame is received once more
            is_read = self._read_image_file(only_if_stated=True)
            if is_read is not None:
                return is_read
            self._received = 1
            self.failure = ""
        self._put(frame, wait=True)
        return not has_timed_out

    def _put(self, frame: Frame, wait: bool = False) -> None:
        """Make `frame` the newest one.

        wait: until the one before is taken, or reading is stopped.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self.frame is None or self._stop.is_set())
            self.frame = frame
            self._changed.notify_all()

    def _add_message(self, text: str, skipped: int = 0) -> None:
        with self._changed:
            self._messages.append((text, skipped))
            self._changed.notify_all()
