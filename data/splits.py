"""Open a data set by its name, and read the labels of its splits."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.balance.draws import Draws
from data.balance.mixing import describe_weights, weights_of_images
from data.balance.repeat_factors import class_factors, describe_factors, image_factors
from data.dataset_yaml import DataSpec
from data.formats.base import shown_names
from data.formats.yolo_values import KEYPOINT_ROWS, POLYGON_ROWS
from data.labels import Labels
from data.layouts import Choices, open_data
from data.layouts.written import copy_to
from data.report import Report, counts_of
from data.sanity.alike_names import alike_names_note
from data.sanity.shared_images import ImageFile, files_of, shared_images
from data.scan import EmptySplitError, rows_differ, scan
from data.tiles.labels import TiledLabels, tile_labels
from utils.command_line.class_choice import ambiguous_classes_note, class_ids
from utils.distributed.world import World
from utils.files.folders import RUN_DATA, cache_folder, make_folder
from utils.images.tiles import DEFAULT_OVERLAP, Tiling, open_tiling
from utils.log import Say, say_nothing
from utils.printable import counted, printable
from utils.threads import usable_cores

SHOWN_CLASSES = 5  # of those without a box in the val split


class RequiredClasses(NamedTuple):
    """The classes that a model must have to be evaluated on data.

    names: in the order of its outputs; None: any. class_ids: of those that the data have; None:
    all.
    """

    names: Sequence[str] | None
    class_ids: Sequence[int] | None = None


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
    strict: bool = False  # refuse data in which something looks like a mistake
    labels: dict[str, Labels] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)  # of the labels
    chosen: tuple[int, ...] | None = None  # the classes of the YAML that are used; None: all
    prepended: tuple[str, ...] = ()  # classes in front of them, of which the data have no labels
    _draws: Draws | None = field(default=None, init=False)
    _files: dict[str, list[ImageFile]] = field(default_factory=dict, init=False)

    @property
    def file(self) -> Path:
        """The path of the data YAML."""
        return self.spec.file

    @property
    def is_written(self) -> bool:
        """Whether no user has written the YAML, but `open_dataset`."""
        return self.spec.is_written

    def save(self, folder: Path) -> None:
        """Keep a copy of the YAML in a run folder, if no user has written it, and name that one.

        One process writes it; all call this.
        """
        if not self.is_written:
            return
        if self.world.is_main:
            copy_to(self.spec, folder)
        self.spec = replace(self.spec, file=Path(os.path.abspath(folder / RUN_DATA)))

    @property
    def unit(self) -> str:
        """What a sample is: "image" or "tile"."""
        return "tile" if self.tiling else "image"

    @property
    def names(self) -> list[str]:
        """The class names; a single name if all classes are treated as one."""
        return class_names(self.chosen_names, single=self.single_class)

    @property
    def chosen_names(self) -> list[str]:
        """The names of the classes that are used, before they are treated as one."""
        return [*self.prepended, *self.own_names]

    @property
    def unlabeled(self) -> int:
        """How many of the first classes in `names` have no labels."""
        return 0 if self.single_class else len(self.prepended)

    @property
    def own_names(self) -> list[str]:
        """The names of the classes of the YAML that are used."""
        if self.chosen is None:
            return list(self.spec.names)
        return [self.spec.names[number] for number in self.chosen]

    @property
    def chosen_words(self) -> list[str]:
        """What `choose_classes` takes to choose the same again, [] if all are used."""
        return [] if self.chosen is None else self.own_names

    def required_classes(self, model_names: Sequence[str], *, merged: bool) -> RequiredClasses:
        """Return the classes that a model must have, and which of them the data have.

        model_names: of the model's classes. merged: it was trained with all of them as one.
        """
        chosen = self.chosen_names
        if self.single_class:
            # Where all classes of a model are merged, they may have any names.
            has_any_names = self.chosen is None or merged
            return RequiredClasses(None if has_any_names else chosen)

        all_names = self.spec.names
        if sorted(model_names) == sorted(all_names):
            return RequiredClasses(all_names, self.chosen)

        if set(chosen) < set(model_names):
            # The data have some classes of the model, such as those from before --add-classes.
            others = [name for name in model_names if name not in chosen]
            return RequiredClasses([*chosen, *others], range(len(chosen)))
        return RequiredClasses(chosen)

    def choose_classes(
        self,
        classes: Sequence[int | str],
        origin: str = "--classes",
        say: Say = say_nothing,
    ) -> None:
        """Use only these classes of the data, given by name or number, in the order of the data.

        Call it before `read`.

        Args:
            classes: as in `class_ids`; none for all.
            origin: what says so, in errors.
            say: receives a line if digits are the name of a class and the number of another.

        Raises ValueError if there is no such class.
        """
        if not classes:
            return
        try:
            found = class_ids(classes, self.spec.names, self.spec.title)
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from None
        if note := ambiguous_classes_note(classes, self.spec.names):
            say(note)
        self.chosen = tuple(sorted(set(found)))

    def prepend_classes(
        self, names: Sequence[str], origin: str = "--add-classes", say: Say = say_nothing
    ) -> None:
        """Have other classes in front of those of the data, whose labels the data do not have.

        Call it after `choose_classes`, and before `read`. names: none changes nothing. origin: what
        says so, in errors. say: receives a line if one is hardly another class than one of the
        data. Raises ValueError if the data have one of them.
        """
        if not names:
            return
        common = [name for name in self.own_names if name in names]
        if common:
            known = shown_names(common)
            raise ValueError(
                f"{origin}: {self.spec.title} has {known}, which the model has already; name new "
                "classes only, or choose them with --classes"
            )
        self.prepended = tuple(names)
        if note := alike_names_note(self.chosen_names):
            say(note)

    def read(
        self,
        split: str,
        say: Say = say_nothing,
        *,
        require_labels: bool = True,
        leave_out_emptied: bool = False,
    ) -> Labels:
        """Return the labels of a split, or of the tiles of its images; summarize them to `say`.

        Args:
            split: its name in the YAML.
            say: receives log lines.
            require_labels: as in `scan`.
            leave_out_emptied: leave out the images that have boxes, but none of a chosen class.

        Raises ValueError as `scan` does, if there is no box of a chosen class, if the processes
        read different labels, and if `strict` is set and something in the data looks like a
        mistake.
        """
        with self.world.local_main_first():  # the others read its result from the cache
            labels, report = read_split(
                self.spec,
                split,
                cache_dir=self.cache_dir,
                progress=self.world.is_main,
                require_labels=require_labels,
            )
        self._require_same_rows(split, report)
        self._say_report(split, report, say)
        if self.chosen is not None:
            labels = self._with_chosen(split, labels, say, leave_out_emptied=leave_out_emptied)
            report = replace(report, **counts_of(labels, self.own_names))
        if self.prepended:
            labels = labels.with_classes_before(len(self.prepended))
        if self.single_class:
            labels = labels.with_single_class()
        self._say_shared_images(split, labels, say)

        if split == "val" and "train" in self.reports:
            _say_absent_classes(self.reports["train"], report, say)
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

    def _with_chosen(
        self, split: str, labels: Labels, say: Say, *, leave_out_emptied: bool
    ) -> Labels:
        """Return the labels with the chosen classes only.

        Raises ValueError if none is left. The arguments are those of `read`.
        """
        names = self.own_names
        restricted = labels.with_classes(self.chosen or ())
        flag = f"--classes {printable(', '.join(names))}"
        if restricted.crowd.all():  # true also for no rows at all
            raise ValueError(f"'{split}' of {self.spec.title}: no box of these classes ({flag})")

        had_rows = np.diff(labels.offsets) > 0
        has_rows = np.diff(restricted.offsets) > 0
        emptied = had_rows & ~has_rows
        boxes = f"{len(restricted.classes):,} of {counted(len(labels.classes), 'box')}"
        what = "left out" if leave_out_emptied else "kept as background"
        count = int(emptied.sum())
        say(f"{split}: {flag}: {boxes}; images with boxes of other classes only: {count:,}, {what}")
        return restricted.subset(np.flatnonzero(~emptied)) if leave_out_emptied else restricted

    @property
    def draws(self) -> Draws:
        """How often an epoch draws each training sample: once, unless `balance` has chosen."""
        if self._draws is None:
            self._draws = Draws.once(len(self.labels["train"]))
        return self._draws

    def balance(self, threshold: float, say: Say = say_nothing) -> None:
        """Choose how often an epoch draws each training sample; log what is repeated.

        It is the weight of its data set times its repeat factor. Call it after `read`.
        threshold: of repeat factors (data/balance/repeat_factors.py), 0 for none.

        Raises ValueError if the processes have different ones, or an epoch would have no image.
        """
        labels = self.labels["train"]
        factors = np.ones(len(labels))
        if self.spec.weights:
            weights = weights_of_images(self.spec, labels.whole)
            say(describe_weights(weights))
            factors *= weights[labels.owners] if isinstance(labels, TiledLabels) else weights
        if threshold:
            of_class = class_factors(labels, len(self.names), threshold)
            say(describe_factors(threshold, of_class, labels, self.names, self.unit))
            factors *= image_factors(labels, of_class)

        draws = Draws(factors)
        self.world.require_same("how often images are drawn", draws.digest())
        if draws.mean_per_pass != len(labels):
            samples = counted(draws.least_per_pass, self.unit)
            say(f"an epoch draws {samples}, not {len(labels):,}")
        self._draws = draws

    def _require_same_rows(self, split: str, report: Report) -> None:
        """Raise ValueError if rows are keypoints in one split, and polygons in another."""
        split_of = {other.long_rows: name for name, other in self.reports.items()}
        split_of[report.long_rows] = split
        split_of.pop("", None)
        if len(split_of) > 1:
            splits = [f"'{split_of[kind]}'" for kind in (KEYPOINT_ROWS, POLYGON_ROWS)]
            raise ValueError(f"{self.spec.title}: {rows_differ(*splits)}")

    def _say_report(self, split: str, report: Report, say: Say) -> None:
        """Summarize what was found, and what looks like a mistake, which `strict` refuses."""
        say(f"{split}: {report.summary()}")

        # What other splits have reported is not said again.
        said: set[str] = set()
        for other in self.reports.values():
            said.update([*other.sentences, *other.about_label_files()])
        for sentence in (*report.sentences, *report.source_notes):
            if sentence not in said:
                say(self.spec.as_given(sentence))

        warnings = ". ".join(warning for warning in report.warnings() if warning not in said)
        if warnings and self.strict:
            text = f"--strict: '{split}' of {self.spec.title}: {warnings}"
            raise ValueError(self.spec.as_given(text))
        if warnings:
            say(self.spec.as_given(f"{split}: {warnings}."))
        problem = report.first_problem()
        if problem:
            say(self.spec.as_given(f"{split}: the first problem is {problem}"))

    def _say_shared_images(self, split: str, labels: Labels, say: Say) -> None:
        """Say how many images are in another split, too, also by a link or as a copy.

        Rank 0 does: nothing depends on it.
        """
        if not self.world.is_main:
            return
        files = self._files[split] = files_of(labels)
        for other, other_files in self._files.items():
            shared = shared_images(files, other_files)
            if other != split and shared.images:
                images = f"{shared.images:,} of {counted(len(labels), 'image')} also in {other}"
                copies = f", {shared.copies:,} as copies" if shared.copies else ""
                say(f"{split}: {images}{copies}: new images will give worse metrics")


def _say_absent_classes(train: Report, val: Report, say: Say) -> None:
    """Say which classes that are trained have no box in the val split: their AP is unknown."""
    in_val = {name for name, count in val.instances_per_class if count}
    absent = [name for name, count in train.instances_per_class if count and name not in in_val]
    if absent:
        more = " ..." if len(absent) > SHOWN_CLASSES else ""
        names = ", ".join(absent[:SHOWN_CLASSES])
        say(f"val: no box of {counted(len(absent), 'trained class')}: {printable(names)}{more}")


def open_dataset(
    names: Sequence[str],
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
    choices: Choices | None = None,
) -> Dataset:
    """Open the data set of a YAML, given its path or its name in data/, or what lies at a path.

    One process of each machine downloads it, or unpacks it.

    Args:
        names: path of the YAML, or its name in data/, or another path; several, as in `open_data`.
        splits: the splits that will be read.
        world: this process and the others.
        say: receives notes, such as paths that were corrected.
        download: download missing data from the URLs in the YAML.
        single_class: treat all classes as one.
        cache_dir: folder of the caches, "" for the user's cache folder.
        tile: cut images into tiles of this side, see `open_tiling`; 0 for whole images.
        tile_overlap: as in `open_tiling`.
        tile_whole: as in `open_tiling`.
        choices: as in `open_data`.

    Raises ValueError as `open_tiling` and `open_data` do, and if the cache folder cannot be
    created.
    """
    with world.local_main_first():
        if cache_dir:
            make_folder(Path(cache_dir), "--cache-dir")
        spec = open_data(
            *names, download=download, splits=splits, choices=choices, cache_dir=cache_dir
        )
    for note in spec.notes:
        say(note)
    if note := alike_names_note(spec.names):
        say(note)
    if cache_dir and not os.access(cache_dir, os.W_OK | os.X_OK):
        say(f"--cache-dir {printable(cache_dir)} cannot be written: it is only read")
    tiling = open_tiling(tile, tile_overlap, tile_whole)
    strict = choices is not None and choices.strict
    return Dataset(spec, world, single_class, cache_dir, tiling, strict)


def read_split(
    spec: DataSpec,
    split: str,
    *,
    cache_dir: str,
    progress: bool,
    require_labels: bool = True,
) -> tuple[Labels, Report]:
    """Return the labels of a split and the report of the scan.

    Args:
        spec: the data set.
        split: its name in the YAML.
        cache_dir: folder of the caches, "" for the user's cache folder.
        progress: show a bar on a terminal.
        require_labels: as in `scan`.

    Raises ValueError as `scan` does, with the split if it is empty.
    """
    cache = cache_folder(cache_dir)
    threads = usable_cores()

    try:
        return scan(
            spec.sources(split),
            spec.names,
            labels_from=spec.labels,
            label_names=spec.label_names,
            keypoints=spec.keypoints,
            cache_dir=cache,
            threads=threads,
            progress=progress,
            require_labels=require_labels,
        )
    except EmptySplitError as error:
        hint = ""
        if spec.is_written and split == "val":
            hint = "; another --val-split holds out other images"
        text = spec.as_given(f"'{split}' of {spec.title}: {error}{hint}")
        raise ValueError(text) from None
    except ValueError as error:
        raise ValueError(spec.as_given(str(error))) from None


def class_names(names: Sequence[str], *, single: bool) -> list[str]:
    """Return the class names, or ["object"] in place of several ones if `single`.

    >>> class_names(["cat", "dog"], single=True), class_names(["cat"], single=True)
    (['object'], ['cat'])
    """
    return ["object"] if single and len(names) > 1 else list(names)
