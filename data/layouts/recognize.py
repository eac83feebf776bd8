"""Recognize what a path given as --data is, by its content."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from data.dataset_yaml import MAX_BYTES, read_data_yaml
from data.formats.image_finder import UNASSIGNED, split_of_path
from data.formats.registry import format_of
from data.images import walk_folders
from data.layouts.annotation_files import annotation_layouts, reader_of
from data.layouts.base import Layout
from data.layouts.darknet import SUFFIX, darknet_layout, is_darknet
from data.layouts.image_folders import image_folder_layouts
from data.layouts.reasons.contents import TFRECORD_ADVICE, TFRECORD_SUFFIXES, contents_of_folder
from data.layouts.separate import separate_layouts
from utils.printable import counted, printable

YAML_SUFFIXES = (".yaml", ".yml")
# lines of a data YAML, also of one with an error, or with keys of other programs
NAMES_KEY = rb"^(names|classes)\s*:"
SPLIT_KEY = rb"^(train|val|valid|validation|test)\s*:"
Folders = Sequence[tuple[str, list[str]]]


class NoDataSetError(ValueError):
    """A folder has no data set; the message says what lies there."""


class SeveralDataSetsError(ValueError):
    """A folder has several data sets; the message has a command for each."""


def recognize(path: Path, given: Path | None = None) -> Layout:
    """Return the layout of a file or folder.

    given: what the user has given for it, for messages, if it is another path.

    Raises NoDataSetError or SeveralDataSetsError for a folder, and ValueError if a file is none.
    """
    path = Path(os.path.abspath(path))
    if os.path.isdir(path):
        return _only(path, folder_layouts(path), given or path)
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


def _only(root: Path, layouts: Sequence[Layout], given: Path) -> Layout:
    """Return the only layout. Raises ValueError if there is none, or more than one."""
    if len(layouts) == 1:
        return layouts[0]
    if not layouts:
        raise NoDataSetError(f"{printable(root)} has no data set: {contents_of_folder(root)}")
    commands = "".join(
        f"\n    --data {shlex.quote(str(layout.path))}  ({layout.title})" for layout in layouts
    )
    kinds = counted(len(layouts), "data set")
    raise SeveralDataSetsError(f"{printable(given)} has {kinds}: choose one{commands}")
