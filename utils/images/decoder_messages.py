"""What image libraries print to stderr while they decode.

libjpeg's warnings, which name no file.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from utils.printable import excerpt

_one_at_a_time = threading.Lock()  # file descriptor 2 belongs to the whole process


class DecoderMessages:
    """The bytes that were written to file descriptor 2 so far. Without a file nothing is caught."""

    def __init__(self, caught: IO[bytes] | None) -> None:
        self._caught = caught

    @property
    def size(self) -> int:
        """Return the number of bytes.

        If it grew during a call, that call or one in another thread printed something.
        """
        return os.fstat(self._caught.fileno()).st_size if self._caught else 0

    def since(self, start: int) -> str:
        """Return what was printed after the first `start` bytes, on one line.

        It is cut after 200 characters.
        """
        if not self._caught:
            return ""
        printed = os.pread(self._caught.fileno(), 2000, start)
        lines = printed.decode("utf-8", "replace").split("\n")
        return excerpt("; ".join(lines).strip("; "), 200)


@contextmanager
def caught_messages() -> Iterator[DecoderMessages]:
    """Keep what libraries print to stderr in this block from the terminal.

    The block can look at it. Python's own stderr, such as progress bars, still goes to the
    terminal. Nothing is caught in a second block at the same time in another thread, on Windows, or
    without room for the temporary file. What a library prints before it ends the process is lost.
    """
    if not hasattr(os, "pread") or not _one_at_a_time.acquire(blocking=False):
        yield DecoderMessages(None)
        return

    stderr = sys.stderr
    descriptor = -1
    caught: IO[bytes] | None = None

    try:
        with suppress(OSError):
            caught = tempfile.TemporaryFile()  # noqa: SIM115  # closed below
            descriptor = os.dup(2)

            if _is_descriptor_2(stderr):
                sys.stderr = open(  # noqa: SIM115
                    os.dup(2), "w", buffering=1, encoding=stderr.encoding, errors="backslashreplace"
                )

            os.dup2(caught.fileno(), 2)

        yield DecoderMessages(caught)
    finally:
        if descriptor >= 0:
            os.dup2(descriptor, 2)
            os.close(descriptor)

        if sys.stderr is not stderr:
            sys.stderr.close()
            sys.stderr = stderr

        if caught:
            caught.close()
        _one_at_a_time.release()


def _is_descriptor_2(stream: object) -> bool:
    try:
        return getattr(stream, "fileno")() == 2  # noqa: B009
    except (AttributeError, OSError, ValueError):
        return False


@contextmanager
def discarded_messages() -> Iterator[None]:
    """Discard what is written to file descriptor 2 in this block, which costs some microseconds.

    It is for processes with one thread: what other threads print meanwhile is discarded too.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
