"""Download a data set from the URLs in its YAML.

It counts as missing until complete; a later run can finish it.
"""

import filecmp
import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from data.dataset_yaml import DataSpec
from data.formats import FORMATS
from utils.files.archives import ArchiveError, unpack
from utils.files.disk import exclusive_access
from utils.files.download import DownloadSource, fetch, sha256_of
from utils.images.decode import IMAGE_SUFFIXES
from utils.printable import excerpt, printable
from utils.terminal import FaultError, print_lines

# in the data set's folder during the download; never holds files of the user
WORK = ".kestrel-download"
UNPACKED = "unpacked"
DATA_SUFFIXES = IMAGE_SUFFIXES.union(*(reader.suffixes for reader in FORMATS))
UNFINISHED = "unfinished"  # an empty file in WORK until all archives are unpacked and checked
# UNFINISHED is renamed to this until all files are moved into the data set's folder
MOVING = "placing"


def is_unfinished(spec: DataSpec) -> bool:
    """Whether a download of these data is running or was interrupted."""
    markers = [spec.root / WORK / name for name in (UNFINISHED, MOVING)]
    return bool(spec.download) and any(map(os.path.exists, markers))


def require_finished(spec: DataSpec) -> None:
    """Raise ValueError if the data are only partly downloaded."""
    if is_unfinished(spec):
        state = "the download of its data was interrupted, or is still running"
        raise ValueError(
            f"{printable(spec.file)}: {state}: --download finishes it, or remove "
            f"{printable(spec.root / WORK)}"
        )


def is_data(path: Sequence[str]) -> bool:
    """Whether a file in an archive is an image, label file or list that a data set is read from.

    path: its folders and its name. All other files (programs, settings, hidden files) are skipped,
    whatever folder the YAML names.

    >>> is_data(["images", "a.JPG"]), is_data(["a.txt"])
    (True, True)
    >>> is_data(["a.py"]), is_data([".x", "a.txt"])
    (False, False)
    """
    is_hidden = any(part.startswith(".") for part in path)
    return not is_hidden and Path(path[-1]).suffix.lower() in DATA_SUFFIXES


def fetch_data(spec: DataSpec) -> None:
    """Download the data of `spec` into its folder unless they exist.

    One process does it, the others wait.

    Existing files are not changed. Raises ValueError if the YAML has no usable `download`, if the
    archives lack a folder or file that it names, or if they hold another version of an existing
    file; FaultError as `fetch` does.
    """
    if spec.sources_exist() and not is_unfinished(spec):
        return
    if not spec.download:
        missing = f"{printable(spec.file)}: has no 'download' URL to get its data from"
        raise ValueError(spec.download_error or missing)

    work = spec.root / WORK
    try:
        with exclusive_access(work):
            if not spec.sources_exist() or is_unfinished(spec):
                _fetch_all(spec, work)
    finally:
        with suppress(OSError):
            spec.root.rmdir()  # an empty folder is not a data set


