"""Readers that pass on what another reader finds: only some images, or with other classes."""

from collections.abc import Container, Mapping, Sequence
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

    new_name: for each class of the labels, in the order of their numbers, the one that it becomes.
    """

    new_name: Mapping[str, str]

    def images(self, source: Path, names: Sequence[str]) -> SourceImages:
        contents = self.reader.images(source, list(self.new_name))
        if contents.category_ids is None:
            return contents
        return contents._replace(category_ids=self._ids(contents.category_ids, names))

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        read = self.reader.rows(image, size, list(self.new_name))
        new_index = [names.index(name) for name in self.new_name.values()]
        rows = [row._replace(class_index=new_index[row.class_index]) for row in read.rows]
        return read._replace(rows=rows)

    def _ids(self, old_ids: Sequence[int], names: Sequence[str]) -> list[int] | None:
        """Return the id of each class: that of the first that becomes it; None if one has none."""
        ids: dict[str, int] = {}
        for name, old_id in zip(self.new_name.values(), old_ids, strict=True):
            ids.setdefault(name, old_id)
        return [ids[name] for name in names] if ids.keys() >= set(names) else None
