"""Recognize what a path given as --data is, by its content."""

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from data.dataset_yaml import MAX_BYTES, read_data_yaml
from data.formats.image_finder import UNASSIGNED, split_of_path
from data.formats.name_lists import NAME_LISTS
from data.formats.registry import format_of
from data.images import conversion_advice, walk_folders
from data.layouts.annotation_files import annotation_layouts, reader_of
from data.layouts.base import Layout
from data.layouts.darknet import SUFFIX, darknet_layout, is_darknet
from data.layouts.image_folders import image_folder_layouts
from data.layouts.separate import separate_layouts
from utils.printable import counted, printable

YAML_SUFFIXES = (".yaml", ".yml")
TFRECORD_SUFFIXES = (".tfrecord", ".tfrecords", ".record")
TFRECORD_ADVICE = "TFRecord is not read; export the data set as COCO JSON or YOLO"
# lines of a data YAML, also of one with an error, or with keys of other programs
NAMES_KEY = rb"^(names|classes)\s*:"
SPLIT_KEY = rb"^(train|val|valid|validation|test)\s*:"
LABEL_SUFFIXES = (".txt", ".json", ".xml", ".csv")
Folders = Sequence[tuple[str, list[str]]]


def recognize(path: Path) -> Layout:
    """Return the layout of a file or folder.

    Raises ValueError if it is none, with what lies there, or several, with a command for each.
    """
    path = Path(os.path.abspath(path))
    if os.path.isdir(path):
        return _only(path, folder_layouts(path))
    if not os.path.exists(path):
        raise ValueError(f"{printable(path)} does not exist")
    return _file_layout(path)


def _file_layout(path: Path) -> Layout:
    suffix = path.suffix.lower()
    if suffix in YAML_SUFFIXES:
        return Layout("data YAML", path, {}, is_yaml=True)
    if suffix in TFRECORD_SUFFIXES:
        raise ValueError(f"{printable(path)}: {TFRECORD_ADVICE}")
    if suffix == SUFFIX and is_darknet(path):
        return darknet_layout(path)

    reader = reader_of(path)
    if reader is None and suffix == ".txt":
        reader = format_of(path)
    if reader is None:
        raise ValueError(
            f"{printable(path)} is not a file of labels that is known: give a data YAML, a folder, "
            "an archive, or the file that an annotation tool wrote"
        )
    return Layout(reader.title, path, {split_of_path([path.stem]) or UNASSIGNED: (path,)})


def folder_layouts(root: Path) -> list[Layout]:
    """Return the data sets that may be in a folder."""
    return _layouts(root, list(walk_folders(root)))


def _layouts(root: Path, folders: Folders) -> list[Layout]:
    """Return the data sets of subfolders that are several, or else what the whole folder may be:
    what the files in it say, or else images with label files.

    folders: it and its subfolders, each with its file names.
    """
    return (
        separate_layouts(root, folders, _layouts, _layouts_of_files)
        or _layouts_of_files(root, folders)
        or image_folder_layouts(root, folders)
    )


def _layouts_of_files(root: Path, folders: Folders) -> list[Layout]:
    """Return a layout for each file of the first kind that is there: data YAMLs, Darknet's files,
    annotation files.
    """
    return _yaml_layouts(folders) or _darknet_layouts(folders) or annotation_layouts(root, folders)


def _yaml_layouts(folders: Folders) -> list[Layout]:
    """Return a layout for each data YAML.

    Raises ValueError if there is none but one with an error: its names must not be passed over.
    """
    layouts = []
    errors = []

    for folder, names in folders:
        for name in sorted(names):
            file = Path(folder, name)
            # Reading a pipe may never end.
            if file.suffix.lower() not in YAML_SUFFIXES or not file.is_file():
                continue

            try:
                spec = read_data_yaml(file)
            except ValueError as error:
                if _is_meant_as_data(file):
                    errors.append(error)
                continue

            if spec.splits:
                layouts.append(Layout("data YAML", file, {}, is_yaml=True))

    if errors and not layouts:
        raise errors[0]
    return layouts


def _is_meant_as_data(file: Path) -> bool:
    """Whether a YAML that cannot be read as one of data has names and a split."""
    try:
        with open(file, "rb") as stream:
            text = stream.read(MAX_BYTES)
    except OSError:
        return False
    return all(re.search(key, text, re.MULTILINE) for key in (NAMES_KEY, SPLIT_KEY))


def _darknet_layouts(folders: Folders) -> list[Layout]:
    layouts = []
    for folder, names in folders:
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix.lower() == SUFFIX and file.is_file() and is_darknet(file):
                layouts.append(darknet_layout(file))
    return layouts


def _only(root: Path, layouts: Sequence[Layout]) -> Layout:
    """Return the only layout. Raises ValueError if there is none, or more than one."""
    if len(layouts) == 1:
        return layouts[0]
    if not layouts:
        raise ValueError(f"{printable(root)} has no data set: {_contents(root)}")
    commands = "".join(
        f"\n    --data {shlex.quote(str(layout.path))}  ({layout.title})" for layout in layouts
    )
    kinds = counted(len(layouts), "data set")
    raise ValueError(f"{printable(root)} has {kinds}: choose one{commands}")


def _contents(root: Path) -> str:
    """Return what lies in a folder without images, and what to do, for a message."""
    suffixes: Counter[str] = Counter()
    errors: list[OSError] = []
    for _, names in walk_folders(root, errors.append):
        files = [name for name in names if name not in NAME_LISTS]
        suffixes.update(os.path.splitext(name)[1].lower() for name in files)
    records = sum(suffixes[suffix] for suffix in TFRECORD_SUFFIXES)
    if records:
        return f"{counted(records, 'TFRecord file')}; {TFRECORD_ADVICE}"
    advice = conversion_advice(suffix for suffix, _ in suffixes.most_common())
    if advice:
        return advice
    for error in errors:
        folder = os.path.relpath(error.filename, root)
        where = "it" if folder == "." else f"its folder {printable(folder)}"
        return f"{where} cannot be read: {error.strerror}"
    labels = sum(suffixes[suffix] for suffix in LABEL_SUFFIXES)
    if labels > 1:
        return (
            f"{counted(labels, 'label file')} and no image; export it with the images, or put them "
            "beside the labels, in a folder images/"
        )

    names = sorted(os.listdir(root))[:10]
    if not names:
        return "it is empty"
    return f"it has {', '.join(map(printable, names))}"
