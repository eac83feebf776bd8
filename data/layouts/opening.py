"""Open what was recognized as a data set: its names, its splits, and the YAML that says so."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from data.dataset_yaml import DataSpec, read_data_yaml
from data.formats.base import ClassNames
from data.formats.registry import YOLO_TEXT, format_of
from data.layouts.base import UNASSIGNED, Layout
from data.layouts.hold_out import hold_out
from data.layouts.names import chosen_names, names_of_sources
from data.layouts.similar import similar_groups
from data.report import Problem, first_of
from utils.files.folders import make_folder
from utils.files.writers import write_text, write_yaml
from utils.printable import counted, excerpt, printable

YAML_NAME = "data.yaml"
Splits = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Choices:
    """What flags choose about a data set.

    val_split: the share of images that is held out if there is no val split; 0 holds out none.
    """

    val_split: float = 0.2
    group: str = ""  # as in hold_out
    names: tuple[str, ...] = ()  # of the classes
    strict: bool = False  # refuse data in which something looks like a mistake


def open_layout(
    layout: Layout,
    choices: Choices,
    folder: Path,
    *,
    cache: Path | None = None,
    keypoints: tuple[int, int] | None = None,
) -> DataSpec:
    """Return the data set of a layout.

    Args:
        layout: what was recognized.
        choices: of the flags.
        folder: where its YAML is written, and the lists of its splits where images are held out.
        cache: the folder of the caches, None to store nothing.
        keypoints: of a data YAML.

    Raises ValueError if its sources cannot be read or disagree about the names of the classes.
    """
    all_sources = [source for sources in layout.splits.values() for source in sources]
    names = chosen_names(layout.names or names_of_sources(all_sources), choices.names)
    splits, unused = _assigned(layout)
    notes = [_described(layout, names)]
    if unused:
        notes.append(f"not used, because they are in no split: {_shown(unused)}")

    lists: dict[str, list[str]] = {}
    labels: Sequence[Path] = ()
    if "val" not in splits and choices.val_split:
        paths = _images(splits["train"], names)
        root = layout.path if layout.path.is_dir() else layout.path.parent
        similar = similar_groups(paths, cache, os.cpu_count() or 1)
        held_out = hold_out(
            paths, root, share=choices.val_split, group=choices.group, similar=similar
        )
        lists = {"train": held_out.train, "val": held_out.val}
        labels = _labels_of_lists(splits["train"])
        notes.append(
            f"no val split: {len(held_out.val):,} of {counted(len(paths), 'image')} held out "
            f"(--val-split {choices.val_split:g})"
        )
        copies = len(similar) - len(set(similar))
        if copies:
            notes.append(f"{counted(copies, 'image')} nearly identical to another: in its split")
    entries = _entries(splits, lists, labels, names)
    if keypoints is not None:
        entries["kpt_shape"] = list(keypoints)
    file = _write(folder, entries, lists)
    return replace(read_data_yaml(file), notes=tuple(notes), is_written=True)


def _assigned(layout: Layout) -> tuple[dict[str, tuple[Path, ...]], tuple[Path, ...]]:
    """Return the sources of each split, and those in none if there is a train split."""
    splits = dict(layout.splits)
    unassigned = splits.pop(UNASSIGNED, ())
    if "train" in splits:
        return splits, unassigned
    if not unassigned:
        found = ", ".join(splits)
        raise ValueError(f"{printable(layout.path)} has no train split (it has: {found})")
    return {"train": unassigned, **splits}, ()


def _images(sources: Sequence[Path], names: ClassNames) -> list[str]:
    """Return the paths of all images of sources. Raises ValueError if there are none."""
    paths: set[str] = set()
    problems: list[Problem] = []
    for source in sources:
        contents = format_of(source).images(source, names.names)
        paths.update(image.path for image in contents.images)
        problems += contents.problems
    if not paths:
        first = first_of(problems)
        reason = f"; the first problem is {first}" if first else ""
        raise ValueError(f"no images in {_shown(sources)}{reason}")
    return sorted(paths)


def _labels_of_lists(sources: Sequence[Path]) -> Sequence[Path]:
    """Return the sources that lists of their images need; none for YOLO's label files."""
    if all(format_of(source) is YOLO_TEXT for source in sources):
        return ()
    return sources


def _described(layout: Layout, names: ClassNames) -> str:
    classes = counted(len(names.names), "class")
    origin = "in use"
    if names.origin:
        origin = f"from {printable(os.path.basename(names.origin))}"
    shown = excerpt(", ".join(names.names), 100)
    return f"{printable(layout.path)}: {layout.title}; {classes} {origin}: {shown}"


def _shown(paths: Sequence[Path]) -> str:
    more = " ..." if len(paths) > 3 else ""
    return ", ".join(map(printable, paths[:3])) + more


def _entries(
    splits: Splits,
    lists: Mapping[str, Sequence[str]],
    labels: Sequence[Path],
    names: ClassNames,
) -> dict[str, object]:
    """Return the entries of a data YAML.

    Args:
        splits: the sources of each split.
        lists: paths of images, by split, which replace its sources.
        labels: the sources of the labels of these lists.
        names: of the classes.
    """
    entries: dict[str, object] = {}
    for split, sources in splits.items():
        entries[split] = [str(source) for source in sources]
    for split in lists:
        entries[split] = f"{split}.txt"
    if labels:
        entries["labels"] = [str(source) for source in labels]
    entries["names"] = dict(enumerate(names.names))
    return entries


def _write(folder: Path, entries: dict[str, object], lists: Mapping[str, Sequence[str]]) -> Path:
    """Write the YAML of a data set, and its lists of images; return the path of the YAML."""
    make_folder(folder, "--cache-dir")
    for split, paths in lists.items():
        write_text(folder / f"{split}.txt", "".join(f"{path}\n" for path in paths))
    file = folder / YAML_NAME
    write_yaml(file, entries)
    return file


def copy_to(spec: DataSpec, folder: Path) -> None:
    """Copy the YAML that `open_layout` has written, and its lists, into a folder."""
    for name in (YAML_NAME, "train.txt", "val.txt"):
        file = spec.file.with_name(name)
        if file.exists():
            shutil.copyfile(file, folder / name)


def held_out_of(spec: DataSpec, choices: Choices, folder: Path, cache: Path | None) -> DataSpec:
    """Return a data set whose YAML has no val split with one that is held out.

    Its YAML is written into `folder`. cache: as in `open_layout`.

    Raises ValueError as `open_layout` does.
    """
    splits = {"train": spec.train or ()}
    if spec.test:
        splits["test"] = spec.test
    layout = Layout("data YAML", spec.file, splits, ClassNames(spec.names, str(spec.file)))
    opened = open_layout(layout, choices, folder, cache=cache, keypoints=spec.keypoints)
    return replace(opened, notes=(*spec.notes, *opened.notes[1:]))
