"""Read all splits of a data set, and look up the file and line of a box."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from data.dataset_yaml import DataSpec
from data.formats.annotations import place
from data.formats.base import LabelFormat, ListedImage
from data.formats.coco_json import CocoJson
from data.labels import Labels
from data.report import Report
from data.scan import list_sources, readers_of, rows_as_declared, with_keypoints
from data.splits import Dataset
from utils.log import Say, say_nothing
from utils.printable import counted, printable


@dataclass(frozen=True)
class SourceEntry:
    """An image as its source lists it."""

    image: ListedImage
    reader: LabelFormat
    size: tuple[int, int]  # width and height
    names: Sequence[str]  # of the classes

    @property
    def has_own_file(self) -> bool:
        """Whether the label file is that of this image only."""
        return not self.reader.lists_images

    def place_of(self, row: int) -> str:
        """Return file and line of a row, counted from 0 among the usable ones, ready to print."""
        file = printable(self.image.label_file)
        numbers = self._numbers
        if not 0 <= row < len(numbers):
            return file
        number = numbers[row]
        if isinstance(number, int) and self.reader.title == CocoJson.title:
            return f"{file} annotation {number}"
        return f"{file} {place(number)}"

    @cached_property
    def _numbers(self) -> list[int | str]:
        """The numbers of the usable rows; none if the file was changed meanwhile.

        They are kept: a file of thousands of rows may have a thousand places.
        """
        try:
            read, _ = rows_as_declared(self.image, self.reader, self.size, self.names)
        except ValueError:
            return []
        return [row.number for row in read.rows]


@dataclass
class Split:
    """A split that was read."""

    name: str
    sources: tuple[Path, ...]
    labels: Labels
    report: Report
    _listed: dict[str, SourceEntry] = field(default_factory=dict, repr=False)

    def listed(self, spec: DataSpec) -> dict[str, SourceEntry]:
        """Return the images of the split as their sources list them, by path; kept once read."""
        if not self._listed:
            self._listed = _list_again(self, spec)
        return self._listed


@dataclass
class Examined:
    """A data set whose splits were read: what all checks look at."""

    spec: DataSpec
    splits: list[Split]
    names: list[str]
    image_size: int

    def paths(self) -> list[str]:
        """Return the paths of all images, split by split."""
        return [split.labels.path(i) for split in self.splits for i in range(len(split.labels))]

    def split_numbers(self) -> list[int]:
        """Return the number of the split of each image of `paths`."""
        numbers = []
        for number, split in enumerate(self.splits):
            numbers += [number] * len(split.labels)
        return numbers

    def place_of(self, split: Split, image: int, row: int) -> str:
        """Return file and line of a box, ready to print.

        Args:
            split: one of `splits`.
            image: its number in the split.
            row: the number of the box among those of the image.
        """
        path = split.labels.path(image)
        listed = split.listed(self.spec).get(path)
        return printable(path) if listed is None else listed.place_of(row)


def read_data_set(dataset: Dataset, image_size: int, say: Say = say_nothing) -> Examined:
    """Return all splits of a data set that is open.

    image_size: long side of the images in training, in pixels. say: receives a line for each split.

    Raises ValueError as `Dataset.read` does.
    """
    splits = []
    for name in dataset.spec.splits:
        labels = dataset.read(name, require_labels=False).whole
        report = dataset.reports[name]
        say(f"{name}: {counted(len(labels), 'image')}, {counted(report.instances, 'box')}")
        splits.append(Split(name, dataset.spec.sources(name), labels, report))
    return Examined(dataset.spec, splits, list(dataset.names), image_size)


def _list_again(split: Split, spec: DataSpec) -> dict[str, SourceEntry]:
    """Return the images of a split as its sources list them, by path.

    `Labels` has no lines and no ids, which only the few places that are shown need.
    """
    labels = split.labels
    size_of = {labels.path(index): labels.sizes[index].tolist() for index in range(len(labels))}
    readers, *_ = readers_of(split.sources, spec.labels, spec.label_names, spec.names)

    found: dict[str, SourceEntry] = {}
    for lists_images in (False, True):
        for source in list_sources(readers, spec.names, lists_images=lists_images):
            if not lists_images:
                source = with_keypoints(source, spec.keypoints)
            for image in source.contents.images:
                if image.path in size_of and image.path not in found:
                    width, height = size_of[image.path]
                    found[image.path] = SourceEntry(
                        image, source.reader, (width, height), spec.names
                    )
    return found
