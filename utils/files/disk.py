"""Room on a disk, and a folder that one process at a time works in."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from utils.terminal import FaultError, print_lines

POLL_S = 0.2


def format_bytes(number: float) -> str:
    """Bytes in words.

    >>> format_bytes(1_234_567)
    '1.23 MB'
    """
    text = tqdm.format_sizeof(number)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{number:.0f} bytes"


def require_free_space(folder: Path, size: int) -> None:
    """Raises FaultError if the disk of `folder` has less than `size` bytes left."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise FaultError(f"{folder}: {format_bytes(size)} are needed there, {format_bytes(free)} are free")


class FolderLock:
    """A lock, held until it is released or deleted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release


def lock_folder(folder: Path, patience_s: float = 5.0) -> FolderLock:
    """Hold a folder that one run at a time may write, or raise ValueError if another one does.

    The lock is this process's own: loader processes do not inherit it, and it ends with the process however that ends.
    A launcher may restart processes before the old ones have ended: their end is waited for. On a disk without locks
    the folder counts as free.
    """
    until = time.monotonic() + patience_s
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(OSError):  # this disk does not support locks
        while not _locked(descriptor, inherited=False):
            if time.monotonic() > until:
                os.close(descriptor)
                raise ValueError(f"{folder}: another run is writing there; wait for its end, or choose another --name")
            time.sleep(POLL_S)
    return FolderLock(descriptor)


@contextmanager
def exclusive_access(folder: Path) -> Iterator[None]:
    """A block that one process at a time executes, of all machines that share the disk; the others wait.

    The folder is created, and removed at the end if it is empty. A killed process blocks nobody: the operating system
    releases its lock. Raises FaultError if the disk does not support locks.
    """
    file = folder / "lock"
    descriptor = _take(file)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file
            if [entry.name for entry in os.scandir(folder)] == [file.name]:
                file.unlink()
                folder.rmdir()
        os.close(descriptor)


def _take(file: Path) -> int:
    """An open descriptor that holds the lock of the file that has this name."""
    reported = False
    while True:
        with suppress(FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # who had the lock has just removed the folder
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                own = _locked(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise FaultError(f"{file}: this disk does not support file locks: {error.strerror}") from error
            if own and os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
            os.close(descriptor)
        if not reported:
            reported = True
            print_lines(f"{file.parent}: another process is working there; waiting for it")
        time.sleep(POLL_S)


def lock_shared(descriptor: int) -> None:
    """Have `remove_unused` leave an open file alone until it is closed. Does nothing on a disk without such locks."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_unused(file: Path) -> None:
    """Remove a file, if possible, unless a process has it under `lock_shared`, of any machine that shares the disk."""
    with suppress(OSError), file.open("r+b") as stream:
        if _locked(stream.fileno()):
            file.unlink()


def _locked(descriptor: int, *, inherited: bool = True) -> bool:
    """Whether this process has the lock of a file now; inherited: with it the processes that it forks.

    Raises OSError if the disk does not support locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            (fcntl.flock if inherited else fcntl.lockf)(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (BlockingIOError, PermissionError):  # another process has it: systems differ in the error
        return False
