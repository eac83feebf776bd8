"""The interface of label format readers, and the records that they return to data/scan.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from data.labels import LabelRow
from data.report import Problem


class UnreadableLabelsError(ValueError):
    """An image has labels that cannot be read, so it is left out. The message names the file."""


class ListedImage(NamedTuple):
    """An image of a source, before it is opened."""

    path: str
    label_file: str  # its own label file, or the file that lists the image
    image_id: int = 0  # from the file, if the format has ids
    # (width, height) in the list, if the format has it
    declared_size: tuple[int, int] | None = None
    rows: Sequence[LabelRow] = ()  # if the format reads them together with the list of images
    dropped_rows: int = 0  # unusable rows of the image that were found and reported then


class SourceImages(NamedTuple):
    """The images of one source, in order, and the problems, such as entries that were skipped."""

    images: list[ListedImage]
    problems: list[Problem]
    # the id of each class in the file, None if the format has no ids
    category_ids: list[int] | None = None


class ImageRows(NamedTuple):
    """The rows of one image, in pixels, and the problems, such as rows that were dropped."""

    rows: list[LabelRow]
    problems: list[Problem]
    has_labels: bool = True  # False: there is no label file, so the image counts as background
    # (width, height) in the image's label file, if the format has it
    declared_size: tuple[int, int] | None = None


class LabelFormat(Protocol):
    """A reader of one format.

    It has no state between calls; several threads call `rows` at the same time.

    lists_images: whether a source is one file that lists its images and contains their labels. Such
    a file takes seconds to read, so the cache stores the paths in it, and it is read again only
    after a change. The images of other sources are found by listing their folder on every run.
    suffixes: of its label files, and of its lists of images, in lower case; downloads keep no other
    files than these and images.
    """

    lists_images: bool
    suffixes: frozenset[str]

    def accepts(self, source: Path) -> bool:
        """Whether `source`, an absolute path, has this format."""

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        """Return the images of a source. Raises ValueError with its path if it cannot be used."""

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        """Return the rows of an image of `size` (width, height); classes count as in `names`.

        Raises UnreadableLabelsError if the labels cannot be read, and ValueError if the whole data
        set cannot be used, for example because a class is not in `names`.
        """
