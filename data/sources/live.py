"""Frames of cameras and network addresses, the newest of each, in turns."""

import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from data.sources.addresses import Address
from data.sources.stream_reader import ConnectionPolicy, StreamReader
from utils.images.decode import quiet_decoder
from utils.images.detections import Frame

POLL_S = 0.2
CLOSE_S = 1.0  # a thread that FFmpeg keeps longer ends with its read timeout; it is a daemon


class LiveSource:
    """The frames of streams that are read at the same time.

    what: the source, as text for the user.
    """

    total = None
    inputs = None

    def __init__(
        self,
        addresses: Sequence[Address],
        what: str,
        policy: ConnectionPolicy,
        *,
        frame_step: int,
        say: Callable[[str], None],
    ) -> None:
        self.skipped = 0
        self._what, self._say = what, say
        self._changed, self._stop = threading.Condition(), threading.Event()
        self._readers = [
            StreamReader(address, policy, frame_step, self._changed, self._stop)
            for address in addresses
        ]

    def __iter__(self) -> Iterator[Frame]:
        empty = True
        if self._stop.is_set():
            return
        with quiet_decoder():
            try:
                for reader in self._readers:
                    reader.start()
                while (frame := self._next_frame()) is not None:
                    empty = False
                    yield frame
                if empty and not self._stop.is_set():
                    alone = len(self._readers) == 1
                    raise ValueError(
                        self._readers[0].failure
                        if alone
                        else f"{self._what}: no stream gave a picture"
                    )
            finally:
                self.close()

    def close(self) -> None:
        """End the iteration and the threads; wait at most a second for them."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for reader in self._readers:
            reader.join(CLOSE_S / len(self._readers))

    def __enter__(self) -> "LiveSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _next_frame(self) -> Frame | None:
        """Wait for a frame of any stream; None if all have ended.

        Streams that have a frame take turns.
        """
        while not self._stop.is_set():
            with self._changed:
                has_ended = all(reader.ended for reader in self._readers)
                waiting = next(
                    (reader for reader in self._readers if reader.frame is not None), None
                )
                frame = waiting.take() if waiting else None
                messages = [text for reader in self._readers for text in reader.take_messages()]
                if frame is None and not has_ended and not messages:
                    self._changed.wait(POLL_S)
            if waiting:
                self._readers.remove(waiting)
                self._readers.append(waiting)
            self._report(messages)
            for reader in self._readers:
                if reader.error is not None:
                    raise reader.error
            if frame is not None or has_ended:
                return frame
        return None

    def _report(self, messages: Sequence[tuple[str, int]]) -> None:
        for text, skipped in messages:
            self.skipped += skipped
            if len(self._readers) > 1 or text != self._readers[0].failure:  # which is raised
                self._say(text)