def _fetch_all(spec: DataSpec, work: Path) -> None:
    """Do all steps, starting where an earlier process was interrupted."""
    if not (work / MOVING).exists():
        (work / UNFINISHED).touch()
        try:
            _unpack_all(spec, work)
        except BaseException:
            if set(os.listdir(work)) <= {UNFINISHED, "lock"}:
                (work / UNFINISHED).unlink()  # nothing was downloaded
            raise
        os.replace(work / UNFINISHED, work / MOVING)

    _move_missing(work / UNPACKED, spec.root)
    for entry in work.iterdir():
        if entry.name not in (MOVING, "lock"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    (work / MOVING).unlink()  # from here on the data count as complete
    print_lines(f"{printable(spec.file)}: its data are in {printable(spec.root)}")


def _unpack_all(spec: DataSpec, work: Path) -> None:
    """Download and unpack the archives into `work`.

    Check that they hold what the YAML names and replace no file.
    """
    unpacked = work / UNPACKED
    shutil.rmtree(unpacked, ignore_errors=True)
    archives = [_fetch_archive(spec, source, work) for source in spec.download]
    unpacked.mkdir()

    # The top folder to strip: with `path: ../datasets/coco`, `coco/images` becomes `images`, unless
    # the YAML names paths in datasets/coco/coco.
    top = spec.root.name
    if any(path.is_relative_to(spec.root / top) for path in spec.needed()):
        top = ""

    for source, archive in zip(spec.download, archives, strict=True):
        try:
            left_out = unpack(archive, unpacked, wanted=is_data, top=top)
        except ArchiveError as error:
            shutil.rmtree(unpacked)
            archive.unlink()  # it may be damaged: the next run downloads it again
            raise ValueError(
                f"{printable(spec.file)}: {source} was not unpacked: {error}"
            ) from error
        if left_out:
            kinds = []
            for kind, count in left_out.most_common(5):
                kinds.append(f"{count} {excerpt(kind) or 'without suffix'}")
            skipped = ", ".join(kinds)
            print_lines(f"{source}: skipped files other than images, labels and lists: {skipped}")

    _require_sources(spec, unpacked)
    _require_no_conflict(spec, unpacked)
    if hasattr(os, "sync"):
        os.sync()  # otherwise a power failure could leave empty label files


def _fetch_archive(spec: DataSpec, source: DownloadSource, work: Path) -> Path:
    """Return the path of an archive; download it unless an earlier process has done that."""
    file = work / hashlib.sha256(source.url.encode()).hexdigest()[:16]
    if file.exists() and source.sha256 in ("", sha256_of(file)):
        return file
    print_lines(f"{printable(spec.file)}: downloading {source}")
    digest = fetch(source, file)
    if not source.sha256:
        print_lines(f"{source}: sha256 {digest} (not checked: the YAML has no sha256)")
    return file


def _require_sources(spec: DataSpec, unpacked: Path) -> None:
    """Raise ValueError if a path of the YAML is neither in the archives nor on the disk."""
    for path in spec.needed():
        is_fetched = False
        if path.is_relative_to(spec.root):
            is_fetched = (unpacked / path.relative_to(spec.root)).exists()
        if not is_fetched and not path.exists():
            content = excerpt(", ".join(sorted(os.listdir(unpacked))), 200)
            raise ValueError(
                f"{printable(spec.file)}: it names {printable(path)}, but the download contains "
                f"only {content}"
            )


def _require_no_conflict(spec: DataSpec, unpacked: Path) -> None:
    """Raise ValueError if a downloaded file would replace a different one."""
    for folder, _, names in os.walk(unpacked):
        target = spec.root / Path(folder).relative_to(unpacked)
        conflicts = []
        for name in names:
            if not _is_absent_or_equal(Path(folder, name), target / name):
                conflicts.append(target / name)
        if target.exists() and not target.is_dir():
            conflicts.append(target)
        if conflicts:
            raise ValueError(
                f"{printable(spec.file)}: {printable(conflicts[0])} exists and differs from the "
                "downloaded one"
            )


def _is_absent_or_equal(fetched: Path, existing: Path) -> bool:
    """Whether `existing` does not exist, or is a file with the same contents."""
    if not os.path.lexists(existing):
        return True
    return existing.is_file() and filecmp.cmp(fetched, existing, shallow=False)


def _move_missing(unpacked: Path, folder: Path) -> None:
    """Move everything that does not exist in `folder` there; each move is a rename."""
    if not unpacked.exists():
        return
    for entry in list(os.scandir(unpacked)):
        target = folder / entry.name
        if entry.is_dir() and target.is_dir():
            _move_missing(Path(entry.path), target)
        elif not os.path.lexists(target):
            try:
                os.rename(entry.path, target)
            except OSError as error:
                raise FaultError(
                    f"{printable(target)}: cannot be moved into place: {error.strerror}"
                ) from error
