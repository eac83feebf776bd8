"""Writing that fails: an error that says which file, and nothing left behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the path to an OSError that lacks it: a full disk is noticed by a write, which knows no name."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def remove_torn_files(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a run's folder."""
    for file in (*folder.glob("*.tmp.*"), *folder.glob("weights/*.tmp.*")):
        if file.suffix[1:].isdecimal():  # a process's number
            file.unlink(missing_ok=True)
