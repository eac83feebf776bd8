"""What a reader of a label format does, and the records that it gives to data/scan.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from data.labels import LabelRow
from data.report import Problem


class UnreadableLabelsError(ValueError):
    """There are labels for an image, but they cannot be read: the image is left out. The text names their file."""


class ListedImage(NamedTuple):
    """An image of a source, before it is opened."""

    path: str
    label_file: str  # where its labels are: a file of its own, or the one that lists the image
    image_id: int = 0  # the format's own, if it has ids
    declared_size: tuple[int, int] | None = None  # (width, height) that its boxes are for, if the labels say so
    rows: Sequence[LabelRow] = ()  # if they are read together with the list of images


class SourceImages(NamedTuple):
    """The images of one source, in order, and what had to be passed over."""

    images: list[ListedImage]
    problems: list[Problem]
    category_ids: list[int] | None = None  # the format's own id of each class, None if it has no ids


class ImageRows(NamedTuple):
    """The rows of one image, in pixels, and those that had to go."""

    rows: list[LabelRow]
    problems: list[Problem]
    has_labels: bool = True  # False: there is no label file, so the image counts as background


class LabelFormat(Protocol):
    """A reader of one format. It keeps nothing between calls; `rows` is called by several threads.

    lists_images: whether a source is one file that lists its images and holds their labels. Such a file takes seconds
    to read, so that the paths in it are kept in the cache, and it is read again only when something has changed. The
    images of other sources are found by looking at their folder, each time.
    """

    lists_images: bool

    def accepts(self, source: Path) -> bool:
        """Whether `source`, an absolute path, is of this format."""

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        """The images of a source. Raises ValueError, naming it, if it cannot be used."""

    def rows(self, image: ListedImage, size: tuple[int, int], num_classes: int) -> ImageRows:
        """The rows of an image that was opened and is of `size` (width, height), classes in 0 to num_classes - 1.

        Raises UnreadableLabelsError, and ValueError if the whole data set cannot be used, as for a class out of range.
        """
