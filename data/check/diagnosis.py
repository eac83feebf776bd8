"""All checks of a data set, one after the other."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data.check.anchors import anchor_table
from data.check.boxes import check_boxes, size_table
from data.check.copies import check_copies, find_copies
from data.check.counts import check_classes, check_splits, class_counts_table, split_table
from data.check.files import check_files
from data.check.findings import Diagnosis
from data.check.reading import Examined
from data.check.suggestions import suggest
from data.check.unlabeled import check_unlabeled
from data.images import IMAGE_FOLDERS
from data.layouts.similar import thumbnails_of
from utils.printable import printable
from utils.threads import usable_cores

Watch = Callable[[Iterable[Any]], Iterable[Any]]


def diagnose(examined: Examined, cache: Path | None, *, progress: bool = False) -> Diagnosis:
    """Return what is wrong with a data set, and what is suggested for it.

    Args:
        examined: the data set.
        cache: folder where the thumbnails of images are stored, None to store none.
        progress: show bars on a terminal.
    """
    splits = {split.name: len(split.labels) for split in examined.splits}
    diagnosis = Diagnosis(examined.spec.title, splits, examined.image_size)
    has_boxes = not all(split.labels.crowd.all() for split in examined.splits)
    diagnosis.tables += [split_table(examined), class_counts_table(examined)]
    if has_boxes:
        diagnosis.tables += [size_table(examined), anchor_table(examined)]

    paths = examined.paths()
    diagnosis.folder = printable(_folder_of(paths))
    threads = usable_cores()
    compared = _bar("thumbnails", len(paths), progress)
    thumbnails = thumbnails_of(paths, cache, threads, compared)
    looked_at = _bar("copies", None, progress)
    within, across = find_copies(paths, examined.split_numbers(), thumbnails, threads, looked_at)

    diagnosis.findings += check_splits(examined)
    diagnosis.findings += check_files(examined)
    diagnosis.findings += check_copies(examined, paths, within, across)
    diagnosis.findings += check_unlabeled(examined, paths, thumbnails, [*across, *within])
    diagnosis.findings += check_classes(examined)
    diagnosis.findings += check_boxes(examined)
    diagnosis.suggestions += suggest(examined)
    return diagnosis


def _folder_of(paths: Sequence[str]) -> str:
    """Return the folder that all images are in, and that a folder of labels is beside.

    >>> _folder_of(["/a/b/images/train/1.jpg", "/a/b/images/val/1.jpg"]), _folder_of(["/a/1.jpg"])
    ('/a/b', '/a')
    """
    try:
        common = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # on two drives of Windows
        return ""
    parts = common.split(os.sep)
    images = [place for place, part in enumerate(parts) if part.casefold() in IMAGE_FOLDERS]
    return os.sep.join(parts[: images[-1]]) if images else common


def _bar(title: str, total: int | None, progress: bool) -> Watch:
    """Return a function that passes items on, with a bar on a terminal."""
    disable = None if progress else True  # None: show the bar on a terminal only
    return partial(tqdm, desc=title, total=total, disable=disable, leave=False)
