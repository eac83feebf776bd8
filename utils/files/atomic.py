"""Atomic writes of files and folders, and OSErrors that name their file."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from utils.terminal import FaultError


@contextmanager
def name_os_errors(path: Path) -> Iterator[None]:
    """Add `path` to an OSError from the block.

    The error of a write to a full disk does not name the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # without an errno, setting filename would hide the message
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file to write.

    It replaces `path` when the block ends without an exception. After an exception the temporary
    file is removed and `path` stays as it was. Raises FaultError if the folder of `path` no longer
    exists.
    """
    temporary = _beside(path, "tmp")
    try:
        with name_os_errors(path):
            yield temporary
            os.replace(temporary, path)
    except (FileNotFoundError, NotADirectoryError):
        if path.parent.is_dir():
            raise
        raise FaultError(f"{path}: its folder no longer exists") from None
    finally:
        with suppress(OSError):  # already reported, or the disk is no longer writable
            temporary.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    """Return the path of a temporary file that no other process has: process ids repeat between
    containers that share a disk.
    """
    return path.with_name(f"{path.name}.{kind}.{secrets.randbelow(10**12)}")


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`, to be filled before `path` is replaced.

    It is removed at the end.
    """
    with name_os_errors(path):
        temporary = Path(tempfile.mkdtemp(prefix=f"{path.name}.tmp.", dir=path.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_file(file: str, target: Path) -> None:
    """Copy a file. The OSError of a full disk names `target`, that of an absent file names it."""
    with open(file, "rb"):  # an error names it
        pass
    with name_os_errors(target):
        shutil.copyfile(file, target)


def link_or_copy(file: str, target: Path) -> bool:
    """Make a hard link to a file, or a copy on another disk; return whether it is a link.

    Not a symbolic link: programs that guard against files outside their folder refuse those.
    """
    try:
        os.link(os.path.realpath(file), target)
    except OSError:
        copy_file(file, target)
        return False
    return True


def replace_folder(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`, in place of a folder that exists there.

    After an exception `path` is the old folder. If the process is killed, `path` is the complete
    old or new folder, or is missing, and the old one is beside it; it is never half written.
    """
    old = _beside(path, "old.tmp")
    with name_os_errors(path):
        existed = path.exists()
        if existed:
            os.replace(path, old)
        try:
            os.replace(new, path)
        except BaseException:
            if existed and not path.exists():
                os.replace(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
