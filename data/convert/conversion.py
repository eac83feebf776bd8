"""Read a data set, and write it in another format: its labels, and perhaps its images."""

import filecmp
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.formats.writers import LabelWriter, WrittenBox, WrittenImage
from data.labels import Labels
from utils.files.atomic import copy_file, link_or_copy, name_os_errors, temporary_folder
from utils.files.safe_names import safe_name
from utils.outputs.names import shorten
from utils.printable import counted, printable

LINK = "link"
COPY = "copy"
NONE = "none"
IMAGES = (LINK, COPY, NONE)  # what is done with the image files
MAX_NAME_BYTES = 240  # systems allow 255, and a number and another suffix are added


@dataclass
class Converted:
    """What was written.

    boxes: with the ignore regions that the format can hold. lost: the number of things that the
    format cannot hold, by their kind. is_new: whether anything was written; otherwise the folder
    had all of it.
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
    # absolute, so that what is written for "." lies beside it and not in it
    with temporary_folder(folder.absolute()) as work:
        new = work / "contents"
        new.mkdir()
        result = Converted()
        writer = writer_type(new, names)
        placed: dict[str, str] = {}  # the path of each image by its place
        with name_os_errors(folder):
            for image in written_images(labels_of):
                writer.add(image)
                placed[writer.image_place(image.name, image.split)] = image.path
                result.images += 1
            writer.close()
        result.boxes = writer.boxes
        result.lost = writer.lost
        if images == NONE:
            placed = {}

        if folder.exists():
            _require_same(new, folder, placed)
            result.is_new = False
            return result
        result.copied = _place_images(placed, new, images)
        _rename(new, folder)
    return result


def written_images(labels_of: dict[str, Labels]) -> Iterator[WrittenImage]:
    """Iterate over the images of all splits, each with a name that no other one has."""
    names = ImageNames()
    for split, labels in labels_of.items():
        for index in range(len(labels)):
            path = labels.path(index)
            name = names.name(os.path.basename(path))
            width, height = labels.sizes[index].tolist()
            yield WrittenImage(path, name, (width, height), _boxes(labels, index), split)


class ImageNames:
    """Gives each image a file name that no other one has.

    Two names differ without their suffixes, and on file systems that ignore case or the kind of
    Unicode. None is hidden, has spaces at its ends, which a list of names would lose, or is too
    long for a label file beside it.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        # by wanted name, so that many equal names take no quadratic time
        self._last_number: dict[str, int] = {}

    def name(self, wanted: str) -> str:
        """Return `wanted`, made safe, or with the first number that makes it a new name.

        >>> names = ImageNames()
        >>> [names.name(wanted) for wanted in ("a.jpg", "A.png", "a.jpg", ".b .jpg")]
        ['a.jpg', 'A_2.png', 'a_3.jpg', '_b.jpg']
        """
        stem, suffix = os.path.splitext(shorten(safe_name(wanted), MAX_NAME_BYTES))
        stem = stem.strip() or "_"
        if stem.startswith("."):
            stem = f"_{stem[1:]}"

        key = _without_case(stem)
        number = self._last_number.get(key, 0) + 1
        while _without_case(_numbered(stem, number)) in self._used:
            number += 1
        self._last_number[key] = number
        name = _numbered(stem, number)
        self._used.add(_without_case(name))
        return f"{name}{suffix}"


def _numbered(stem: str, number: int) -> str:
    """Return a name with a number; the first has none."""
    return stem if number == 1 else f"{stem}_{number}"


def _without_case(stem: str) -> str:
    return unicodedata.normalize("NFC", stem).casefold()


def _boxes(labels: Labels, index: int) -> list[WrittenBox]:
    """Return the boxes of one image."""
    rows = labels.rows(index)
    boxes = []
    for row in range(rows.start, rows.stop):
        left, top, width, height = labels.boxes_xywh[row].tolist()
        box = WrittenBox(
            int(labels.classes[row]),
            (left, top, width, height),
            list(map(tuple, labels.row_points(row).tolist())),
            area=float(labels.areas[row]),
            crowd=bool(labels.crowd[row]),
        )
        boxes.append(box)
    return boxes


def _place_images(placed: dict[str, str], folder: Path, images: str) -> bool:
    """Link or copy images to their places; return whether links were asked for and not possible."""
    copied = False
    for place, path in placed.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if images == LINK:
            copied = not link_or_copy(path, target) or copied
        else:
            copy_file(path, target)
    return copied


def _rename(new: Path, folder: Path) -> None:
    """Raise ValueError if another process has written the folder meanwhile."""
    try:
        os.replace(new, folder)
    except OSError:
        if not folder.exists():
            raise
        raise ValueError(
            f"{printable(folder)} was written by another process meanwhile: choose another folder"
        ) from None


def _are_equal(first: str | Path, second: Path) -> bool:
    """Whether two files have the same bytes."""
    return os.path.samefile(first, second) or filecmp.cmp(first, second, shallow=False)


def _require_same(new: Path, folder: Path, placed: dict[str, str]) -> None:
    """Raise ValueError unless a folder has the label files of `new`, and the images.

    One that is missing is enough to know: the folder may have any number of others.
    """
    labels = {file.relative_to(new).as_posix() for file in new.rglob("*") if file.is_file()}
    expected = labels.union(placed)
    differs = sorted(place for place in expected if not (folder / place).is_file())
    if not differs:
        files = (file for file in folder.rglob("*") if file.is_file())
        present = {file.relative_to(folder).as_posix() for file in files}
        differs = sorted(present - expected)
        sources = {place: new / place for place in sorted(labels)} | placed
        for place, source in sources.items():
            if not _are_equal(source, folder / place):
                differs.append(place)
    if differs:
        raise ValueError(
            f"{printable(folder)} exists and differs in {counted(len(differs), 'file')}, such as "
            f"{printable(differs[0])}: choose a folder that does not exist"
        )
