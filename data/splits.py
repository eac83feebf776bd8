"""Open a data set by its name, and read the labels of its splits."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.dataset_yaml import DataSpec, find_yaml, read_data_yaml
from data.fetching import fetch_data, require_finished
from data.labels import Labels
from data.report import Report
from data.scan import EmptySplitError, scan
from data.shapes.generate import generate
from data.tiles.labels import tile_labels
from utils.distributed.world import World
from utils.files.folders import cache_folder
from utils.images.tiles import DEFAULT_OVERLAP, Tiling, open_tiling
from utils.log import Say, say_nothing
from utils.printable import counted, printable

FOLDER = Path(__file__).parent


def find_data(name: str) -> Path:
    """Return the YAML of a data set, given its path or its name in data/.

    Raises ValueError if there is none.
    """
    return find_yaml(name, FOLDER, "data set")


def find_hyp(name: str) -> Path:
    """Return a hyper-parameter YAML, given its path or its name in data/hyps/.

    Raises ValueError if there is none.
    """
    return find_yaml(name, FOLDER / "hyps", "hyper-parameters")


def open_data(name: str, *, download: bool = False, splits: Sequence[str] = ()) -> DataSpec:
    """Open the data set of a YAML that `find_data` finds.

    The generated data set is drawn if it does not exist.

    download: download missing data from the URLs in the YAML. Nothing else may use the network.
    splits: the splits that will be read.

    Raises ValueError if one of them is not in the YAML or on the disk, before any is scanned.
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
    """A data set on the disk, and the labels of the splits that were read.

    They are the same in all processes.
    """

    spec: DataSpec
    world: World
    single_class: bool
    cache_dir: str
    tiling: Tiling | None = None
    labels: dict[str, Labels] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # of the labels

    @property
    def file(self) -> Path:
        """The path of the data YAML."""
        return self.spec.file

    @property
    def unit(self) -> str:
        """What a sample is: "image" or "tile"."""
        return "tile" if self.tiling else "image"

    @property
    def names(self) -> list[str]:
        """The class names; a single name if all classes are treated as one."""
        return class_names(self.spec.names, single=self.single_class)

    def read(self, split: str, say: Say = say_nothing) -> Labels:
        """Return the labels of a split, or of the tiles of its images; summarize them to `say`.

        Raises ValueError as `scan` does, and if the processes read different labels.
        """
        with self.world.local_main_first():  # the others read its result from the cache
            labels, report = read_split(
                self.spec,
                split,
                single=self.single_class,
                cache_dir=self.cache_dir,
                progress=self.world.is_main,
            )
        say(f"{split}: {report.summary()}")

        # What other splits have reported is not said again.
        said: set[str] = set()
        for other in self.reports.values():
            said.update(other.run_folders)
        for sentence in report.run_folders:
            if sentence not in said:
                say(sentence)

        problem = report.first_problem()
        if problem:
            say(f"{split}: the first problem is {problem}")

        self.reports[split] = report
        self.digests[split] = labels.digest()
        self.world.require_same(f"{self.file}, {split}", self.digests[split])

        self.labels[split] = labels
        if self.tiling:
            self.labels[split] = tile_labels(labels, self.tiling)
            tiles = counted(len(self.labels[split]), "tile")
            of_size = str(self.tiling).removeprefix("tiles")
            say(f"{split}: {counted(len(labels), 'image')} in {tiles}{of_size}")
        return self.labels[split]


def open_dataset(
    name: str,
    splits: Sequence[str],
    world: World,
    say: Say = say_nothing,
    *,
    download: bool,
    single_class: bool,
    cache_dir: str,
    tile: int = 0,
    tile_overlap: float = DEFAULT_OVERLAP,
    tile_whole: bool = False,
) -> Dataset:
    """Open the data set of a YAML, given its path or its name in data/.

    One process of each machine downloads it.

    Args:
        name: path of the YAML, or its name in data/.
        splits: the splits that will be read.
        world: this process and the others.
        say: receives notes, such as paths that were corrected.
        download: download missing data from the URLs in the YAML.
        single_class: treat all classes as one.
        cache_dir: folder of the caches, "" for the user's cache folder.
        tile: cut images into tiles of this side, see `open_tiling`; 0 for whole images.
        tile_overlap: as in `open_tiling`.
        tile_whole: as in `open_tiling`.

    Raises ValueError as `open_tiling` and `open_data` do.
    """
    with world.local_main_first():
        spec = open_data(name, download=download, splits=splits)
    for note in spec.notes:
        say(note)
    tiling = open_tiling(tile, tile_overlap, tile_whole)
    return Dataset(spec, world, single_class, cache_dir, tiling)


def read_split(
    spec: DataSpec, split: str, *, single: bool, cache_dir: str, progress: bool
) -> tuple[Labels, Report]:
    """Return the labels of a split and the report of the scan.

    Args:
        spec: the data set.
        split: its name in the YAML.
        single: treat all classes as one.
        cache_dir: folder of the caches, "" for the user's cache folder.
        progress: show a bar on a terminal.

    Raises ValueError as `scan` does, with the split if it is empty.
    """
    cache = cache_folder(cache_dir)
    threads = os.cpu_count() or 1
    try:
        labels, report = scan(
            spec.sources(split), spec.names, cache_dir=cache, threads=threads, progress=progress
        )
    except EmptySplitError as error:
        raise ValueError(f"'{split}' of {printable(spec.file)}: {error}") from None
    return labels.with_single_class() if single else labels, report


def class_names(names: Sequence[str], *, single: bool) -> list[str]:
    """Return the class names, or ["object"] in place of several ones if `single`.

    >>> class_names(["cat", "dog"], single=True), class_names(["cat"], single=True)
    (['object'], ['cat'])
    """
    return ["object"] if single and len(names) > 1 else list(names)
