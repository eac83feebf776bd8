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
    """The frames of streams that are read at the same time."""

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
        """Prepare the threads, which start when the frames are iterated over.

        Args:
            addresses: at least one camera or address.
            what: the source, as text for the user.
            policy: how patiently the streams are read.
            frame_step: use every n-th frame of each, from the first on.
            say: called with each problem, one sentence.
        """
        self.skipped = 0
        self._what = what
        self._say = say
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._readers = []
        for address in addresses:
            reader = StreamReader(address, policy, frame_step, self._changed, self._stop)
            self._readers.append(reader)

    def __iter__(self) -> Iterator[Frame]:
        if self._stop.is_set():
            return
        is_empty = True
        with quiet_decoder():
            try:
                for reader in self._readers:
                    reader.start()
                while (frame := self._next_frame()) is not None:
                    is_empty = False
                    yield frame
                if is_empty and not self._stop.is_set():
                    if len(self._readers) == 1:
                        raise ValueError(self._readers[0].failure)
                    raise ValueError(f"{self._what}: no stream gave a picture")
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
        """Wait for a frame of any stream; return None if all have ended.

        Streams that have a frame take turns.
        """
        while not self._stop.is_set():
            with self._changed:
                have_ended = all(reader.ended for reader in self._readers)
                with_frame = [reader for reader in self._readers if reader.frame is not None]
                frame = with_frame[0].take() if with_frame else None
                messages = [text for reader in self._readers for text in reader.take_messages()]
                if frame is None and not have_ended and not messages:
                    self._changed.wait(POLL_S)

            # The stream that gave a frame is the last one in the next turn.
            if with_frame:
                self._readers.remove(with_frame[0])
                self._readers.append(with_frame[0])

            self._report(messages)
            for reader in self._readers:
                if reader.error is not None:
                    raise reader.error
            if frame is not None or have_ended:
                return frame
        return None

    def _report(self, messages: Sequence[tuple[str, int]]) -> None:
        """Say each message, except for the failure of the only stream, which is raised."""
        for text, skipped in messages:
            self.skipped += skipped
            if len(self._readers) > 1 or text != self._readers[0].failure:
                self._say(text)
