"""What readers have in common that find a label file of a tool for each image of a folder."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
from data.formats.resized import boxes_scaled, row_scaled
from data.formats.text.encoding import EncodingError, start_in_utf_8
from data.formats.voc.folders import ANNOTATIONS, IMAGES
from data.formats.yolo_txt import is_list_of_images, label_bytes, label_path
from data.images import find_images, walk_images
from data.labels import BadRowError
from utils.printable import printable

# Images of a folder, in the order of the file system, whose label files are looked for. In a folder
# with labels for one image of 100, none of so many has one once in 500 million folders.
SAMPLED_IMAGES = 2000
SAMPLED_LABELS = 20  # label files that are looked at: one may be empty, or of something else
# of data sets that have their labels in one folder beside that of the images, but for YOLO's
OWN_FOLDERS = (
    (IMAGES, ANNOTATIONS[0], ".xml"),  # Pascal VOC
    ("images", "labelTxt", ".txt"),  # DOTA
    ("img", "ann", ".json"),  # Supervisely, whose files are called a.jpg.json
)


class FileReader(ABC):
    """Reads folders of images with a label file for each, of one annotation tool.

    Labels beside the images, or in the folder of the tool's own layout, come first. Those in other
    folders beside that of the images are read if no image has labels of any format in such a place.
    """

    lists_images: ClassVar[bool] = False
    title: ClassVar[str]  # the tool and its format, for the log
    suffixes: ClassVar[frozenset[str]]

    @abstractmethod
    def label_path(self, image: str) -> str:
        """Return the path of an image's label file, which may not exist.

        It is beside the image, or in the folder of the tool's own layout.
        """

    def path_in_neighbor(self, image: str) -> str:
        """Return the path of an image's label file in another folder beside that of the image.

        If there is none, return `label_path`.
        """
        return self.label_path(image)

    @abstractmethod
    def begins_with(self, start: bytes) -> bool:
        """Whether a label file of this format may begin with these bytes, in UTF-8."""

    @abstractmethod
    def read(self, data: bytes, file: str) -> AnnotatedImage:
        """Return what a label file says. Raises ValueError with its path, or BadRowError."""

    def accepts(self, source: Path) -> bool:
        if not os.path.isdir(source):
            return False
        if self._finds_labels(source, self.label_path):
            return True
        return self._finds_labels(source, self.path_in_neighbor) and not has_own_labels(source)

    def class_names(self, source: Path) -> ClassNames:
        """Return the classes of a folder: the names in use, sorted.

        Label files that cannot be read are passed over: the scan reports them. Raises EncodingError
        for one in another encoding: then names of others may be wrong, too.
        """
        annotations = []
        path_of = self._path_of_labels(source)
        for path in walk_images(source):
            file = path_of(path)
            try:
                data = label_bytes(file)
                if data is not None:
                    annotations.append(self.read(data, file).annotations)
            except EncodingError:
                raise
            except ValueError:
                continue
        return ClassNames(sorted_names(annotations))

    def images(self, source: Path, _: Sequence[str]) -> SourceImages:
        paths, problems = find_images(source, labels=self.suffixes)
        path_of = self._path_of_labels(source)
        images = [ListedImage(path, path_of(path)) for path in paths]
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
        rows, boxes = found.rows, found.boxes
        if read.normalized:
            rows = [row_scaled(row, *size) for row in rows]
            boxes = boxes_scaled(boxes, size)
        kept, outside = rows_in_image(rows, size, file)
        return found._replace(
            rows=kept,
            boxes=boxes,
            problems=[*read.problems, *found.problems, *outside],
            declared_size=read.declared_size,
        )

    def _path_of_labels(self, source: Path) -> Callable[[str], str]:
        """Return what finds the label file of an image of a source."""
        if self._finds_labels(source, self.label_path):
            return self.label_path
        return self.path_in_neighbor

    def _finds_labels(self, source: Path, path_of: Callable[[str], str]) -> bool:
        """Whether a label file of this format is where `path_of` says, for one of the images."""
        looked_at = 0
        for image in islice(walk_images(source), SAMPLED_IMAGES):
            start = _start(path_of(image))
            if start is None:
                continue
            if self.begins_with(start_in_utf_8(start)):
                return True
            looked_at += 1
            if looked_at == SAMPLED_LABELS:
                break
        return False


def has_own_labels(source: Path) -> bool:
    """Whether an image of a folder has a label file of any format beside it, or in its own place.

    That is the folder which the layout of a format has for the labels, as YOLO's `labels` beside
    `images`.
    """
    for image in islice(walk_images(source), SAMPLED_IMAGES):
        if any(map(_is_label_file, own_label_files(image))):
            return True
    return False


def own_label_files(image: str) -> list[str]:
    """Return the places of an image's label file, in any format: beside it, and in its own place.

    >>> own_label_files("/a/img/1.jpg")
    ['/a/img/1.txt', '/a/img/1.xml', '/a/img/1.json', '/a/ann/1.jpg.json']
    """
    stem = os.path.splitext(image)[0]
    beside = [f"{stem}{suffix}" for suffix in (".txt", ".xml", ".json")]
    files = [*beside, label_path(image)]
    for images, labels, suffix in OWN_FOLDERS:
        before, separator, after = image.rpartition(f"{os.sep}{images}{os.sep}")
        if separator:
            name = after if suffix == ".json" else os.path.splitext(after)[0]
            files.append(os.path.join(before, labels, f"{name}{suffix}"))
    return list(dict.fromkeys(files))


def _is_label_file(file: str) -> bool:
    return os.path.isfile(file) and not is_list_of_images(Path(file))


def _start(file: str) -> bytes | None:
    """Return the first bytes of a file, None if it does not exist or cannot be read."""
    if not os.path.isfile(file):  # reading a pipe may never end
        return None
    try:
        with open(file, "rb") as stream:
            return stream.read(8192)
    except OSError:
        return None
