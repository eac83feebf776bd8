"""Say what a folder or an archive without a data set has, and what to do."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data.formats.name_lists import NAME_LISTS
from data.images import conversion_advice, walk_folders
from data.layouts.archives import ARCHIVE_SUFFIXES
from utils.files.archives import paths_in
from utils.printable import counted, printable

TFRECORD_SUFFIXES = (".tfrecord", ".tfrecords", ".record")
TFRECORD_ADVICE = "TFRecord is not read; export the data set as COCO JSON or YOLO"
LABEL_SUFFIXES = (".txt", ".json", ".xml", ".csv")


def contents_of_folder(root: Path) -> str:
    """Return what lies in a folder without a data set, and what to do, for a message."""
    errors: list[OSError] = []
    paths = []
    for folder, names in walk_folders(root, errors.append):
        paths += [os.path.join(os.path.relpath(folder, root), name) for name in names]
    found = _what_to_do(paths, "an archive")
    if found:
        return found

    for error in errors:
        folder = os.path.relpath(error.filename, root)
        where = "it" if folder == "." else f"its folder {printable(folder)}"
        return f"{where} cannot be read: {error.strerror}"
    return _label_files(paths) or _first_names(sorted(os.listdir(root)))


def contents_of_archive(archive: Path) -> str:
    """Return what an archive without a data set has, also of what is not unpacked of it.

    Raises ArchiveError as `paths_in`.
    """
    paths = [os.path.join(*path) for path in paths_in(archive)]
    tops = dict.fromkeys(path.split(os.sep)[0] for path in paths)
    return _what_to_do(paths, "another archive") or _label_files(paths) or _first_names([*tops])


def is_label_file(name: str) -> bool:
    """Whether a file with this name may have labels: it is no list of names, and about no data.

    >>> is_label_file("a.txt"), is_label_file("classes.txt"), is_label_file("README.roboflow.txt")
    (True, False, False)
    """
    is_about_data = name in NAME_LISTS or name.lower().startswith("readme")
    is_hidden = name.startswith(".")
    return name.lower().endswith(LABEL_SUFFIXES) and not (is_about_data or is_hidden)


def _what_to_do(paths: Sequence[str], an_archive: str) -> str:
    """Return what is said of files that are not read; "" if there are none.

    an_archive: what one of them is called.
    """
    suffixes = Counter(os.path.splitext(path)[1].lower() for path in paths)
    records = sum(suffixes[suffix] for suffix in TFRECORD_SUFFIXES)
    if records:
        return f"{counted(records, 'TFRecord file')}; {TFRECORD_ADVICE}"
    advice = conversion_advice(suffix for suffix, _ in suffixes.most_common())
    if advice:
        return advice

    archives = [path for path in paths if path.lower().endswith(ARCHIVE_SUFFIXES)]
    if archives:
        first = printable(os.path.normpath(archives[0]))
        return f"it holds {an_archive}, {first}: unpack it, and give what is in it"
    return ""


def _label_files(paths: Sequence[str]) -> str:
    """Return what is said of label files without images; "" if there is at most one."""
    labels = sum(is_label_file(os.path.basename(path)) for path in paths)
    if labels < 2:
        return ""
    return (
        f"{counted(labels, 'label file')} and no image; export it with the images, put them "
        "beside the labels, in a folder images/, or give both as --data images labels"
    )


def _first_names(names: Sequence[str]) -> str:
    return f"it has {', '.join(map(printable, names[:10]))}" if names else "it is empty"
