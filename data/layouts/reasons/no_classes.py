"""Say why the label files of a data set name no class."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data.formats.base import LabelFormat, ListedImage
from data.formats.listing_reader import ListingReader
from data.formats.registry import YOLO_TEXT, format_of
from data.formats.yolo_txt import label_bytes, parse_label_file
from data.images import walk_folders
from data.report import IMAGE_DROPPED, ROW_DROPPED, ROW_WITHOUT_IMAGE, UNMATCHED_LABELS, Problem
from utils.images.decode import is_image_name
from utils.printable import counted, printable

ANY_SIZE = (10_000, 10_000)  # pixels: that of the image makes no difference here
ANY_CLASS = 10**6  # classes are not known yet
SHOWN_PROBLEMS = 2
LABEL_FIRST = "label the images in the tool, and export again"


def why_no_class(sources: Sequence[Path]) -> str:
    """Return the reason, with the first file and line, and what to do.

    sources: in which no reader finds a class.
    """
    images: list[ListedImage] = []
    unmatched = []
    for source in sources:
        if format_of(source) is YOLO_TEXT:
            contents = YOLO_TEXT.images(source, ())
            images += contents.images
            unmatched += [found for found in contents.problems if found.kind == UNMATCHED_LABELS]

    files = [image.label_file for image in images if os.path.isfile(image.label_file)]
    bad_row = _first_bad_row(files)
    if bad_row:
        return f"no row of its {counted(len(files), 'label file')} can be read: {bad_row}"
    if files:
        return (
            f"none of its {counted(len(files), 'label file')}, such as {printable(files[0])}, has "
            f"a row: {LABEL_FIRST}"
        )
    if unmatched:
        return f"{unmatched[0].reason}: give label files and images the same names"
    return _why_no_object(sources) or _other_files(sources)


def _why_no_object(sources: Sequence[Path]) -> str:
    """Return why no object of an annotation tool has a class, with the first problems.

    "" if no reader but that of YOLO finds labels.
    """
    problems: list[str] = []
    labeled: list[str] = []  # files that can be read
    for source in sources:
        reader = format_of(source)
        if isinstance(reader, ListingReader):
            problems += _problems_in_listing(reader, source)
            labeled.append(str(source))
        elif reader is not YOLO_TEXT:
            found = _problems_in_files(reader, source)
            problems += found.problems
            labeled += found.files

    if problems:
        count = counted(len(problems), "problem")
        more = f" ({count})" if len(problems) > SHOWN_PROBLEMS else ""
        shown = "; ".join(problems[:SHOWN_PROBLEMS])
        return f"none of its objects can be read: {shown}{more}"
    if labeled:
        files = counted(len(labeled), "label file")
        return (
            f"no image in its {files}, such as {printable(labeled[0])}, has an object: "
            f"{LABEL_FIRST}"
        )
    if any(format_of(source).lists_images for source in sources):
        return f"it lists no image that has an object: {LABEL_FIRST}"
    return ""


def _problems_in_listing(reader: ListingReader, source: Path) -> list[str]:
    """Return the problems of a file that lists images, also of those that are not found."""
    contents = reader.contents(source)
    problems = [*contents.problems]
    for image in contents.images:
        problems += image.problems
    return _of_objects(problems)


class _FilesWithProblems(NamedTuple):
    files: list[str]  # that have labels
    problems: list[str]


def _problems_in_files(reader: LabelFormat, source: Path) -> _FilesWithProblems:
    """Return the label files of images, and their problems; of a COCO JSON those that it has."""
    contents = reader.images(source, ())
    problems = _of_objects(contents.problems)
    files: dict[str, None] = {}
    for image in contents.images:
        try:
            read = reader.rows(image, ANY_SIZE, ())
        except ValueError as error:
            problems.append(str(error))
            continue
        if read.has_labels:
            files[image.label_file] = None
            problems += _of_objects(read.problems)
    return _FilesWithProblems(list(files), problems)


def _of_objects(problems: Iterable[Problem]) -> list[str]:
    """Return the problems of objects and images that cannot be used, as text."""
    kinds = (ROW_DROPPED, ROW_WITHOUT_IMAGE, IMAGE_DROPPED)
    return [str(found) for found in problems if found.kind in kinds]


def _first_bad_row(files: Iterable[str]) -> str:
    """Return the first row of label files that cannot be read, with the reason; "" for none."""
    for file in files:
        try:
            data = label_bytes(file) or b""
            problems = parse_label_file(data, file, ANY_SIZE, ANY_CLASS).problems
        except ValueError as error:
            return str(error).partition(", but")[0]  # the number of classes is not known yet
        if problems:
            return str(problems[0])
    return ""


def _other_files(sources: Iterable[Path]) -> str:
    """Return what lies in folders beside images, in which no reader finds labels."""
    names_of: dict[str, list[str]] = defaultdict(list)  # of the files, by their suffix
    for source in sources:
        folder = source if source.is_dir() else source.parent
        for parent, names in walk_folders(folder):
            for name in sorted(names):
                if not is_image_name(name) and not name.startswith("."):
                    path = os.path.relpath(os.path.join(parent, name), folder)
                    names_of[os.path.splitext(name)[1].lower()].append(path)
    if not names_of:
        return "there are only images; give the folder or the file that has the labels, too"

    kinds = []
    for suffix, names in sorted(names_of.items(), key=lambda entry: -len(entry[1])):
        first = printable(names[0])
        files = counted(len(names), f"{suffix} file".strip())
        kinds.append(first if len(names) == 1 else f"{files} such as {first}")
    return (
        f"its other files are {', '.join(kinds[:3])}; docs/data.md says what is read, and where "
        "label files lie"
    )
