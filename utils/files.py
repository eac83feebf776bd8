"""Files written whole or not at all, and errors that say which file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from utils.terminal import FaultError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the path to an OSError that lacks it: a full disk is noticed by a write, which knows no name."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # without a number, setting the name would hide the text
            error.filename = str(path)
        raise


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary file to write: it takes the place of `path` when the block ends well, and is removed if not.

    Raises FaultError if its folder is gone.
    """
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    except (FileNotFoundError, NotADirectoryError):
        if path.parent.is_dir():
            raise
        raise FaultError(f"{path}: its folder is gone") from None
    finally:
        with suppress(OSError):  # that is told already, or it is on a disk that can no longer be written
            temporary.unlink(missing_ok=True)


def remove_torn_files(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a run's folder."""
    for file in (*folder.glob("*.tmp.*"), *folder.glob("weights/*.tmp.*")):
        if file.suffix[1:].isdecimal():  # a process's number
            file.unlink(missing_ok=True)
