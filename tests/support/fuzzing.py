"""Mutations with a fixed seed, and what every reader of files owes whatever it is given."""

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

MOST_SECONDS = 5.0  # for one input, on a busy machine
MOST_GROWTH = 700 << 20  # bytes of memory beyond what there was
LONGEST_SENTENCE = 10_000  # characters: two paths at most


class HangError(BaseException):
    """Not an Exception, so that no reader takes it for a fault of the file."""


def mutated(data: bytes, random: np.random.Generator, pieces: Sequence[bytes] = ()) -> bytes:
    """`data` after one to four changes: a byte flipped, a range cut out or doubled, the end lost, a piece put in."""
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
            data = data[:at] + pieces[int(random.integers(len(pieces)))] + data[at + length * (kind == 5) :]
    return data


def outcome(read: Callable[[], T], file: Path) -> T | str:
    """What `read` returns, or the sentence of the ValueError it raises: one printable line that names `file`.

    Any other exception, a hang and a heap of memory fail the test.
    """
    with _in_time_and_memory():
        try:
            return read()
        except ValueError as error:
            sentence = str(error)
    assert type(sentence) is str
    assert printable(file) in sentence, sentence
    assert_presentable(sentence)
    return sentence


def assert_presentable(sentence: str) -> None:
    """One line of moderate length that cannot steer a terminal."""
    assert sentence.isprintable(), repr(sentence)
    assert len(sentence) < LONGEST_SENTENCE


def line_of(place: str, file: Path | str) -> int:
    """The number in `FILE line 7`."""
    found = re.fullmatch(re.escape(printable(file)) + r" line (\d+)", place)
    assert found, place
    return int(found[1])


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """What lies under `folder`, its bytes and times, and the times of the folders, are the same afterwards."""
    before = _state(folder)
    yield
    assert _state(folder) == before


def _state(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    found = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        for name in (b".", *folders, *files):
            path = os.path.join(place, name)
            content = Path(os.fsdecode(path)).read_bytes() if os.path.isfile(path) else b""
            found[path] = (os.lstat(path).st_mtime_ns, content)
    return found


@contextmanager
def _in_time_and_memory() -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    import resource

    def stop(*_: object) -> None:
        raise HangError(f"more than {MOST_SECONDS} s")

    scale = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
    earlier = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale < before + MOST_GROWTH
