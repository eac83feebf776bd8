"""Free disk space, and locks on folders and files."""

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
    """Return a number of bytes as text with a unit.

    >>> format_bytes(1_234_567)
    '1.23 MB'
    """
    text = tqdm.format_sizeof(number)  # such as 1.23M
    prefix = text[-1]
    if not prefix.isalpha():
        return f"{number:.0f} bytes"
    return f"{text[:-1]} {prefix}B"


def require_free_space(folder: Path, size: int) -> None:
    """Raise FaultError if the disk of `folder` has less than `size` bytes free."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise FaultError(
            f"{folder}: the disk has {format_bytes(free)} free, but {format_bytes(size)} are needed"
        )


class FolderLock:
    """A lock on a folder, held until `release` is called or the object is deleted."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release


def lock_folder(folder: Path, wait_s: float = 5.0) -> FolderLock:
    """Lock a run folder for this process.

    Loader processes do not inherit the lock, and the operating system releases it however this
    process ends. The wait is for a launcher that restarts processes before the old ones have ended.
    On a disk that does not support locks the folder counts as free.

    Raises: ValueError if another process holds it for longer than `wait_s`.
    """
    deadline = time.monotonic() + wait_s
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(OSError):  # this disk does not support locks
        while not _locked(descriptor, inherited=False):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise ValueError(
                    f"{folder}: another run is writing there; wait for its end, or choose another "
                    "--name"
                )
            time.sleep(POLL_S)
    return FolderLock(descriptor)


@contextmanager
def exclusive_access(folder: Path, *, quiet: bool = False) -> Iterator[None]:
    """Lock `folder` during the block: other processes, on all machines that share the disk, wait.

    The folder is created, and removed at the end if it is empty. The operating system releases the
    lock of a killed process. quiet: print no line about waiting, for work of less than a second.

    Raises: FaultError if the disk does not support locks.
    """
    file = folder / "lock"
    descriptor = _take(file, quiet=quiet)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows cannot remove an open file
            if [entry.name for entry in os.scandir(folder)] == [file.name]:
                file.unlink()
                folder.rmdir()
        os.close(descriptor)


def _take(file: Path, *, quiet: bool) -> int:
    """Wait for the lock of `file`; return the open file descriptor that holds it."""
    reported = quiet
    while True:
        with suppress(FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)

        # the process that held the lock has just removed the folder
        with suppress(FileNotFoundError):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                has_lock = _locked(descriptor)
            except OSError as error:
                os.close(descriptor)
                raise FaultError(
                    f"{file}: this disk does not support file locks: {error.strerror}"
                ) from error

            if has_lock and os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
            os.close(descriptor)

        if not reported:
            reported = True
            print_lines(f"{file.parent}: another process is working there; waiting for it")
        time.sleep(POLL_S)


def lock_shared(descriptor: int) -> None:
    """Keep `remove_unused` from removing an open file until it is closed.

    It has no effect on a disk that lacks such locks.
    """
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_unused(file: Path) -> None:
    """Try to remove a file, unless a process holds it with `lock_shared`.

    That process may be on any machine that shares the disk.
    """
    with suppress(OSError), file.open("r+b") as stream:
        if _locked(stream.fileno()):
            file.unlink()


def _locked(descriptor: int, *, inherited: bool = True) -> bool:
    """Try to lock an open file without waiting; return whether this process now holds the lock.

    inherited: whether forked processes share the lock.

    Raises: OSError if the disk does not support locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            lock = fcntl.flock if inherited else fcntl.lockf
            lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (BlockingIOError, PermissionError):
        # another process holds it; the error depends on the operating system
        return False
