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
            if _locked(descriptor, file) and os.path.samestat(os.fstat(descriptor), os.stat(file)):
                return descriptor
            os.close(descriptor)
        if not told:
            told = True
            show(f"{file.parent}: another process is at work there, waiting for it")
        time.sleep(POLL_S)


def _locked(descriptor: int, file: Path) -> bool:
    """Whether this process has the lock now. Raises FaultError if the disk knows no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except (BlockingIOError, PermissionError):  # another process has it, in the words of each system
        return False
    except OSError as error:
        raise FaultError(f"{file}: this disk cannot keep two processes apart: {error.strerror}") from error
