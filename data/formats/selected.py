"""A reader that passes on only the images that a list names."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.formats.base import ClassNames, ImageRows, LabelFormat, ListedImage, SourceImages


@dataclass(frozen=True)
class SelectedImages:
    """Reads a source as `reader` does, without the images that are not in `wanted` (paths)."""

    reader: LabelFormat
    wanted: Container[str]

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
        contents = self.reader.images(source, names)
        chosen = [image for image in contents.images if image.path in self.wanted]
        return contents._replace(images=chosen)

    def rows(self, image: ListedImage, size: tuple[int, int], names: Sequence[str]) -> ImageRows:
        return self.reader.rows(image, size, names)
