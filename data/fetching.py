"""Fetch a data set as its YAML says. It counts as missing until complete; the next fetch finishes a killed one."""

import filecmp
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from data.dataset_yaml import DataSpec
from data.images import IMAGE_SUFFIXES
from utils.files.archives import ArchiveError, unpack
from utils.files.disk import exclusive_access
from utils.files.download import Source, fetch, sha256_of
from utils.printable import excerpt, printable
from utils.terminal import FaultError, print_lines

WORK = ".kestrel-download"  # in the data set's folder while it is being fetched; holds none of the user's files
UNPACKED = "unpacked"
DATA_SUFFIXES = IMAGE_SUFFIXES | {".txt", ".json"}
UNFINISHED = "unfinished"  # an empty file in it until all is unpacked and checked
PLACING = "placing"  # then renamed to this until all is moved into place


def is_unfinished(spec: DataSpec) -> bool:
    """Whether a fetch of these data is going on, or was stopped."""
    return bool(spec.download) and any(os.path.exists(spec.root / WORK / name) for name in (UNFINISHED, PLACING))


def require_finished(spec: DataSpec) -> None:
    """Raises ValueError for data that are only partly fetched."""
    if is_unfinished(spec):
        state = "fetching its data was interrupted, or is still running"
        raise ValueError(
            f"{printable(spec.file)}: {state}: --download finishes it, or remove {printable(spec.root / WORK)}"
        )


def is_data(path: Sequence[str]) -> bool:
    """Whether a file of an archive is one that a data set is read from.

    All others are left out, whatever folder the YAML names: programs, settings, hidden files.

    >>> is_data(["images", "a.JPG"]), is_data(["a.txt"]), is_data(["a.py"]), is_data([".x", "a.txt"])
    (True, True, False, False)
    """
    return Path(path[-1]).suffix.lower() in DATA_SUFFIXES and not any(part.startswith(".") for part in path)


def fetch_data(spec: DataSpec) -> None:
    """Fetch the data of `spec` into its folder unless they exist. One of several processes does, the others wait.

    Existing files stay as they are. Raises ValueError if the YAML names nothing that may be fetched, or its
    archives lack what it names, or hold another version of an existing file; FaultError as `fetch` does.
    """
    if spec.is_there() and not is_unfinished(spec):
        return
    if not spec.download:
        raise ValueError(spec.unusable or f"{printable(spec.file)}: has no 'download' to fetch its data from")
    work = spec.root / WORK
    try:
        with exclusive_access(work):
            if not spec.is_there() or is_unfinished(spec):
                _fetch_all(spec, work)
    finally:
        with suppress(OSError):
            spec.root.rmdir()  # an empty folder is not a data set


def _fetch_all(spec: DataSpec, work: Path) -> None:
    """All steps, from where an earlier process was interrupted."""
    if not (work / PLACING).exists():
        (work / UNFINISHED).touch()
        try:
            _unpack_all(spec, work)
        except BaseException:
            if set(os.listdir(work)) <= {UNFINISHED, "lock"}:
                (work / UNFINISHED).unlink()  # nothing was fetched
            raise
        os.replace(work / UNFINISHED, work / PLACING)
    _place(work / UNPACKED, spec.root)
    for entry in work.iterdir():
        if entry.name not in (PLACING, "lock"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (work / PLACING).unlink()  # from here on the data are complete
    print_lines(f"{printable(spec.file)}: its data are in {printable(spec.root)}")


def _unpack_all(spec: DataSpec, work: Path) -> None:
    """Fetch and unpack the archives into `work`; check that they hold what the YAML names and would replace no file."""
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
            archive.unlink()  # it may be damaged: the next try fetches it again
            raise ValueError(f"{printable(spec.file)}: {source} was not unpacked: {error}") from error
        if left_out:
            kinds = ", ".join(f"{count} {excerpt(kind) or 'without suffix'}" for kind, count in left_out.most_common(5))
            print_lines(f"{source}: files other than images, labels and lists, left out: {kinds}")
    _require_sources(spec, unpacked)
    _require_free(spec, unpacked)
    if hasattr(os, "sync"):
        os.sync()  # or a power cut could leave empty label files under their names


def _archive(spec: DataSpec, source: Source, work: Path) -> Path:
    """The file of an archive; it is fetched unless an earlier process has done that."""
    file = work / hashlib.sha256(source.url.encode()).hexdigest()[:16]
    if file.exists() and source.sha256 in ("", sha256_of(file)):
        return file
    print_lines(f"{printable(spec.file)}: fetching {source}")
    digest = fetch(source, file)
    if not source.sha256:
        print_lines(f"{source}: sha256 {digest} (not checked: the YAML gives none)")
    return file


def _require_sources(spec: DataSpec, unpacked: Path) -> None:
    """Raises ValueError if a source is neither in the archives nor on the disk."""
    for path in spec.needed():
        fetched = path.is_relative_to(spec.root) and (unpacked / path.relative_to(spec.root)).exists()
        if not fetched and not path.exists():
            content = excerpt(", ".join(sorted(os.listdir(unpacked))), 200)
            raise ValueError(
                f"{printable(spec.file)}: it names {printable(path)}, but what was fetched holds {content}"
            )


def _require_free(spec: DataSpec, unpacked: Path) -> None:
    """Raises ValueError if a different file has the place of a fetched one."""
    for folder, _, names in os.walk(unpacked):
        goal = spec.root / Path(folder).relative_to(unpacked)
        taken = [goal / name for name in names if not _is_alike(Path(folder, name), goal / name)]
        if goal.exists() and not goal.is_dir():
            taken.append(goal)
        if taken:
            raise ValueError(
                f"{printable(spec.file)}: {printable(taken[0])} exists, and what was fetched has a different one"
            )


def _is_alike(fetched: Path, existing: Path) -> bool:
    """Whether there is no existing file, or the same one."""
    return not os.path.lexists(existing) or (existing.is_file() and filecmp.cmp(fetched, existing, shallow=False))


def _place(unpacked: Path, goal: Path) -> None:
    """Move what does not exist in `goal`; each move is a rename."""
    for entry in list(os.scandir(unpacked)) if unpacked.exists() else ():
        place = goal / entry.name
        if entry.is_dir() and place.is_dir():
            _place(Path(entry.path), place)
        elif not os.path.lexists(place):
            try:
                os.rename(entry.path, place)
            except OSError as error:
                raise FaultError(f"{printable(place)}: cannot be put in place: {error.strerror}") from error
