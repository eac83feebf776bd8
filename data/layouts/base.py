"""What a recognized data set is, and what flags choose about it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data.formats.base import ClassNames
from data.formats.image_finder import UNASSIGNED


@dataclass(frozen=True)
class Choices:
    """What flags choose about a data set.

    val_split: the share of images that is held out if there is no val split; 0 holds out none.
    """

    val_split: float = 0.2
    group: str = ""  # as in hold_out
    names: tuple[str, ...] = ()  # of the classes
    merge: tuple[str, ...] = ()  # OLD=NEW: classes that are renamed, or joined with others
    strict: bool = False  # refuse data in which something looks like a mistake
    weights: tuple[float, ...] = ()  # of the training images of each data set that is joined


class Layout(NamedTuple):
    """A data set as it lies on the disk."""

    title: str  # what wrote it, for the log
    path: Path  # what to give as --data to choose it
    splits: Mapping[str, tuple[Path, ...]]  # sources by split, or UNASSIGNED
    names: ClassNames | None = None  # None: as the sources name them
    is_yaml: bool = False  # whether `path` is a data YAML, which says all of this
    labels: tuple[Path, ...] = ()  # as in DataSpec, like the following
    label_names: Mapping[Path, Mapping[str, str]] = {}
    keypoints: tuple[int, int] | None = None
    weights: Mapping[Path, float] = {}

    @property
    def root(self) -> Path:
        """The folder that the names of its images are relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    def weighted(self, weight: float) -> "Layout":
        """Return the same data set with all of its training images drawn more or less often."""
        sources = (*self.splits.get("train", ()), *self.splits.get(UNASSIGNED, ()))
        weights = {source: weight * self.weights.get(source, 1.0) for source in sources}
        return self._replace(weights=weights)

    @property
    def label_sources(self) -> tuple[Path, ...]:
        """The files and folders that have its labels."""
        if self.labels:
            return self.labels
        return tuple(source for sources in self.splits.values() for source in sources)


def in_order(splits: Mapping[str, Iterable[Path]]) -> dict[str, tuple[Path, ...]]:
    """Return sources by split, in the order of the splits, each once and sorted."""
    order = ("train", "val", "test", UNASSIGNED)
    return {split: tuple(sorted(set(splits[split]))) for split in order if split in splits}
