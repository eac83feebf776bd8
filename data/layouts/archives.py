"""Unpack an archive that is given as a data set, once, below the folder of the caches."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from data.formats.image_finder import split_of_path
from data.formats.registry import FORMATS
from utils.files.archives import ArchiveError, NoWantedFileError, unpack
from utils.files.atomic import temporary_folder
from utils.files.disk import exclusive_access
from utils.files.fingerprint import file_state
from utils.files.folders import make_folder
from utils.images.decode import IMAGE_SUFFIXES
from utils.printable import printable

FOLDER = "archives"  # below that of the caches
TAR_SUFFIXES = (".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
UNREAD_SUFFIXES = (".7z", ".rar", ".tar.zst")  # which are refused by their first bytes
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES, *UNREAD_SUFFIXES)
OTHER_SUFFIXES = {".yaml", ".yml", ".data", ".names", ".labels"}  # that describe a data set
WANTED = IMAGE_SUFFIXES.union(OTHER_SUFFIXES, *(reader.suffixes for reader in FORMATS))


def is_archive(path: Path) -> bool:
    """Whether a file is an archive by its name."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES) and path.is_file()


def unpacked(archive: Path, cache: Path) -> Path:
    """Return the folder with the contents of an archive, which is unpacked unless it was before.

    It lies below `cache`. Only images, label files and lists are written; a folder appears when it
    is complete. The archive is unpacked again after a change.

    Raises ValueError with its path if it is damaged or unsafe, and NoWantedFileError, likewise, if
    it has none of these files.
    """
    key = hashlib.sha256(os.fsencode(archive) + file_state(archive)).hexdigest()[:16]
    folder = cache / FOLDER / f"{archive.name.partition('.')[0][:40]}-{key}"
    if folder.is_dir():
        return folder

    make_folder(folder.parent, "--cache-dir")
    with exclusive_access(folder.with_name(f"{folder.name}.lock")):
        if folder.is_dir():  # another process has unpacked it meanwhile
            return folder
        with temporary_folder(folder) as work:
            contents = work / "contents"
            contents.mkdir()
            try:
                unpack(archive, contents, wanted=_is_wanted)
            except NoWantedFileError as error:
                raise NoWantedFileError(f"{printable(archive)} is not unpacked: {error}") from None
            except ArchiveError as error:
                raise ValueError(f"{printable(archive)} is not unpacked: {error}") from None
            os.replace(contents, folder)
    return folder


def without_outer_folders(folder: Path) -> Path:
    """Return the first folder, from an unpacked one on, that is not all that another one has.

    Whether a data set was packed with its folder or without makes no difference then. A folder
    whose name is that of a split belongs to the data set.
    """
    while True:
        entries = list(folder.iterdir())
        if len(entries) != 1 or not entries[0].is_dir() or split_of_path([entries[0].name]):
            return folder
        folder = entries[0]


def without_key(path: str) -> str:
    """Return the path of an unpacked file without what changes with its archive.

    >>> without_key("/cache/archives/photos-0123456789abcdef/a.jpg")
    '/cache/archives/photos/a.jpg'
    """
    return re.sub(f"(/{FOLDER}/[^/]*)-[0-9a-f]{{16}}(?=/)", r"\1", path, count=1)


def _is_wanted(path: Sequence[str]) -> bool:
    """Whether a file of an archive may belong to a data set; path: its folders and its name."""
    is_hidden = any(part.startswith(".") or part == "__MACOSX" for part in path)
    return not is_hidden and Path(path[-1]).suffix.lower() in WANTED
