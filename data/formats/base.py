"""The interface of label format readers, and the records that they return to data/scan.py."""

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from data.labels import LabelRow
from data.report import Problem
from data.sanity.box_units import Corners
from utils.printable import excerpt

SHOWN_NAMES = 300  # characters


class UnreadableLabelsError(ValueError):
    """An image has labels that cannot be read, so it is left out. The message names the file."""


class ListedImage(NamedTuple):
    """An image of a source, before it is opened."""

    path: str
    label_file: str  # its own label file, or the file that lists the image
    image_id: int = 0  # from the file, if the format has ids
    # (width, height) in the list, if the format has it
    declared_size: tuple[int, int] | None = None
    # if the format reads them together with the list of images
    rows: Sequence[LabelRow] = ()
    normalized: bool = False  # whether these rows are in fractions of the image, not in pixels
    # the number of rows that were no upright boxes, by their shape, such as "polygon"
    converted: Mapping[str, int] = {}
    # of YOLO's rows: those of so many values are a box and values that are left out; 0: none are
    box_row_length: int = 0
    dropped_rows: int = 0  # unusable rows of the image that were found then
    problems: Sequence[Problem] = ()  # that were found then
    split: str = ""  # that the list puts it into, as the tool calls it
    # of these rows, also of those that end before they begin, and were dropped, in the same unit
    boxes: Sequence[Corners] = []


class SourceImages(NamedTuple):
    """The images of one source, in order, and the problems, such as entries that were skipped."""

    images: list[ListedImage]
    problems: list[Problem]
    # the id of each class in the file, None if the format has no ids
    category_ids: list[int] | None = None
    long_rows: str = ""  # of YOLO's label files, as `long_rows` returns it
    begins_at_1: bool = False  # whether class numbers of rows seem to be from 1 to that of names


class ImageRows(NamedTuple):
    """The rows of one image, in pixels, and the problems, such as rows that were dropped."""

    rows: list[LabelRow]
    problems: list[Problem]
    has_labels: bool = True  # False: there is no label file, so the image counts as background
    # (width, height) in the image's label file, if the format has it
    declared_size: tuple[int, int] | None = None
    # the number of rows that were no upright boxes, by their shape, such as "polygon"
    converted: Mapping[str, int] = {}
    # as they were read, in pixels, before any was clipped or dropped (data/sanity/box_units.py);
    # none are left unchecked
    boxes: Sequence[Corners] = []


class ClassNames(NamedTuple):
    """The classes of a source, in order.

    origin: the path of the file that lists them, "" if they are the names in use, sorted.
    whole: that list with names that are classes only if another source of the data set uses them;
    () if there are no such ones.
    """

    names: tuple[str, ...]
    origin: str = ""
    whole: tuple[str, ...] = ()

    def with_names_in_use(self, used: Container[str]) -> "ClassNames":
        """Return the classes with those of the whole list that are used.

        >>> ClassNames(("cat",), "a.json", ("animal", "cat")).with_names_in_use({"animal", "cat"})
        ClassNames(names=('animal', 'cat'), origin='a.json', whole=())
        """
        names = tuple(name for name in self.whole if name in used)
        return ClassNames(names or self.names, self.origin)


def shown_names(names: Iterable[str]) -> str:
    """Return class names for a message, cut after SHOWN_NAMES characters."""
    return excerpt(", ".join(names), SHOWN_NAMES)


class LabelFormat(Protocol):
    """A reader of one format.

    It has no state between calls; several threads call `rows` at the same time.

    lists_images: whether a source is one file that lists its images and contains their labels. Such
    a file takes seconds to read, so the cache stores the paths in it, and it is read again only
    after a change. The images of other sources are found by listing their folder on every run.
    title: of the format, for the log.
    suffixes: of its label files, and of its lists of images, in lower case; downloads keep no other
    files than these and images.
    """

    @property
    def lists_images(self) -> bool: ...

    @property
    def title(self) -> str: ...

    @property
    def suffixes(self) -> frozenset[str]: ...

    def accepts(self, source: Path) -> bool:
        """Whether `source`, an absolute path, has this format."""

    def class_names(self, source: Path) -> ClassNames:
        """Return the classes of a source, for a data set without a list of names.

        Raises ValueError with its path if it cannot be used.
        """

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        """Return the images of a source. Raises ValueError with its path if it cannot be used."""

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        """Return the rows of an image of `size` (width, height); classes count as in `names`.

        Raises UnreadableLabelsError if the labels cannot be read, and ValueError if the whole data
        set cannot be used, for example because a class is not in `names`.
        """
