"""Say which label files of a data set are not read, because others of its images are."""

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from data.formats.base import LabelFormat
from data.formats.file_reader import own_label_files
from data.formats.registry import NEIGHBOR_READERS, format_of
from data.formats.voc.folders import xml_of_image
from data.images import walk_images
from utils.printable import printable

SAMPLED_IMAGES = 200  # of a folder whose other label files are looked for


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
    for image in islice(walk_images(folder), SAMPLED_IMAGES):
        neighbors = [neighbor.path_in_neighbor(image) for neighbor in NEIGHBOR_READERS]
        for file in (*own_label_files(image), xml_of_image(str(folder), image), *neighbors):
            is_read = os.path.splitext(file)[1] in read
            if not is_read and os.path.isfile(file):
                return file
    return ""
