"""Files written whole or not at all, and errors that say which file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from utils.terminal import FaultError


@contextmanager
def name_os_errors(path: Path) -> Iterator[None]:
    """Adds the path to an OSError that lacks it: a write to a full disk fails without one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # without a number, setting the name would hide the text
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file to write: it takes the place of `path` when the block ends well, and is removed if not.

    Raises FaultError if its folder no longer exists.
    """
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        with name_os_errors(path):
            yield temporary
            os.replace(temporary, path)
    except (FileNotFoundError, NotADirectoryError):
        if path.parent.is_dir():
            raise
        raise FaultError(f"{path}: its folder no longer exists") from None
    finally:
        with suppress(OSError):  # reported already, or the disk is no longer writable
            temporary.unlink(missing_ok=True)
