"""Write the YAML of data sets that have none, or that are joined, renamed or split."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from data.dataset_yaml import SPLITS, DataSpec, read_data_yaml
from data.formats.base import ClassNames
from data.formats.image_finder import UNASSIGNED, split_of_path
from data.formats.registry import format_of
from data.images import read_lines, walk_images
from data.layouts.archives import without_key
from data.layouts.base import Choices, Layout
from data.layouts.classes import Classes, joined_classes
from data.layouts.hold_out import HeldOut, hold_out
from data.layouts.names import spelled_alike
from data.layouts.similar import similar_groups
from data.report import Problem, first_of
from utils.files.folders import RUN_DATA, make_folder
from utils.files.misread_text import as_gb2312
from utils.files.writers import write_bytes, write_text, write_yaml
from utils.printable import counted, excerpt, printable
from utils.threads import usable_cores

LISTS = {split: f"{split}.txt" for split in SPLITS}
WEIGHTED_LIST = "train-weight-{:g}.txt"  # of the training images of one weight
GROUP_NOT_USED = "--group is not used, because no image is held out"
SHOWN_NAMES = 100  # characters
Splits = Mapping[str, Sequence[Path]]


class PlacedImage(NamedTuple):
    """An image, its name below the folder of its data set, the tool's split, and its weight."""

    path: str
    name: str
    split: str
    weight: float


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

    notes = _notes_of_classes(layouts, classes, choices)

    # Lists of images: those of the tool's own splits, and of images that are held out.
    images = _images_to_be_divided(layouts, splits, classes, choices.val_split)
    divided = _divided(images)
    lists: dict[str, list[str]] = {}
    wants_val = "val" not in {*splits, *divided} and choices.val_split > 0
    holds_out = wants_val and "train" in divided
    if holds_out or any(split != "train" for split in divided):
        lists = {split: sorted(names) for split, names in divided.items()}
        lists |= _images_of_splits(layouts, splits, classes)
        labels = labels or _labels_of_lists(layouts, splits)
    if holds_out:
        held_out, sentences = _held_out(divided["train"], choices, folder, cache)
        lists |= {"train": held_out.train, "val": held_out.val}
        first, *further = sentences
        notes[-1] = f"{notes[-1]}; {first}"  # in the line that describes the data set
        notes += further
    elif choices.group:
        notes.append(GROUP_NOT_USED)
    notes += _notes_of_unused(unused, len(images) - sum(map(len, divided.values())))

    # Training images of each weight are in a list of their own.
    files = {LISTS[split]: paths for split, paths in lists.items()}
    entries = _entries(splits, lists, labels, classes)
    weights = _joined_weights(layouts)
    if weights and "train" in lists:
        weight_of = {image.path: image.weight for image in images}
        by_weight = _lists_by_weight(lists["train"], weight_of)
        del files[LISTS["train"]]
        files |= {name: paths for name, (_, paths) in by_weight.items()}
        entries["train"] = [_entry(name, weight) for name, (weight, _) in by_weight.items()]
    elif weights:
        sources = splits.get("train", ())
        entries["train"] = [_entry(str(path), weights.get(path, 1.0)) for path in sources]
    if keypoints is not None:
        entries["kpt_shape"] = list(keypoints)
    file = _write(folder, entries, files)
    given = " ".join(str(layout.path) for layout in layouts)
    return replace(read_data_yaml(file), notes=tuple(notes), written_for=given)


def _notes_of_classes(layouts: Sequence[Layout], classes: Classes, choices: Choices) -> list[str]:
    """Return what the log says of each data set, of all together, and of names that look wrong."""
    notes = []
    for layout, found in zip(layouts, classes.of_layout, strict=True):
        notes.append(_described(layout, found))
    if len(layouts) > 1 or choices.merge:
        notes.append(f"together {_classes_text(classes.names)}")

    misread = [name for name in classes.names if as_gb2312(name)]
    if misread:
        read = excerpt(", ".join(misread))
        meant = excerpt(", ".join(map(as_gb2312, misread)))
        advice = "save the label files as UTF-8"
        notes.insert(0, f"if class {read} should be {meant}, its text is in GBK: {advice}")

    alike = spelled_alike(classes.names)
    if alike:
        renamed = f"--merge '{alike[0]}={alike[1]}' makes one class of two"
        notes.insert(0, f"classes differ in spelling only: {', '.join(alike)}: {renamed}")
    return notes


