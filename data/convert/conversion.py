"""Read a data set, and write it in another format: its labels, and perhaps its images."""

import filecmp
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data.formats.writers import LabelWriter, WrittenBox, WrittenImage
from data.labels import Labels
from utils.files.atomic import link_or_copy, temporary_folder
from utils.files.safe_names import safe_name
from utils.printable import counted, printable

LINK = "link"
COPY = "copy"
NONE = "none"
IMAGES = (LINK, COPY, NONE)  # what is done with the image files
MOST_DIFFERENCE = 1e-3  # pixels between a polygon's extent and its box, if it stands for the box


@dataclass
class Converted:
    """What was written.

    lost: the number of things that the format cannot hold, by their kind. is_new: whether anything
    was written; otherwise the folder had all of it.
    """

    images: int = 0
    boxes: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    is_new: bool = True
    copied: bool = False  # although links were asked for


def convert(
    labels_of: dict[str, Labels],
    names: Sequence[str],
    writer_type: type[LabelWriter],
    folder: Path,
    *,
    images: str = COPY,
) -> Converted:
    """Write a data set into a new folder, which appears when it is complete.

    Args:
        labels_of: the labels of each split.
        names: of the classes.
        writer_type: of the format.
        folder: that is written. If it has the same contents already, nothing is done.
        images: what is done with the image files: LINK, COPY or NONE.

    Raises ValueError if the folder has other contents, or the format cannot hold a class name, and
    OSError if it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder) as work:
        new = work / "contents"
        new.mkdir()
        result = Converted()
        writer = writer_type(new, names)
        placed: dict[str, str] = {}  # the path of each image by its place
        for image in written_images(labels_of):
            writer.add(image)
            placed[writer.image_place(image.name, image.split)] = image.path
            result.images += 1
            result.boxes += len(image.boxes)
        writer.close()
        result.lost = writer.lost
        if images == NONE:
            placed = {}

        if folder.exists():
            _require_same(new, folder, placed)
            result.is_new = False
            return result
        result.copied = _place_images(placed, new, images)
        os.replace(new, folder)
    return result


def written_images(labels_of: dict[str, Labels]) -> Iterator[WrittenImage]:
    """Iterate over the images of all splits, each with a name that no other one has."""
    taken: set[str] = set()
    for split, labels in labels_of.items():
        for index in range(len(labels)):
            path = labels.path(index)
            name = _free_name(os.path.basename(path), taken)
            width, height = labels.sizes[index].tolist()
            yield WrittenImage(path, name, (width, height), _boxes(labels, index), split)


def _free_name(name: str, taken: set[str]) -> str:
    """Return the name, or the name with the first free number, and take it.

    Two names must differ without their suffixes, and on file systems that ignore case.

    >>> taken = set()
    >>> [_free_name(name, taken) for name in ("a.jpg", "A.png", "a.jpg")]
    ['a.jpg', 'A_2.png', 'a_3.jpg']
    """
    stem, suffix = os.path.splitext(safe_name(name))
    candidate = stem
    number = 1
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem}_{number}"
    taken.add(candidate.casefold())
    return f"{candidate}{suffix}"


def _boxes(labels: Labels, index: int) -> list[WrittenBox]:
    """Return the boxes of one image."""
    rows = labels.rows(index)
    boxes = []
    for row in range(rows.start, rows.stop):
        left, top, width, height = labels.boxes_xywh[row].tolist()
        box = WrittenBox(
            int(labels.classes[row]),
            (left, top, width, height),
            _outline(labels, row),
            area=float(labels.areas[row]),
            crowd=bool(labels.crowd[row]),
        )
        boxes.append(box)
    return boxes


def _outline(labels: Labels, row: int) -> list[tuple[float, float]]:
    """Return the polygon of a box; nothing if it has none, or one of another extent.

    Most formats have either the polygon or the box; the other extent would change the box.
    """
    points = labels.row_points(row)
    if not len(points):
        return []
    left, top, width, height = labels.boxes_xywh[row]
    low = points.min(0)
    high = points.max(0)
    expected = [left, top, left + width, top + height]
    if np.abs(np.array([*low, *high]) - expected).max() > MOST_DIFFERENCE:
        return []
    return [(x, y) for x, y in points.astype(float).tolist()]


def _place_images(placed: dict[str, str], folder: Path, images: str) -> bool:
    """Link or copy images to their places; return whether links were asked for and not possible."""
    copied = False
    for place, path in placed.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if images == LINK:
            copied = not link_or_copy(path, target) or copied
        else:
            shutil.copyfile(path, target)
    return copied


def _require_same(new: Path, folder: Path, placed: dict[str, str]) -> None:
    """Raise ValueError unless a folder has the label files of `new`, and the images."""
    labels = {file.relative_to(new).as_posix() for file in new.rglob("*") if file.is_file()}
    present = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    differs = sorted(labels.union(placed).symmetric_difference(present))
    for place in sorted(labels & present):
        if not filecmp.cmp(new / place, folder / place, shallow=False):
            differs.append(place)
    for place, path in placed.items():
        file = folder / place
        if place in present and os.path.getsize(file) != os.path.getsize(path):
            differs.append(place)
    if differs:
        raise ValueError(
            f"{printable(folder)} exists and differs in {counted(len(differs), 'file')}, such as "
            f"{printable(differs[0])}: remove it, or choose another folder"
        )
