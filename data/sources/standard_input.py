"""Paths on standard input, one per line: each file is used as soon as its line has arrived."""

import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from data.sources.files import FileSource, InputFile
from data.sources.names import FrameNames
from data.sources.paths import is_input_name
from utils.printable import excerpt

POLL_S = 0.2
MAX_LINE = 2**16  # bytes; a longer line is read as several
STANDARD_INPUT = "standard input"


class PathsOnInput:
    """The image and video files whose paths arrive on a text stream, until its end or `close`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._names = FrameNames()
        self._closed = threading.Event()

    def close(self) -> None:
        """End the iteration, within POLL_S seconds if the stream is a pipe or a terminal."""
        self._closed.set()

    def __iter__(self) -> Iterator[InputFile]:
        for number, line in enumerate(self._lines(), 1):
            if not line.strip():
                continue
            path = os.fsdecode(line)
            if not os.path.isfile(path):
                path = path.strip()

            problem = ""
            if not is_input_name(os.path.basename(path)):
                problem = "is not the path of an image or video file"
            elif not os.path.isfile(path):
                problem = "does not exist"
            if problem:
                place = f"{STANDARD_INPUT} line {number}"
                yield InputFile(path, "", f"{place}: '{excerpt(path, 200)}' {problem}")
                continue

            name = self._names.name(os.path.abspath(path), os.path.basename(path))
            yield InputFile(path, name)

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines without their ends."""
        rest = b""  # of a line whose end has not arrived
        for block in self._blocks():
            *lines, rest = (rest + block).split(b"\n")
            yield from (line.removesuffix(b"\r") for line in lines)
            if len(rest) > MAX_LINE:
                yield rest
                rest = b""
        yield rest

    def _blocks(self) -> Iterator[bytes]:
        """Yield what has arrived.

        A pipe is read without Python's buffer: a thread that is blocked in it would keep the
        interpreter from exiting.
        """
        descriptor = _pollable(self._stream)
        if descriptor is None:
            for text in self._stream:
                if self._closed.is_set():
                    return
                yield os.fsencode(text)
            return

        while not self._closed.is_set():
            readable, _, _ = select.select([descriptor], [], [], POLL_S)
            if not readable:
                continue
            block = os.read(descriptor, MAX_LINE)
            if not block:
                return
            yield block


def paths_on_input(
    stream: TextIO | None, *, frame_step: int, say: Callable[[str], None]
) -> FileSource:
    """Return the frames of the files whose paths arrive on `stream`.

    Nothing has been read from it before. Raises ValueError if it is closed.
    """
    if stream is None or stream.closed:
        raise ValueError(f"--source - reads paths from {STANDARD_INPUT}, but it is closed")
    paths = PathsOnInput(stream)
    return FileSource(paths, STANDARD_INPUT, frame_step=frame_step, say=say, on_close=paths.close)


def _pollable(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream that `select` can wait for, or None."""
    try:
        descriptor = stream.fileno()
        select.select([descriptor], [], [], 0)
    except (OSError, ValueError):  # not a file; or Windows, where select knows sockets only
        return None
    return descriptor
