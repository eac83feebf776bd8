"""Find the splits of a folder of images that have label files of their own."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from data.formats.image_finder import UNASSIGNED, split_of_path
from data.formats.registry import YOLO_TEXT, format_of
from data.formats.voc.folders import is_image_set
from data.formats.yolo_txt import is_list_of_images
from data.images import find_images
from data.layouts.base import Layout, in_order
from utils.images.decode import is_image_name


def image_folder_layouts(root: Path, folders: Sequence[tuple[str, list[str]]]) -> list[Layout]:
    """Return the layout of a folder of images, none if there are none.

    folders: it and its subfolders, each with its file names.
    """
    lists = _image_sets(folders)
    if lists:
        return [Layout(f"{format_of(lists[0]).title}, with lists of images", root, _by_name(lists))]
    lists = _image_lists(root)
    if lists:
        reader = format_of(root)
        labels = () if reader is YOLO_TEXT else (root,)
        title = f"{reader.title}, with lists of images"
        return [Layout(title, root, _by_name(lists), labels=labels)]

    splits: dict[str, set[Path]] = defaultdict(set)
    for folder, names in folders:
        if any(is_image_name(name) for name in names):
            split, source = _split_folder(root, Path(folder))
            splits[split].add(source)
    if not splits:
        return []
    if splits.keys() == {UNASSIGNED} or _are_groups(splits):
        splits = {UNASSIGNED: {root}}
    title = format_of(next(iter(splits[next(iter(splits))]))).title
    return [Layout(title, root, in_order(splits))]


def _are_groups(splits: Mapping[str, set[Path]]) -> bool:
    """Return whether folders are groups of images, one of which only has the name of a split.

    So are bus, car and train, the vehicle: of real splits there are two, or one with little beside.
    """
    others = splits.get(UNASSIGNED, set())
    named = [folder for split, folders in splits.items() if split for folder in folders]
    return len(named) == 1 and len(others) > 1


def _split_folder(root: Path, folder: Path) -> tuple[str, Path]:
    """Return the split of a folder of images, and the topmost folder that has only that split."""
    parts = folder.relative_to(root).parts
    for count, part in enumerate(parts, 1):
        split = split_of_path([part])
        if split:
            return split, root.joinpath(*parts[:count])
    return UNASSIGNED, folder


def _image_sets(folders: Sequence[tuple[str, list[str]]]) -> list[Path]:
    """Return the lists of image ids in ImageSets/Main, without those for one class."""
    lists = []
    for folder, names in folders:
        for name in names:
            file = Path(folder, name)
            is_class_list = "_" in os.path.splitext(name)[0]
            if not is_class_list and is_image_set(file):
                lists.append(file)
    return sorted(lists)


def _image_lists(root: Path) -> list[Path]:
    """Return the lists of images that lie in a folder and are called by a split; train is one.

    Lists whose images are not found, such as those of another machine, are none.
    """
    lists = []
    for file in sorted(root.glob("*.txt")):
        is_named = split_of_path([file.stem]) != UNASSIGNED
        if is_named and is_list_of_images(file) and find_images(file).images:
            lists.append(file)
    return lists if "train" in _by_name(lists) else []


def _by_name(lists: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    splits = defaultdict(list)
    for file in lists:
        if file.stem != "trainval" or len(lists) == 1:
            splits[split_of_path([file.stem])].append(file)
    return in_order(splits)