def copy_to(spec: DataSpec, folder: Path) -> None:
    """Copy the YAML that `write_data_set` has written, and its lists, into a folder."""
    own_lists = [path for path in spec.train or () if path.parent == spec.file.parent]
    names = [RUN_DATA, *LISTS.values(), *(path.name for path in own_lists)]
    for name in dict.fromkeys(names):
        file = spec.file.with_name(name)
        if file.is_file():
            write_bytes(folder / name, file.read_bytes())


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


def _joined_weights(layouts: Sequence[Layout]) -> dict[Path, float]:
    """Return the weights of sources, other than 1; of one in several layouts that of the first."""
    joined: dict[Path, float] = {}
    for layout in layouts:
        for split in ("train", UNASSIGNED):
            for source in layout.splits.get(split, ()):
                joined.setdefault(source, layout.weights.get(source, 1.0))
    return {source: weight for source, weight in joined.items() if weight != 1}


def _lists_by_weight(
    paths: Sequence[str], weight_of: Mapping[str, float]
) -> dict[str, tuple[float, list[str]]]:
    """Return the lists of the images of each weight: by their file names, the weight and the paths.

    >>> _lists_by_weight(["a", "b", "c"], {"a": 1.0, "b": 2.0, "c": 1.0})
    {'train.txt': (1.0, ['a', 'c']), 'train-weight-2.txt': (2.0, ['b'])}
    """
    by_weight: dict[str, tuple[float, list[str]]] = {}
    for path in paths:
        weight = weight_of[path]
        name = LISTS["train"] if weight == 1 else WEIGHTED_LIST.format(weight)
        _, listed = by_weight.setdefault(name, (weight, []))
        listed.append(path)
    return by_weight


def _entry(path: str, weight: float) -> str | dict[str, object]:
    """Return an entry of the train split of a data YAML."""
    return path if weight == 1 else {"path": path, "weight": weight}


def _images_to_be_divided(
    layouts: Sequence[Layout],
    splits: Splits,
    classes: Classes,
    val_split: float,
) -> list[PlacedImage]:
    """Return the training images that may be in several splits, none if there are no such ones.

    Those are all training images if some are to be held out, or if a tool's file may divide them.

    Raises ValueError if there are none.
    """
    train = splits.get("train", ())
    may_divide = any(
        format_of(source).lists_images
        for layout in layouts
        for source in layout.splits.get(UNASSIGNED, ())
    )
    holds_out = "val" not in splits and val_split > 0
    if not train or not (holds_out or may_divide):
        return []
    images, problems = _images(layouts, train, classes)
    if not images:
        first = first_of(problems)
        reason = f"; the first problem is {first}" if first else ""
        raise ValueError(f"no images in {_shown(train)}{reason}")
    return images


def _divided(images: Sequence[PlacedImage]) -> dict[str, dict[str, str]]:
    """Return the names of images by their paths, by split.

    Those that the tool has put into no split are in train, unless others are.
    """
    divided: dict[str, dict[str, str]] = {}
    for image in images:
        divided.setdefault(split_of_path([image.split]), {})[image.path] = image.name
    unassigned = divided.pop(UNASSIGNED, {})
    if unassigned and "train" not in divided:
        divided["train"] = unassigned
    return divided


def _images_of_splits(
    layouts: Sequence[Layout], splits: Splits, classes: Classes
) -> dict[str, list[str]]:
    """Return lists of the images of all splits but train: sources cannot stand beside lists."""
    lists = {}
    for split, sources in splits.items():
        if split != "train":
            images, _ = _images(layouts, sources, classes)
            lists[split] = sorted(image.path for image in images)
    return lists


def _images(
    layouts: Sequence[Layout], sources: Sequence[Path], classes: Classes
) -> tuple[list[PlacedImage], list[Problem]]:
    """Return the images of sources, and the problems of reading them."""
    images: dict[str, PlacedImage] = {}
    problems: list[Problem] = []
    for layout, found in zip(layouts, classes.of_layout, strict=True):
        own = {source for group in layout.splits.values() for source in group}
        for source in sources:
            if source not in own:
                continue
            read_as = list(layout.label_names.get(source, found.names))
            contents = format_of(source).images(source, read_as)
            for image in contents.images:
                relative = os.path.relpath(image.path, layout.root).replace(os.sep, "/")
                weight = layout.weights.get(source, 1.0)
                placed = PlacedImage(image.path, relative, image.split, weight)
                images.setdefault(image.path, placed)
            problems += contents.problems
    return list(images.values()), problems


