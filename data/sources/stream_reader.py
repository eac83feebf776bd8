"""A thread that reads one camera or network address and keeps its newest frame."""

import threading
import time
from dataclasses import dataclass

from data.sources.addresses import Address
from data.sources.capture import frames_per_second, open_camera, open_stream, stated_frames
from data.sources.video import Reading, capture_frames, retrieved
from utils.images.detections import Frame
from utils.images.opencv import cv2

MAX_FAILED_GRABS = 10  # in a row: a damaged frame is not a lost stream
MAX_PAUSE_S = 30.0


@dataclass(frozen=True)
class Connection:
    """How patient a stream is read. Times in seconds.

    reconnects: attempts in a row to reach a lost stream. pause_s: before the first of them; doubled for each further
    one, up to 30 seconds.
    """

    open_timeout_s: float = 10.0
    read_timeout_s: float = 10.0
    reconnects: int = 10
    pause_s: float = 1.0


class StreamReader:
    """Reads one address in a thread. All attributes are guarded by `changed`, which is notified of each change.

    A live stream is read as fast as it comes, and a new frame replaces the one that was not taken. A recording, whose
    header states a number of frames, waits until each frame is taken. frame: the newest frame, if not taken.
    failure: why there was never a frame, in one sentence, or "". error: what the thread raised, for the consumer.
    """

    def __init__(
        self,
        address: Address,
        connection: Connection,
        frame_step: int,
        changed: threading.Condition,
        stop: threading.Event,
    ) -> None:
        self.frame: Frame | None = None
        self.ended = False
        self.failure = ""
        self.error: BaseException | None = None
        self._address, self._connection, self._frame_step = address, connection, frame_step
        self._changed, self._stop = changed, stop
        self._messages: list[tuple[str, int]] = []
        self._received = 0
        self._thread = threading.Thread(target=self._run, name=f"stream {address.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, if it was started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def take(self) -> Frame | None:
        """Return the newest frame, once. The caller holds `changed`."""
        frame, self.frame = self.frame, None
        self._changed.notify_all()
        return frame

    def take_messages(self) -> list[tuple[str, int]]:
        """Return new messages, each with the number of streams and frames that it reports as left out."""
        messages, self._messages = self._messages, []
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
        shown, failures = self._address.shown, 0
        while True:
            before = self._received
            is_complete = self._connect_and_read()
            if is_complete or self._stop.is_set():
                return
            if not self._received:
                self.failure = f"{shown} cannot be opened, or gives no picture"
                self._add_message(self.failure, skipped=1)
                return
            was_connected = self._received > before
            failures = 0 if was_connected else failures + 1
            if failures >= self._connection.reconnects:
                attempts = f", and was not reached again in {failures} attempts" if failures else ""
                self._add_message(f"{shown}: the stream ended after {self._received} frames{attempts}")
                return
            if was_connected:
                self._add_message(f"{shown}: the stream was lost, connecting again")
            if self._stop.wait(min(MAX_PAUSE_S, self._connection.pause_s * 2.0**failures)):
                return

    def _connect_and_read(self) -> bool:
        """Open the address and read it until it is lost or complete; return whether it is complete."""
        capture = self._open()
        try:
            if not capture.isOpened():
                return False
            if self._address.camera is None and self._address.is_image:
                return self._read_image(capture)
            stated = stated_frames(capture)
            if stated:
                return self._read_recording(capture, stated)
            return self._read_live(capture)
        finally:
            capture.release()

    def _open(self) -> cv2.VideoCapture:
        camera = self._address.camera
        if camera is not None:
            return open_camera(camera)
        return open_stream(self._address.text, self._connection.open_timeout_s, self._connection.read_timeout_s)

    def _read_image(self, capture: cv2.VideoCapture) -> bool:
        image = retrieved(capture) if capture.grab() else None
        if image is not None:
            self._received += 1
            self._put(Frame(image, self._address.shown, self._address.name), wait=True)
        return image is not None

    def _read_recording(self, capture: cv2.VideoCapture, stated: int) -> bool:
        reading = Reading(stated, frames_per_second(capture))
        for frame in capture_frames(capture, reading, self._address.shown, self._address.name, self._frame_step):
            self._received += 1
            self._put(frame, wait=True)
            if self._stop.is_set():
                return True
        if reading.read and (missing := reading.shortfall(is_cut=False)):
            self._add_message(f"{self._address.shown}: {missing}", reading.total - reading.read)
        return reading.read > 0

    def _read_live(self, capture: cv2.VideoCapture) -> bool:
        """Read until the stream is lost. A connection that ends after one frame was the address of an image."""
        fps, first = frames_per_second(capture) / self._frame_step, self._received
        failed, last_s, has_timed_out = 0, time.monotonic(), False
        while failed < MAX_FAILED_GRABS and not has_timed_out and not self._stop.is_set():
            if not capture.grab():
                failed += 1
                has_timed_out = time.monotonic() - last_s >= self._connection.read_timeout_s
                continue
            failed, last_s = 0, time.monotonic()
            self._received += 1
            image = None if (self._received - 1) % self._frame_step else retrieved(capture)
            if image is not None:
                self._put(Frame(image, self._address.shown, self._address.name, self._received, fps))
        is_one_image = not first and self._received == 1 and self._address.camera is None
        return is_one_image and not has_timed_out

    def _put(self, frame: Frame, wait: bool = False) -> None:
        """Make `frame` the newest one. wait: until the one before is taken, or reading is stopped."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self.frame is None or self._stop.is_set())
            self.frame = frame
            self._changed.notify_all()

    def _add_message(self, text: str, skipped: int = 0) -> None:
        with self._changed:
            self._messages.append((text, skipped))
            self._changed.notify_all()
