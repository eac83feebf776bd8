"""Find the files in a folder that list images with their objects, such as a COCO JSON."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from data.formats.base import LabelFormat
from data.formats.image_finder import split_of_path
from data.formats.registry import COCO_JSON, FORMATS
from data.layouts.base import Layout, in_order
from utils.images.decode import is_image_name

READERS = [reader for reader in FORMATS if reader.lists_images]
SUFFIXES = frozenset().union(*(reader.suffixes for reader in READERS))
MOST_FILES = 50  # of a folder that are looked at: a tool writes few files for many images


def annotation_layouts(root: Path, folders: Sequence[tuple[str, list[str]]]) -> list[Layout]:
    """Return a layout for each format of which there are files in a folder.

    folders: it and its subfolders, each with its file names.
    """
    sources: dict[LabelFormat, list[Path]] = defaultdict(list)
    for folder, names in folders:
        for file in _candidates(folder, names):
            reader = reader_of(file)
            if reader is not None:
                sources[reader].append(file)

    layouts = []
    for reader, files in _preferred(sources).items():
        splits = defaultdict(list)
        for file in files:
            splits[split_of_path(file.relative_to(root).parts[::-1])].append(file)
        path = files[0] if len(files) == 1 else root
        layouts.append(Layout(reader.title, path, in_order(splits)))
    return layouts


def reader_of(file: Path) -> LabelFormat | None:
    """Return the reader of a file that lists images, None if it is none."""
    for reader in READERS:
        if reader.accepts(file) and (reader is not COCO_JSON or _is_coco(file)):
            return reader
    return None


def _candidates(folder: str, names: Sequence[str]) -> list[Path]:
    """Return the files of a folder that may list images: not those that belong to one image."""
    stems = set()
    for name in names:
        if is_image_name(name):
            stems |= {name, os.path.splitext(name)[0]}

    files = []
    for name in sorted(names):
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in SUFFIXES and stem not in stems and not name.startswith("."):
            files.append(Path(folder, name))
        if len(files) == MOST_FILES:
            break
    return files


def _is_coco(file: Path) -> bool:
    """Whether a JSON file, in UTF-8 or UTF-16, has COCO's lists; they may be anywhere in it."""
    wanted = {b'"images"', b'"annotations"', b'"categories"'}
    overlap = b""
    if not file.is_file():  # reading a pipe may never end
        return False
    try:
        with open(file, "rb") as stream:
            while wanted and (block := stream.read(2**20)):
                text = overlap + block.replace(b"\0", b"")  # UTF-16 has one in each ASCII letter
                wanted = {word for word in wanted if word not in text}
                overlap = text[-16:]
    except OSError:
        return False
    return not wanted


def _preferred(sources: dict[LabelFormat, list[Path]]) -> dict[LabelFormat, list[Path]]:
    """Return the files without those that a tool wrote twice: x.csv beside x.json of one tool."""
    jsons = {
        (file.with_suffix(""), _tool(reader))
        for reader, files in sources.items()
        for file in files
        if file.suffix == ".json"
    }
    kept = {}
    for reader, files in sources.items():
        own = []
        for file in files:
            is_copy = file.suffix != ".json" and (file.with_suffix(""), _tool(reader)) in jsons
            if not is_copy:
                own.append(file)
        if own:
            kept[reader] = own
    return kept


def _tool(reader: LabelFormat) -> str:
    return reader.title.rsplit(" ", 1)[0]
