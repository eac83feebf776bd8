"""What readers have in common that find a label file of a tool for each image of a folder."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

from data.formats.annotations import (
    AnnotatedImage,
    class_indices,
    label_rows,
    rows_in_image,
    sorted_names,
)
from data.formats.base import (
    ClassNames,
    ImageRows,
    ListedImage,
    SourceImages,
    UnreadableLabelsError,
)
from data.formats.resized import row_scaled
from data.formats.yolo_txt import label_bytes
from data.images import find_images, walk_images
from data.labels import BadRowError
from utils.printable import printable

# Images of a folder, in the order of the file system, whose label files are looked for. In a folder
# with labels for one image of 100, none of so many has one once in 500 million folders.
SAMPLED_IMAGES = 2000
SAMPLED_LABELS = 20  # label files that are looked at: one may be empty, or of something else


class FileReader(ABC):
    """Reads folders of images with a label file for each, of one annotation tool."""

    lists_images: ClassVar[bool] = False
    title: ClassVar[str]  # the tool and its format, for the log
    suffixes: ClassVar[frozenset[str]]

    @abstractmethod
    def label_path(self, image: str) -> str:
        """Return the path of an image's label file, which may not exist."""

    @abstractmethod
    def begins_with(self, start: bytes) -> bool:
        """Whether a label file of this format may begin with these bytes."""

    @abstractmethod
    def read(self, data: bytes, file: str) -> AnnotatedImage:
        """Return what a label file says. Raises ValueError with its path, or BadRowError."""

    def accepts(self, source: Path) -> bool:
        if not os.path.isdir(source):
            return False
        looked_at = 0
        for image in islice(walk_images(source), SAMPLED_IMAGES):
            start = _start(self.label_path(image))
            if start is None:
                continue
            if self.begins_with(start):
                return True
            looked_at += 1
            if looked_at == SAMPLED_LABELS:
                break
        return False

    def class_names(self, source: Path) -> ClassNames:
        """Return the classes of a folder: the names in use, sorted.

        Label files that cannot be read are passed over: the scan reports them.
        """
        annotations = []
        for path in walk_images(source):
            file = self.label_path(path)
            try:
                data = label_bytes(file)
                if data is not None:
                    annotations.append(self.read(data, file).annotations)
            except ValueError:
                continue
        return ClassNames(sorted_names(annotations))

    def images(self, source: Path, _: Sequence[str]) -> SourceImages:
        paths, problems = find_images(source, labels=self.suffixes)
        images = [ListedImage(path, self.label_path(path)) for path in paths]
        return SourceImages(images, problems)

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        file = printable(image.label_file)
        try:
            data = label_bytes(image.label_file)
            if data is None:
                return ImageRows([], [], has_labels=False)
            read = self.read(data, image.label_file)
        except BadRowError as error:
            raise UnreadableLabelsError(f"{file}: {error}") from None
        except ValueError as error:
            raise UnreadableLabelsError(str(error)) from None

        found = label_rows(read.annotations, class_indices(names), file)
        rows = [row_scaled(row, *size) for row in found.rows] if read.normalized else found.rows
        kept, outside = rows_in_image(rows, size, file)
        return found._replace(
            rows=kept,
            problems=[*read.problems, *found.problems, *outside],
            declared_size=read.declared_size,
        )


def _start(file: str) -> bytes | None:
    """Return the first bytes of a file, None if it does not exist or cannot be read."""
    if not os.path.isfile(file):  # reading a pipe may never end
        return None
    try:
        with open(file, "rb") as stream:
            return stream.read(8192)
    except OSError:
        return None
