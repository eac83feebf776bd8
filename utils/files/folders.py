"""The folders that Kestrel writes: run folders and the cache folder."""

import contextlib
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path

from utils.printable import printable

RUN_MARK = "kestrel-run.txt"  # the file that marks a run folder
RUN_DATA = "data.yaml"  # in a run folder: the data set, if Kestrel wrote its YAML
RUN_MARK_TEXT = (
    "Kestrel wrote this folder. Its pictures are results: they are not read as "
    "data of a folder above.\n"
)

# Runs without the mark, made before it existed or by YOLOv5: files that only a run folder has
# together, and default paths.
FILES_OF_RUNS = (
    {"args.yaml", "hyp.yaml"},
    {"opt.yaml", "hyp.yaml"},
    {"metrics.json", "confusion_matrix.png"},
)
PATHS_OF_RUNS = re.compile(r"(.*/)?runs/(train|val|detect)/exp[0-9]*")


def new_run_folder(project: Path, name: str, exist_ok: bool) -> Path:
    """Create and return project/name, or the first free one of name2, name3, ...

    Two runs never share a folder. The folder is marked with RUN_MARK.

    exist_ok: use project/name even if it exists; it is marked if it is empty, since it may hold the
    user's own files.

    Raises: ValueError if the folder cannot be created, or if it is a data set, whose labels and
    YAML would be overwritten.
    """
    if not name:
        raise ValueError("--name: must not be empty")
    first = project / name
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        if exist_ok:
            folder = first
            folder.mkdir(exist_ok=True)
            _refuse_data_set(folder)
        else:
            folder = _first_free(first)

        if not any(folder.iterdir()):
            (folder / RUN_MARK).write_text(RUN_MARK_TEXT)
        return folder
    except OSError as error:
        reason = f"cannot be created ({error.strerror}); --project names another place"
        raise ValueError(f"{first}: the run folder {reason}") from error


def _refuse_data_set(folder: Path) -> None:
    """Raise ValueError if a folder has images and labels, and no run wrote it."""
    names = os.listdir(folder)
    if {"images", "labels"}.issubset(names) and not is_run_folder(str(folder), names):
        raise ValueError(
            f"{printable(folder)}: is a data set (it has images and labels), and results would "
            "overwrite its files: choose another --project or --name"
        )


def make_folder(folder: Path, flag: str, mode: int = 0o777) -> None:
    """Create a folder and those above it. Raises ValueError that names the flag to change.

    mode: of the folder if it is new.
    """
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be created ({error.strerror}); {flag} names another folder"
        raise ValueError(f"{printable(folder)}: {reason}") from None


def require_writable(folder: Path, flag: str) -> None:
    """Raise ValueError, with the flag that names it, if a folder cannot be written or created.

    Nothing is created: the nearest folder above that exists is looked at.
    """
    nearest = Path(os.path.abspath(folder))
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    reason = ""
    if not nearest.is_dir():
        reason = "is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        reason = "cannot be written"
    if reason:
        raise ValueError(f"{flag} {printable(folder)}: {printable(nearest)} {reason}")


def _first_free(first: Path) -> Path:
    """Create and return the folder `first`, or the first one of first2, first3, ... that is new."""
    folder = first
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            break
        folder = first.with_name(f"{first.name}{number}")
    return folder


def is_run_folder(folder: str, names: Collection[str]) -> bool:
    """Return whether train.py, val.py or detect.py wrote a folder.

    names: of the files in it.

    >>> is_run_folder("photos/night", ["a.jpg", "kestrel-run.txt"])
    True
    >>> is_run_folder("photos/night", ["a.jpg"])
    False
    >>> is_run_folder("/photos/runs/detect/exp2", ["a.jpg"])
    True
    >>> is_run_folder("/photos/runs/train/images", ["a.jpg"])
    False
    """
    if RUN_MARK in names:
        return True
    if any(files.issubset(names) for files in FILES_OF_RUNS):
        return True
    path = Path(os.path.abspath(folder)).as_posix()
    return PATHS_OF_RUNS.fullmatch(path) is not None


def best_checkpoint_in(folder: Path) -> Path | None:
    """Return best.pt of a run folder, or of its folder weights; None if there is none."""
    for file in (folder / "weights" / "best.pt", folder / "best.pt"):
        if file.is_file():
            return file
    return None


def data_of_run(checkpoint: Path, named: str) -> str:
    """Return the data set that a checkpoint names, or the same one where its run lies now.

    A run that holds out images, or that was given no YAML, has a YAML in its folder. After the
    folder was moved or copied, the checkpoint still names the old place.

    checkpoint: its path, in RUN/weights/.
    """
    own = Path(os.path.abspath(checkpoint)).parent.parent / RUN_DATA
    was_moved = os.path.isabs(named) and not os.path.lexists(named)
    if was_moved and os.path.basename(named) == RUN_DATA and own.is_file():
        return str(own)
    return named


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files in a run folder of processes that were killed while writing."""
    for file in (*folder.glob("*.tmp.*"), *folder.glob("weights/*.tmp.*")):
        if file.suffix[1:].isdecimal():  # see utils/files/atomic.py
            file.unlink(missing_ok=True)


def lies_in(path: Path, folder: Path) -> bool:
    """Return whether a path below a folder stays there: no link leads elsewhere.

    Ask before files of a folder that may be a stranger's are removed.
    """
    place = os.path.join(os.path.realpath(folder), path.relative_to(folder))
    return os.path.realpath(place) == place


def newest_first(folder: Path, pattern: str) -> list[Path]:
    """Return the files in `folder` that match a glob, the most recently written one first.

    Links to files that do not exist are left out: `Path.glob` returns them since Python 3.13,
    though not before. So are files that another process removes at this moment.
    """
    written: list[tuple[int, Path]] = []
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            written.append((path.stat().st_mtime_ns, path))
    written.sort(reverse=True)
    return [path for _, path in written]


def cache_folder(given: str) -> Path | None:
    """Return the folder for scanned labels and decoded images.

    It is `given`, or the user's cache folder if that is empty. None if the user has no home folder,
    as in a container that runs under a user id unknown to the system.
    """
    if given:
        return Path(given)
    try:
        user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(user_cache) / "kestrel"


def temporary_cache_folder() -> Path:
    """Create and return a folder below the system's, in place of `cache_folder` where that is None.

    Only this user can write it: others may know its name, and could put data there.

    Raises ValueError if it cannot be created, or if others own it or can write it.
    """
    if os.name != "posix":
        return Path(tempfile.gettempdir(), "kestrel")  # each user has a temporary folder there

    user = os.getuid()
    folder = Path(tempfile.gettempdir(), f"kestrel-{user}")
    make_folder(folder, "--cache-dir", mode=0o700)

    found = folder.lstat()
    others_can_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or others_can_write:
        raise ValueError(
            f"{printable(folder)} is not a folder that only this user can write: remove it, or "
            "name another folder with --cache-dir"
        )
    return folder
