"""A data set by its name, and the labels of its splits."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.dataset_yaml import DataSpec, find_yaml, read_data_yaml
from data.fetching import fetch_data, require_finished
from data.labels import Labels
from data.report import Report
from data.scan import scan
from data.shapes.generate import generate
from utils.distributed.world import World
from utils.files.folders import cache_folder

FOLDER = Path(__file__).parent


def find_data(name: str) -> Path:
    """A data set's YAML, given by its path or by its name in data/."""
    return find_yaml(name, FOLDER, "data set")


def find_hyp(name: str) -> Path:
    """A YAML of hyper-parameters, given by its path or by its name in data/hyps/."""
    return find_yaml(name, FOLDER / "hyps", "hyper-parameters")


def open_data(name: str, *, download: bool = False, splits: Sequence[str] = ()) -> DataSpec:
    """The data set of a YAML that `find_data` finds; the generated one is drawn if it does not exist.

    download: fetch what is not there from where the YAML says. Nothing else may use the network. splits: those that
    will be read. Raises ValueError if one of them is not in the YAML or on the disk, before any is scanned.
    """
    file = find_data(name)
    spec = read_data_yaml(file)
    if file.samefile(FOLDER / "shapes.yaml"):
        generate(spec.root)
    if download:
        fetch_data(spec)
    require_finished(spec)
    for split in splits:
        spec.sources(split)
    return spec


@dataclass
class Dataset:
    """A data set that is there, and the labels of the splits that were read. All processes hold the same."""

    spec: DataSpec
    world: World
    single_class: bool
    cache_dir: str
    labels: dict[str, Labels] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # of the labels

    @property
    def file(self) -> Path:
        """The YAML."""
        return self.spec.file

    @property
    def names(self) -> list[str]:
        """Of the classes; one for all if they are treated as one."""
        return class_names(self.spec.names, single=self.single_class)

    def read(self, split: str, say: Callable[[str], None] = lambda _: None) -> Labels:
        """The labels of a split; says what was found. Raises ValueError if processes see different ones."""
        with self.world.local_main_first():  # the others find in the cache what it has read
            labels, report = read_split(
                self.spec,
                split,
                single=self.single_class,
                cache_dir=self.cache_dir,
                progress=self.world.is_main,
            )
        say(f"{split}: {report.summary()}")
        self.labels[split], self.reports[split], self.digests[split] = labels, report, labels.digest()
        self.world.require_same(f"{self.file}, {split}", self.digests[split])
        return labels


def open_dataset(
    name: str,
    splits: Sequence[str],
    world: World,
    say: Callable[[str], None] = lambda _: None,
    *,
    download: bool,
    single_class: bool,
    cache_dir: str,
) -> Dataset:
    """The data set of a YAML, given by its path or its name in data/; of a machine's processes one fetches it.

    splits: those that will be read. say: is told what was taken for what. Raises ValueError as `open_data` does.
    """
    with world.local_main_first():
        spec = open_data(name, download=download, splits=splits)
    for note in spec.notes:
        say(note)
    return Dataset(spec, world, single_class, cache_dir)


def read_split(spec: DataSpec, split: str, *, single: bool, cache_dir: str, progress: bool) -> tuple[Labels, Report]:
    """The labels of a split, all of one class if `single`, and the report of the scan."""
    cache = cache_folder(cache_dir)
    threads = os.cpu_count() or 1
    labels, report = scan(spec.sources(split), spec.names, cache_dir=cache, threads=threads, progress=progress)
    return labels.with_single_class() if single else labels, report


def class_names(names: Sequence[str], *, single: bool) -> list[str]:
    """The names, or one for all.

    >>> class_names(["cat", "dog"], single=True), class_names(["cat"], single=True)
    (['object'], ['cat'])
    """
    return ["object"] if single and len(names) > 1 else list(names)
