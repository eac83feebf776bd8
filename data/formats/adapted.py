"""Readers that pass on what another reader finds: only some images, or with other classes."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.formats.base import ClassNames, ImageRows, LabelFormat, ListedImage, SourceImages


@dataclass(frozen=True)
class _Adapted:
    """Reads a source as `reader` does."""

    reader: LabelFormat

    @property
    def lists_images(self) -> bool:
        return self.reader.lists_images

    @property
    def title(self) -> str:
        return self.reader.title

    @property
    def suffixes(self) -> frozenset[str]:
        return self.reader.suffixes

    def accepts(self, source: Path) -> bool:
        return self.reader.accepts(source)

    def class_names(self, source: Path) -> ClassNames:
        return self.reader.class_names(source)

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        return self.reader.images(source, names)

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        return self.reader.rows(image, size, names)


@dataclass(frozen=True)
class SelectedImages(_Adapted):
    """Reads a source without the images that are not in `wanted` (paths)."""

    wanted: Container[str]

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        contents = self.reader.images(source, names)
        chosen = [image for image in contents.images if image.path in self.wanted]
        return contents._replace(images=chosen)


@dataclass(frozen=True)
class RenamedClasses(_Adapted):
    """Reads a source whose labels have other classes than the data set.

    label_names: of the classes of the labels, in the order of their numbers. new_index: for each,
    the class of the data set that it becomes.
    """

    label_names: Sequence[str]
    new_index: Sequence[int]

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        contents = self.reader.images(source, self.label_names)
        if contents.category_ids is None:
            return contents
        return contents._replace(category_ids=self._ids(contents.category_ids, len(names)))

    def rows(self, image: ListedImage, size: tuple[int, int], _: Sequence[str]) -> ImageRows:
        read = self.reader.rows(image, size, self.label_names)
        rows = [row._replace(class_index=self.new_index[row.class_index]) for row in read.rows]
        return read._replace(rows=rows)

    def _ids(self, old_ids: Sequence[int], num_classes: int) -> list[int] | None:
        """Return the id of each class: that of the first that becomes it; None if one has none."""
        ids: dict[int, int] = {}
        for index, old_id in zip(self.new_index, old_ids, strict=True):
            ids.setdefault(index, old_id)
        return [ids[index] for index in range(num_classes)] if len(ids) == num_classes else None
