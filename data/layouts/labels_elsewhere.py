"""Labels that lie elsewhere than their images: both are given, or an archive is beside the images.

A folder below the cache has a link to each, as `images` and `labels`, where readers look for them.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data.formats.registry import label_files_of
from data.images import walk_folders, walk_images
from data.layouts.annotation_files import annotation_layouts, reader_of
from data.layouts.archives import ARCHIVE_SUFFIXES, is_archive, unpacked, without_outer_folders
from data.layouts.reasons.contents import is_label_file
from utils.files.archives import ArchiveError, paths_in
from utils.files.atomic import temporary_folder
from utils.files.folders import make_folder
from utils.images.decode import is_image_name

FOLDER = "pairs"  # below that of the caches


class Pair(NamedTuple):
    """Images and their labels: folders or archives, or one file with all labels."""

    images: Path
    labels: Path


class JoinedFolder(NamedTuple):
    """The folder below the cache, and what the user gave for each of the folders in messages."""

    path: Path
    given: dict[Path, str]


def find_pair(paths: Sequence[Path]) -> Pair | None:
    """Return the images and the labels if one path has only labels, and the other only images.

    Of a single folder, which has images without labels, these are those of an archive in it.
    """
    if len(paths) == 1:
        archive = _archive_of_labels(paths[0])
        return Pair(paths[0], archive) if archive else None
    if len(paths) != 2:
        return None
    for images, labels in (paths, paths[::-1]):
        has_images = any(map(is_image_name, _files_in(images)))
        is_pair = has_images and _are_labels(_files_in(labels))
        if is_pair and not _has_labels(images, besides=labels):
            return Pair(images, labels)
    return None


def join(pair: Pair, cache: Path) -> JoinedFolder:
    """Return a folder with both, which is created below the cache unless it exists.

    Several runs may do so at once: the folders of all are the same.
    """
    images = _unpacked(pair.images, cache)
    labels = _unpacked(pair.labels, cache)
    links = {"images": images, "labels" if labels.is_dir() else labels.name: labels}
    key = hashlib.sha256(f"{images}\0{labels}".encode(errors="surrogateescape")).hexdigest()
    joined = cache / FOLDER / key[:16]
    if not joined.is_dir():
        make_folder(joined.parent, "--cache-dir")
        with temporary_folder(joined) as work:
            contents = work / "contents"
            contents.mkdir()
            for name, target in links.items():
                os.symlink(target, contents / name)
            try:
                os.replace(contents, joined)
            except OSError:
                if not joined.is_dir():  # not created by another run meanwhile
                    raise

    given: dict[Path, str] = {}
    for path, (name, target) in zip(pair, links.items(), strict=True):
        given[joined / name] = str(path)
        if target != path:
            given[target] = str(path)
    given[joined] = f"{pair.images} with {pair.labels}"
    return JoinedFolder(joined, given)


def _unpacked(path: Path, cache: Path) -> Path:
    """Return a path, or the folder with the contents of an archive."""
    if path.is_file() and not is_archive(path):
        return path
    return without_outer_folders(unpacked(path, cache) if is_archive(path) else path)


def _archive_of_labels(folder: Path) -> Path | None:
    """Return the only archive of label files in a folder of images without labels."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None  # no folder, or said where it is read
    archives = [folder / name for name in names if name.lower().endswith(ARCHIVE_SUFFIXES)]
    if not archives or next(walk_images(folder), None) is None or _has_labels(folder):
        return None
    of_labels = [archive for archive in archives if _are_labels(_files_in(archive))]
    return of_labels[0] if len(of_labels) == 1 else None


def _has_labels(path: Path, besides: Path | None = None) -> bool:
    """Whether a folder has labels of the images in it, besides those in another folder."""
    if not path.is_dir():
        return False
    for file in label_files_of(path):
        if besides is None or not Path(file).is_relative_to(besides):
            return True
    return bool(annotation_layouts(path, list(walk_folders(path))))


def _are_labels(names: Iterable[str]) -> bool:
    """Whether there are label files and no images among files with these names."""
    has_labels = False
    for name in names:
        if is_image_name(name):
            return False
        has_labels = has_labels or is_label_file(name)
    return has_labels


def _files_in(path: Path) -> list[str]:
    """Return the names of the files in a folder or an archive, or that of a tool's file.

    There are none if it cannot be read.
    """
    if path.is_dir():
        return [name for _, names in walk_folders(path) for name in names]
    if not is_archive(path):
        return [path.name] if reader_of(path) is not None else []
    try:
        return [parts[-1] for parts in paths_in(path)]
    except (ArchiveError, OSError):
        return []  # said where it is opened