def _labels_of_lists(layouts: Sequence[Layout], splits: Splits) -> list[Path]:
    """Return the sources of the labels of lists of images.

    Label files of YOLO are found without them, but not what is wrong with their folders.
    """
    sources = {source for group in splits.values() for source in group}
    labels = [label for layout in layouts for label in layout.label_sources if label in sources]
    return list(dict.fromkeys(labels))


def _held_out(
    names: Mapping[str, str], choices: Choices, folder: Path, cache: Path | None
) -> tuple[HeldOut, list[str]]:
    """Return the images of both splits, and what is said of them.

    Args:
        names: of the images, by their paths, as in `hold_out`.
        choices: of the flags.
        folder: where the lists of the last time are, if there was one.
        cache: as in `write_data_set`.
    """
    similar = similar_groups(sorted(names), cache, usable_cores())
    held_out = hold_out(names, share=choices.val_split, group=choices.group, similar=similar)

    share = f"{len(held_out.val):,} of {counted(len(names), 'image')}"
    note = f"no val split: {share} held out (--val-split {choices.val_split:g})"
    if len(held_out.val) != held_out.wanted:
        note += f", not {held_out.wanted:,}: images that belong together stay in one split"
    notes = [note]
    copies = len(similar) - len(set(similar))
    if copies:
        notes.append(f"{counted(copies, 'image')} nearly identical to another: in its split")

    moved = _in_list(folder / LISTS["val"], held_out.train)
    for file in _lists_in(folder, "train"):
        moved += _in_list(file, held_out.val)
    if moved:
        notes.append(
            f"{counted(moved, 'image')} in another split than the last time: images were added or "
            "removed"
        )
    return held_out, notes


def _notes_of_unused(sources: Sequence[Path], images: int) -> list[str]:
    """Return what is said of sources and of a number of images that are in no split."""
    notes = []
    if sources:
        note = f"not used, because they are in no split: {_shown(sources)}"
        if all(source.is_dir() for source in sources):
            count = sum(1 for source in sources for _ in walk_images(source))
            note += f" ({counted(count, 'image')})"
        notes.append(note)
    if images:
        notes.append(f"not used, because they are in no split: {counted(images, 'image')}")
    return notes


def _lists_in(folder: Path, split: str) -> list[Path]:
    """Return the lists of a split that `write_data_set` may have written into a folder."""
    weighted = sorted(folder.glob(WEIGHTED_LIST.replace("{:g}", "*"))) if split == "train" else []
    return [folder / LISTS[split], *weighted]


def _in_list(file: Path, paths: Sequence[str]) -> int:
    """Return the number of paths that are in a list; 0 if it does not exist."""
    if not file.is_file():
        return 0
    listed = set(map(without_key, read_lines(file)))
    return len(listed.intersection(map(without_key, paths)))


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
    splits: Splits,
    lists: Mapping[str, Sequence[str]],
    labels: Sequence[Path],
    classes: Classes,
) -> dict[str, object]:
    """Return the entries of a data YAML.

    Args:
        splits: the sources of each split.
        lists: of the images of all splits, in place of the sources; none of them otherwise.
        labels: the sources of the labels of these lists.
        classes: of the data set.
    """
    entries: dict[str, object] = {split: LISTS[split] for split in lists}
    if not lists:
        for split, sources in splits.items():
            entries[split] = [str(source) for source in sources]
    if labels:
        entries["labels"] = [str(source) for source in labels]
    entries["names"] = dict(enumerate(classes.names))
    if classes.label_names:
        entries["label_names"] = {
            str(source): new_name for source, new_name in classes.label_names.items()
        }
    return entries


def _write(folder: Path, entries: dict[str, object], lists: Mapping[str, Sequence[str]]) -> Path:
    """Write the YAML of a data set, and its lists of images by their file names.

    Lists of an earlier time that it does not name, such as those of other weights, are removed:
    the next time would take them for the last ones. Returns the YAML's path.
    """
    make_folder(folder, "--cache-dir")
    for name, paths in lists.items():
        write_text(folder / name, "".join(f"{path}\n" for path in paths))
    file = folder / RUN_DATA
    write_yaml(file, entries)

    for split in SPLITS:
        for written in _lists_in(folder, split):
            if written.name not in lists:
                written.unlink(missing_ok=True)
    return file
