"""The folders that Kestrel writes: run folders and the cache folder."""

import contextlib
import itertools
import os
import re
from collections.abc import Collection
from pathlib import Path

RUN_MARK = "kestrel-run.txt"  # the file that marks a run folder
RUN_MARK_TEXT = (
    "Kestrel wrote this folder. Its pictures are results: they are not read as "
    "data of a folder above.\n"
)
# Of runs made before the mark existed, and of YOLOv5: files that only a run folder has together,
# and default paths.
FILES_OF_RUNS = (
    {"args.yaml", "hyp.yaml"},
    {"opt.yaml", "hyp.yaml"},
    {"metrics.json", "confusion_matrix.png"},
)
PATHS_OF_RUNS = re.compile(r"(.*/)?runs/(train|val|detect)/exp[0-9]*")


def new_run_folder(project: Path, name: str, exist_ok: bool) -> Path:
    """Create and return project/name, or the first free one of name2, name3, ...

    Two runs never share a folder. The folder is marked with RUN_MARK. exist_ok: use project/name
    even if it exists; it is marked if it is empty, since it may hold the user's own files. Raises
    ValueError if the folder cannot be created.
    """
    if not name:
        raise ValueError("--name: must not be empty")
    first = project / name
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        if exist_ok:
            first.mkdir(exist_ok=True)
            if not any(first.iterdir()):
                (first / RUN_MARK).write_text(RUN_MARK_TEXT)
            return first
        for number in itertools.count(1):
            folder = first if number == 1 else first.with_name(f"{first.name}{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
        (folder / RUN_MARK).write_text(RUN_MARK_TEXT)
        return folder
    except OSError as error:
        raise ValueError(f"{first}: the run folder cannot be created ({error.strerror})") from error


def is_run_folder(folder: str, names: Collection[str]) -> bool:
    """Return whether train.py, val.py or detect.py wrote a folder. names: of the files in it.

    >>> is_run_folder("photos/night", ["a.jpg", "kestrel-run.txt"])
    True
    >>> is_run_folder("photos/night", ["a.jpg"])
    False
    >>> is_run_folder("/photos/runs/detect/exp2", ["a.jpg"])
    True
    >>> is_run_folder("/photos/runs/train/images", ["a.jpg"])
    False
    """
    if RUN_MARK in names or any(files.issubset(names) for files in FILES_OF_RUNS):
        return True
    return PATHS_OF_RUNS.fullmatch(Path(os.path.abspath(folder)).as_posix()) is not None


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files in a run folder that processes left because they were killed while
    writing.
    """
    for file in (*folder.glob("*.tmp.*"), *folder.glob("weights/*.tmp.*")):
        if file.suffix[1:].isdecimal():  # a process id
            file.unlink(missing_ok=True)


def newest_first(folder: Path, pattern: str) -> list[Path]:
    """The files in `folder` that match a glob `pattern`, the most recently written one first.

    Links to files that do not exist are left out: `Path.glob` returns them since Python 3.13,
    though not before. So are files that another process removes at this moment.
    """
    written: list[tuple[int, Path]] = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            written.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(written, reverse=True)]


def cache_folder(given: str) -> Path | None:
    """Return the folder for scanned labels and decoded images.

    `given`, or the user's cache folder if that is empty. None if the user has no home folder, as in
    a container that runs under a user id unknown to the system.
    """
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kestrel"
    except RuntimeError:
        return None
