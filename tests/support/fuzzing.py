"""Mutations with a fixed seed, and checks that every file reader must pass for any input."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from utils.printable import printable

T = TypeVar("T")

MAX_SECONDS = 5.0  # for one input, on a busy machine
MAX_GROWTH = 700 << 20  # bytes of additional memory
MAX_MESSAGE_CHARS = 10_000  # characters: two paths at most
ODD_STEMS = [
    "a b",
    "'",
    '"',
    "two\nlines",
    "\x1b[2J",
    "é漢字🦖",
    "%s{x}$y",
    "#x",
    "-rf",
    "~",
    "a\\b",
]


class HangError(BaseException):
    """Raised on a timeout. Not an Exception, so that no reader treats it as an invalid file."""


def mutate(data: bytes, random: np.random.Generator, pieces: Sequence[bytes] = ()) -> bytes:
    """`data` after one to four changes: flip a bit, remove or double a range, cut off the end,
    insert a piece.
    """
    for _ in range(int(random.integers(1, 5))):
        at, length = (int(random.integers(0, len(data) + 1)), int(random.integers(1, 40)))
        kind = int(random.integers(6 if pieces else 4))
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << int(random.integers(8)))]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[at + length :]
        elif kind == 2:
            data = data[:at] + data[at : at + length] + data[at:]
        elif kind == 3 and random.random() < 0.3:
            data = data[:at]
        elif kind >= 4:
            data = (
                data[:at]
                + pieces[int(random.integers(len(pieces)))]
                + data[at + length * (kind == 5) :]
            )
    return data


def result_or_error(read: Callable[[], T], file: Path, seconds: float = MAX_SECONDS) -> T | str:
    """The result of `read`, or the message of its ValueError, which must be one printable line that
    names `file`.

    Any other exception, a timeout or too much memory fails the test.
    """
    with _limit_time_and_memory(seconds):
        try:
            return read()
        except ValueError as error:
            message = str(error)
    assert type(message) is str
    assert printable(file) in message, message
    assert_printable_line(message)
    return message


def assert_printable_line(sentence: str) -> None:
    """Check that a message is one line of limited length without control characters."""
    assert sentence.isprintable(), repr(sentence)
    assert len(sentence) < MAX_MESSAGE_CHARS


def line_number(place: str, file: Path | str) -> int:
    """The line number in a text such as `FILE line 7`."""
    found = re.fullmatch(re.escape(printable(file)) + r" line (\d+)", place)
    assert found, place
    return int(found[1])


@contextmanager
def assert_unchanged(folder: Path) -> Iterator[None]:
    """Check that the block changes no file in `folder`: names, bytes, and times of files and
    folders.
    """
    before = _file_states(folder)
    yield
    assert _file_states(folder) == before


def _file_states(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    found = {}
    for parent, folders, files in os.walk(os.fsencode(folder)):
        for name in (b".", *folders, *files):
            path = os.path.join(parent, name)
            content = Path(os.fsdecode(path)).read_bytes() if os.path.isfile(path) else b""
            found[path] = (os.lstat(path).st_mtime_ns, content)
    return found


@contextmanager
def _limit_time_and_memory(seconds: float = MAX_SECONDS) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import resource

    def stop(*_: object) -> None:
        raise HangError(f"more than {seconds} s")

    scale = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale < before + MAX_GROWTH
