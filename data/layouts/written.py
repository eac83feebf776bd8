"""Write the YAML of data sets that have none, or that are joined, renamed or split."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from data.dataset_yaml import DataSpec, read_data_yaml
from data.formats.base import ClassNames
from data.formats.registry import YOLO_TEXT, format_of
from data.images import read_lines
from data.layouts.base import UNASSIGNED, Choices, Layout
from data.layouts.classes import Classes, joined_classes
from data.layouts.hold_out import HeldOut, hold_out
from data.layouts.similar import similar_groups
from data.report import Problem, first_of
from utils.files.folders import make_folder
from utils.files.writers import write_text, write_yaml
from utils.printable import counted, excerpt, printable

YAML_NAME = "data.yaml"
TRAIN_LIST = "train.txt"
VAL_LIST = "val.txt"
SHOWN_NAMES = 100  # characters
Splits = Mapping[str, Sequence[Path]]


def write_data_set(
    layouts: Sequence[Layout],
    choices: Choices,
    folder: Path,
    *,
    cache: Path | None = None,
    needs_train: bool = True,
) -> DataSpec:
    """Return the data set that layouts amount to.

    Args:
        layouts: what was recognized; several are joined.
        choices: of the flags.
        folder: where its YAML is written, and the lists of its splits where images are held out.
        cache: the folder of the caches, None to store nothing.
        needs_train: refuse data without a train split.

    Raises ValueError if its sources cannot be read or disagree about the names of the classes.
    """
    classes = joined_classes(layouts, choices.names, choices.merge)
    splits, unused = _joined_splits(layouts, needs_train=needs_train)
    labels = _labels(layouts)
    keypoints = _keypoints(layouts)

    # What is said of each data set, and of all together.
    notes = [
        _described(layout, found) for layout, found in zip(layouts, classes.of_layout, strict=True)
    ]
    if len(layouts) > 1 or choices.merge:
        notes.append(f"together {_classes_text(classes.names)}")

    # The images that are held out.
    held_out = None
    if "train" in splits and "val" not in splits and choices.val_split:
        names = _image_names(layouts, splits["train"], classes)
        similar = similar_groups(sorted(names), cache, os.cpu_count() or 1)
        held_out = hold_out(names, share=choices.val_split, group=choices.group, similar=similar)
        labels = labels or _labels_of_lists(splits["train"], classes)
        split, *others = _notes_of_hold_out(held_out, similar, choices.val_split, folder)
        notes = [*notes[:-1], "; ".join([*notes[-1:], split]), *others]

    if unused:
        notes.append(f"not used, because they are in no split: {_shown(unused)}")

    entries = _entries(splits, held_out, labels, classes)
    if keypoints is not None:
        entries["kpt_shape"] = list(keypoints)
    file = _write(folder, entries, held_out)
    return replace(read_data_yaml(file), notes=tuple(notes), is_written=True)


def copy_to(spec: DataSpec, folder: Path) -> None:
    """Copy the YAML that `write_data_set` has written, and its lists, into a folder."""
    for name in (YAML_NAME, TRAIN_LIST, VAL_LIST):
        file = spec.file.with_name(name)
        if file.exists():
            shutil.copyfile(file, folder / name)


def _joined_splits(
    layouts: Sequence[Layout], *, needs_train: bool
) -> tuple[dict[str, list[Path]], list[Path]]:
    """Return the sources of each split of all layouts, and those that are in none.

    Raises ValueError if a layout has no images to train on, unless none are needed.
    """
    splits: dict[str, list[Path]] = {}
    unused: list[Path] = []
    for layout in layouts:
        own = dict(layout.splits)
        unassigned = own.pop(UNASSIGNED, ())
        if "train" in own:
            unused += unassigned
        elif unassigned:
            own["train"] = unassigned
        elif needs_train:
            found = ", ".join(own)
            raise ValueError(f"{printable(layout.path)} has no train split (it has: {found})")
        for split, sources in own.items():
            listed = splits.setdefault(split, [])
            listed += [source for source in sources if source not in listed]
    return splits, unused


def _labels(layouts: Sequence[Layout]) -> Sequence[Path]:
    """Return the sources of the labels if the splits are only lists of images.

    Raises ValueError if only one of several layouts is such a one.
    """
    for layout in layouts:
        if layout.labels and len(layouts) > 1:
            raise ValueError(
                f"{printable(layout.path)} has 'labels', so it cannot be joined with other data: "
                "give what its 'labels' names instead"
            )
    return layouts[0].labels


def _keypoints(layouts: Sequence[Layout]) -> tuple[int, int] | None:
    """Return the `kpt_shape` of all layouts. Raises ValueError if they differ."""
    found = {layout.keypoints for layout in layouts}
    if len(found) > 1:
        shapes = ", ".join(sorted(str(list(shape)) if shape else "none" for shape in found))
        raise ValueError(f"the data sets differ in 'kpt_shape': {shapes}")
    return layouts[0].keypoints


def _image_names(
    layouts: Sequence[Layout], train: Sequence[Path], classes: Classes
) -> dict[str, str]:
    """Return the paths of all training images, each with its name below its data set.

    Raises ValueError if there are none.
    """
    names: dict[str, str] = {}
    problems: list[Problem] = []
    for layout, found in zip(layouts, classes.of_layout, strict=True):
        for source in train:
            if source not in _sources(layout):
                continue
            read_as = list(layout.label_names.get(source, found.names))
            contents = format_of(source).images(source, read_as)
            for image in contents.images:
                relative = os.path.relpath(image.path, layout.root)
                names.setdefault(image.path, relative.replace(os.sep, "/"))
            problems += contents.problems
    if not names:
        first = first_of(problems)
        reason = f"; the first problem is {first}" if first else ""
        raise ValueError(f"no images in {_shown(train)}{reason}")
    return names


def _sources(layout: Layout) -> set[Path]:
    return {source for sources in layout.splits.values() for source in sources}


def _labels_of_lists(sources: Sequence[Path], classes: Classes) -> Sequence[Path]:
    """Return the sources that lists of their images need.

    YOLO's label files are found without them, if their classes are those of the data set.
    """
    is_yolo = all(format_of(source) is YOLO_TEXT for source in sources)
    if is_yolo and not classes.label_names:
        return ()
    return sources


def _notes_of_hold_out(
    held_out: HeldOut, similar: Sequence[int], share: float, folder: Path
) -> list[str]:
    """Return what is said of the images that are held out.

    Args:
        held_out: the images of both splits.
        similar: the group of each image, as `similar_groups` returns it.
        share: of the images that should be held out.
        folder: where the lists of the last time are, if there was one.
    """
    images = counted(len(held_out.train) + len(held_out.val), "image")
    notes = [f"no val split: {len(held_out.val):,} of {images} held out (--val-split {share:g})"]
    copies = len(similar) - len(set(similar))
    if copies:
        notes.append(f"{counted(copies, 'image')} nearly identical to another: in its split")

    moved = _in_list(folder / VAL_LIST, held_out.train) + _in_list(
        folder / TRAIN_LIST, held_out.val
    )
    if moved:
        notes.append(
            f"{counted(moved, 'image')} in another split than the last time: new images have "
            "joined their groups"
        )
    return notes


def _in_list(file: Path, paths: Sequence[str]) -> int:
    """Return the number of paths that are in a list; 0 if it does not exist."""
    if not file.is_file():
        return 0
    return len(set(read_lines(file)).intersection(paths))


def _described(layout: Layout, classes: ClassNames) -> str:
    origin = f" from {printable(os.path.basename(classes.origin))}" if classes.origin else ""
    return f"{printable(layout.path)}: {layout.title}; {_classes_text(classes.names, origin)}"


def _classes_text(names: Sequence[str], origin: str = "") -> str:
    """Return the number of classes, where they come from, and their names.

    >>> _classes_text(["cat", "dog"], " from classes.txt")
    '2 classes from classes.txt: cat, dog'
    """
    shown = excerpt(", ".join(names), SHOWN_NAMES)
    return f"{counted(len(names), 'class')}{origin}: {shown}"


def _shown(paths: Sequence[Path]) -> str:
    more = " ..." if len(paths) > 3 else ""
    return ", ".join(map(printable, paths[:3])) + more


def _entries(
    splits: Splits, held_out: HeldOut | None, labels: Sequence[Path], classes: Classes
) -> dict[str, object]:
    """Return the entries of a data YAML.

    Args:
        splits: the sources of each split.
        held_out: lists of images that replace those of train and val.
        labels: the sources of the labels of these lists.
        classes: of the data set.
    """
    entries: dict[str, object] = {}
    for split, sources in splits.items():
        entries[split] = [str(source) for source in sources]
    if held_out is not None:
        entries["train"] = TRAIN_LIST
        entries["val"] = VAL_LIST
    if labels:
        entries["labels"] = [str(source) for source in labels]
    entries["names"] = dict(enumerate(classes.names))
    if classes.label_names:
        entries["label_names"] = {
            str(source): new_name for source, new_name in classes.label_names.items()
        }
    return entries


def _write(folder: Path, entries: dict[str, object], held_out: HeldOut | None) -> Path:
    """Write the YAML of a data set, and its lists of images; return the path of the YAML."""
    make_folder(folder, "--cache-dir")
    if held_out is not None:
        for name, paths in ((TRAIN_LIST, held_out.train), (VAL_LIST, held_out.val)):
            write_text(folder / name, "".join(f"{path}\n" for path in paths))
    file = folder / YAML_NAME
    write_yaml(file, entries)
    return file
