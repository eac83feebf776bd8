"""Say which label files of a data set are not read, because others of its images are."""

import os
from collections.abc import Iterable
from pathlib import Path

from data.formats.base import LabelFormat
from data.formats.registry import format_of, label_files_of
from utils.printable import printable


def unread_labels(sources: Iterable[Path]) -> list[str]:
    """Return a sentence for each format that is read although images have other labels, too.

    sources: folders, and files that list images; the images in the folder of these are looked at.
    """
    sentences: dict[str, str] = {}  # by format
    for source in sources:
        is_folder = os.path.isdir(source)
        reader = format_of(source)
        if reader.title in sentences or not (is_folder or reader.lists_images):
            continue
        folder = source if is_folder else source.parent
        other = _first_other(folder, reader)
        if other:
            sentences[reader.title] = (
                f"{printable(folder)}: labels are read as {reader.title}, not from other files "
                f"such as {printable(other)}"
            )
    return list(sentences.values())


def _first_other(folder: Path, reader: LabelFormat) -> str:
    """Return a label file of an image in a folder that the reader does not read; "" for none.

    Formats with the same suffix, such as YOLO and DOTA, are not told apart.
    """
    read = frozenset[str]()  # a file that lists images has all labels
    if not reader.lists_images:
        read = reader.suffixes - {".txt"} or reader.suffixes  # .txt of Pascal VOC are lists
    others = (file for file in label_files_of(folder) if os.path.splitext(file)[1] not in read)
    return next(others, "")
