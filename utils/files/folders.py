"""Folders that the program writes: runs, and caches."""

import contextlib
import itertools
import os
from pathlib import Path


def new_run_folder(project: Path, name: str, exist_ok: bool) -> Path:
    """project/name, or the first free of name2, name3, ...: created here, so that two runs never share one.

    Raises ValueError if the folder cannot be made.
    """
    first = project / name
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        if exist_ok:
            first.mkdir(exist_ok=True)
            return first
        for number in itertools.count(1):
            folder = first if number == 1 else first.with_name(f"{first.name}{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
        return folder
    except OSError as error:
        raise ValueError(f"{first}: the run folder cannot be made ({error.strerror})") from error


def remove_partial_files(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a run's folder."""
    for file in (*folder.glob("*.tmp.*"), *folder.glob("weights/*.tmp.*")):
        if file.suffix[1:].isdecimal():  # a process's number
            file.unlink(missing_ok=True)


def cache_folder(given: str) -> Path | None:
    """Where scans of labels and decoded images are kept: the place given, else the user's own.

    None for a user without a home folder: containers run as users that the system has never heard of.
    """
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kestrel"
    except RuntimeError:
        return None
