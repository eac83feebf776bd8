"""A data set fetched as its YAML says. It counts as there when all of it is: a killed fetch is finished by the next."""

import filecmp
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from data.dataset_yaml import DataSpec
from data.images import IMAGE_SUFFIXES
from utils.archives import ArchiveError, unpack
from utils.disk import sole_worker
from utils.download import Source, fetch, sha256_of
from utils.printable import excerpt, shown
from utils.terminal import FaultError, show

WORK = ".kestrel-download"  # in the data set's folder as long as it is being fetched; holds nothing of the user's
UNPACKED = "unpacked"
DATA_SUFFIXES = IMAGE_SUFFIXES | {".txt", ".json"}
UNFINISHED = "unfinished"  # a file that lies in it until the data are whole, under
PLACING = "placing"  # this name when all is unpacked and checked: then what is left there is what is left to move


def is_unfinished(spec: DataSpec) -> bool:
    """Whether a fetch of these data is going on, or was stopped."""
    return bool(spec.download) and any(os.path.exists(spec.root / WORK / name) for name in (UNFINISHED, PLACING))


def require_finished(spec: DataSpec) -> None:
    """Raises ValueError for data that a fetch has brought by halves."""
    if is_unfinished(spec):
        told = "fetching its data was stopped in the middle, or is going on"
        raise ValueError(f"{shown(spec.file)}: {told}: --download finishes it, or remove {shown(spec.root / WORK)}")


def is_data(path: Sequence[str]) -> bool:
    """Whether a file of an archive is one that a data set is read from.

    All others stay outside, whatever a YAML may name as its folder: programs, settings, hidden files.

    >>> is_data(["images", "a.JPG"]), is_data(["a.txt"]), is_data(["a.py"]), is_data([".x", "a.txt"])
    (True, True, False, False)
    """
    return Path(path[-1]).suffix.lower() in DATA_SUFFIXES and not any(part.startswith(".") for part in path)


def fetch_data(spec: DataSpec) -> None:
    """Fetch the data of `spec` into its folder, unless they are there. Of several processes one does, the others wait.

    Files that are there stay as they are. Raises ValueError if the YAML names nothing that may be fetched, or its
    archives lack what it says, or hold another file under the name of one that is there; FaultError as `fetch` does.
    """
    if spec.is_there() and not is_unfinished(spec):
        return
    if not spec.download:
        raise ValueError(spec.unusable or f"{shown(spec.file)}: has no 'download' to fetch its data from")
    work = spec.root / WORK
    try:
        with sole_worker(work):
            if not spec.is_there() or is_unfinished(spec):
                _fetch_all(spec, work)
    finally:
        with suppress(OSError):
            spec.root.rmdir()  # an empty folder is no data set


def _fetch_all(spec: DataSpec, work: Path) -> None:
    """All steps, from where an earlier process was stopped."""
    if not (work / PLACING).exists():
        (work / UNFINISHED).touch()
        try:
            _unpack_all(spec, work)
        except BaseException:
            if set(os.listdir(work)) <= {UNFINISHED, "lock"}:
                (work / UNFINISHED).unlink()  # nothing has come
            raise
        os.replace(work / UNFINISHED, work / PLACING)
    _place(work / UNPACKED, spec.root)
    for entry in work.iterdir():
        if entry.name not in (PLACING, "lock"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (work / PLACING).unlink()  # from here on the data count
    show(f"{shown(spec.file)}: its data are in {shown(spec.root)}")


def _unpack_all(spec: DataSpec, work: Path) -> None:
    """Fetch the archives, unpack them aside, and check that what came is what the YAML says and is in nobody's way."""
    unpacked = work / UNPACKED
    shutil.rmtree(unpacked, ignore_errors=True)
    archives = [_archive(spec, source, work) for source in spec.download]
    unpacked.mkdir()
    top = spec.root.name  # of `coco/images/...` for `path: ../datasets/coco`, unless that means coco/coco/images
    if any(path.is_relative_to(spec.root / top) for path in spec.needed()):
        top = ""
    for source, archive in zip(spec.download, archives, strict=True):
        try:
            left_out = unpack(archive, unpacked, wanted=is_data, top=top)
        except ArchiveError as error:
            shutil.rmtree(unpacked)
            archive.unlink()  # it may be damaged: another try must not meet it again
            raise ValueError(f"{shown(spec.file)}: {source} was not unpacked: {error}") from error
        if left_out:
            kinds = ", ".join(f"{count} {excerpt(kind) or 'without suffix'}" for kind, count in left_out.most_common(5))
            show(f"{source}: files that are no images, labels or lists, left out: {kinds}")
    _require_sources(spec, unpacked)
    _require_free(spec, unpacked)
    if hasattr(os, "sync"):
        os.sync()  # or a power cut could leave empty label files under their names


def _archive(spec: DataSpec, source: Source, work: Path) -> Path:
    """Where an archive lies when it has come; an earlier process may have fetched it."""
    file = work / hashlib.sha256(source.url.encode()).hexdigest()[:16]
    if file.exists() and source.sha256 in ("", sha256_of(file)):
        return file
    show(f"{shown(spec.file)}: fetching {source}")
    digest = fetch(source, file)
    if not source.sha256:
        show(f"{source}: sha256 {digest} (nothing to compare it with: the YAML names none)")
    return file


def _require_sources(spec: DataSpec, unpacked: Path) -> None:
    """Raises ValueError if what has come lacks a source that is not there either."""
    for path in spec.needed():
        come = path.is_relative_to(spec.root) and (unpacked / path.relative_to(spec.root)).exists()
        if not come and not path.exists():
            brought = excerpt(", ".join(sorted(os.listdir(unpacked))), 200)
            raise ValueError(f"{shown(spec.file)}: it names {shown(path)}, but what was fetched holds {brought}")


def _require_free(spec: DataSpec, unpacked: Path) -> None:
    """Raises ValueError if another file is where one shall go."""
    for folder, _, names in os.walk(unpacked):
        goal = spec.root / Path(folder).relative_to(unpacked)
        taken = [goal / name for name in names if not _is_alike(Path(folder, name), goal / name)]
        if goal.exists() and not goal.is_dir():
            taken.append(goal)
        if taken:
            raise ValueError(f"{shown(spec.file)}: {shown(taken[0])} is in the way: what was fetched has another one")


def _is_alike(come: Path, there: Path) -> bool:
    """Whether nothing is there, or the same."""
    return not os.path.lexists(there) or (there.is_file() and filecmp.cmp(come, there, shallow=False))


def _place(unpacked: Path, goal: Path) -> None:
    """Move what is not there; each move is a rename."""
    for entry in list(os.scandir(unpacked)) if unpacked.exists() else ():
        place = goal / entry.name
        if entry.is_dir() and place.is_dir():
            _place(Path(entry.path), place)
        elif not os.path.lexists(place):
            try:
                os.rename(entry.path, place)
            except OSError as error:
                raise FaultError(f"{shown(place)}: cannot be put in place: {error.strerror}") from error
