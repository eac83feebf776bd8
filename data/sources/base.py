"""What every source of frames offers."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol

from utils.images.detections import Frame


class FrameSource(Protocol):
    """Frames to detect objects in, one at a time; a context manager that closes itself.

    Iterating raises ValueError, in one sentence, if the source has ended without a single frame. It
    may be done in a background thread; `close` may be called from any thread, and iterating then
    ends, a live read within a second.
    """

    @property
    def total(self) -> int | None:
        """The number of frames as far as the files state it.

        None if unknown: for streams, cameras and standard input.
        """

    @property
    def inputs(self) -> Sequence[tuple[str, bool]] | None:
        """The name of each image and video (Frame.name), and whether it is a video.

        None if they are not known yet.
        """

    @property
    def skipped(self) -> int:
        """The number of files, streams and frames that were reported and left out so far."""

    def __iter__(self) -> Iterator[Frame]: ...

    def close(self) -> None:
        """End the iteration and release what is open."""

    def __enter__(self) -> "FrameSource": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
