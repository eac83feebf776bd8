"""Frames of image and video files, one file at a time."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from data.sources.containers import VIDEO_SUFFIXES
from data.sources.video import video_frames, video_length
from utils.images.decode import decode_bgr, quiet_decoder, read_bytes
from utils.images.detections import Frame
from utils.printable import printable
from utils.threads import map_ahead, usable_cores


@dataclass(frozen=True)
class InputFile:
    """An image or video file."""

    path: str
    name: str  # of its outputs
    problem: str = ""  # why it is to be reported and left out

    @property
    def is_video(self) -> bool:
        """Whether its suffix is that of a video."""
        return os.path.splitext(self.path)[1].lower() in VIDEO_SUFFIXES


def decoding_threads() -> int:
    """Return the number of threads that decode images.

    The model needs the other cores, unless it runs on a GPU.
    """
    return max(1, usable_cores() // 4)


class FileSource:
    """The frames of files, in the order given.

    A file that cannot be read is reported and left out.
    """

    def __init__(
        self,
        files: Iterable[InputFile],
        what: str,
        *,
        frame_step: int,
        say: Callable[[str], None],
        skipped: int = 0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the files; nothing is opened.

        Args:
            files: a list, or an iterator that may wait for the next file.
            what: the source, as text for the user.
            frame_step: use every n-th frame of a video, from the first on.
            say: called with each problem, one sentence.
            skipped: the number of files that were left out before.
            on_close: called by `close`.
        """
        self.skipped = skipped
        self._files = files
        self._what = what
        self._frame_step = frame_step
        self._say = say
        self._on_close = on_close
        self._closed = False
        self._total: int | None = None

    @property
    def total(self) -> int | None:
        """As in FrameSource. Opens each video once, one at a time, to read its header."""
        if self._total is None and isinstance(self._files, list):
            with quiet_decoder():
                lengths = [self._length(file) for file in self._files]
            if None not in lengths:
                self._total = sum(length or 0 for length in lengths)
        return self._total

    @property
    def inputs(self) -> Sequence[tuple[str, bool]] | None:
        """As in FrameSource."""
        if not isinstance(self._files, list):
            return None
        return [(file.name, file.is_video) for file in self._files]

    def __iter__(self) -> Iterator[Frame]:
        # One thread waits for files that come later.
        threads = decoding_threads() if isinstance(self._files, list) else 1
        is_empty = True
        with quiet_decoder():
            for file, read in map_ahead(self._read, self._files, threads):
                if self._closed:
                    return
                for frame in self._frames(file, read):
                    is_empty = False
                    yield frame
                    if self._closed:
                        return
        if is_empty and not self._closed:
            raise ValueError(f"{self._what}: no image or video could be read")

    def close(self) -> None:
        self._closed = True
        self._on_close()

    def __enter__(self) -> "FileSource":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _length(self, file: InputFile) -> int | None:
        """Return the number of frames of one file, None if it is unknown."""
        return video_length(file.path, self._frame_step) if file.is_video else 1

    def _read(self, file: InputFile) -> tuple[InputFile, Frame | ValueError | None]:
        """Return a file with its frame, or the error, if it is an image; None if it is a video."""
        try:
            if file.problem:
                raise ValueError(file.problem)
            if file.is_video or self._closed:
                return file, None
            image = decode_bgr(read_bytes(file.path), file.path)
            return file, Frame(image, file.path, file.name)
        except ValueError as error:
            return file, error

    def _frames(
        self, file: InputFile, read: Frame | ValueError | None
    ) -> Generator[Frame, None, None]:
        """Yield the frames of one file; report what cannot be read."""
        try:
            if isinstance(read, ValueError):
                raise read
            if read is not None:
                yield read
                return
            lost, missing = yield from video_frames(file.path, file.name, self._frame_step)
        except ValueError as error:
            self.skipped += 1
            if isinstance(self._files, list) and len(self._files) == 1:
                raise
            self._say(f"{error}; it is skipped")
            return

        if missing:
            self.skipped += lost
            self._say(f"{printable(file.path)}: {missing}")
