"""Room on a disk, and a folder that one process at a time works in."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from utils.terminal import FaultError, show

POLL_S = 0.2


def amount(number: float) -> str:
    """Bytes in words.

    >>> amount(1_234_567)
    '1.23 MB'
    """
    text = tqdm.format_sizeof(number)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{number:.0f} bytes"


def require_room(folder: Path, size: int) -> None:
    """Raises FaultError if the disk of `folder` has less than `size` bytes left."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise FaultError(f"{folder}: {amount(size)} are needed there, {amount(free)} are free")


class Held:
    """A lock, until it is let go or nobody knows of it any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = let_go


def hold_alone(folder: Path, patience_s: float = 5.0) -> Held:
    """Hold a folder that one run at a time may write, or raise ValueError if another one does.

    The lock is this process's own: loader processes do not inherit it, and it ends with the process however that ends.
    A launcher that starts processes anew may be quicker than the end of the old ones: that is waited for. Where the
    disk knows no locks the folder counts as free.
    """
    until = time.monotonic() + patience_s
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(OSError):  # this disk knows no locks
        while not _locked(descriptor, inherited=False):
            if time.monotonic() > until:
                os.close(descriptor)
                raise ValueError(f"{folder}: another run is writing there; wait for its end, or choose another --name")
            time.sleep(POLL_S)
    return Held(descriptor)


@contextmanager
def sole_worker(folder: Path) -> Iterator[None]:
    """A block that one process at a time goes through, of all machines that share the disk; the others wait.

    The folder is made, and removed in the end if nothing was left in it. A killed process keeps nobody out: the system
    itself holds the lock. Raises FaultError if the disk knows no locks.
    """
    file = folder / "lock"
    descriptor = _take(file)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file
            if [entry.name for entry in os.scandir(folder)] == [file.name]:
                file.unlink()
                folder.rmdir()
        os.close(descriptor)


def _take(file: Path) -> int:
    """An open descriptor that holds the lock of the file that has this name."""
    told = False
    while True:
        with suppress(FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # who had the lock has just removed the folder
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                own = _locked(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise FaultError(f"{file}: this disk cannot keep two processes apart: {error.strerror}") from error
            if own and os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
            os.close(descriptor)
        if not told:
            told = True
            show(f"{file.parent}: another process is at work there, waiting for it")
        time.sleep(POLL_S)


def hold_with_others(descriptor: int) -> None:
    """Have `remove_unused` leave an open file alone until it is closed. Nothing where the disk knows no such locks."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_unused(file: Path) -> None:
    """Remove a file unless a process holds it with others, of any machine that shares the disk, or it cannot be."""
    with suppress(OSError), file.open("r+b") as stream:
        if _locked(stream.fileno()):
            file.unlink()


def _locked(descriptor: int, *, inherited: bool = True) -> bool:
    """Whether this process has the lock of a file now; inherited: with it the processes that it forks.

    Raises OSError if the disk knows no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            (fcntl.flock if inherited else fcntl.lockf)(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (BlockingIOError, PermissionError):  # another process has it, in the words of each system
        return False
