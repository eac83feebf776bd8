"""Tell the data sets in the subfolders of a folder apart."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from data.dataset_yaml import read_data_yaml
from data.formats.image_finder import split_of_path
from data.formats.registry import format_of, label_files_of
from data.layouts.base import Layout
from data.layouts.darknet import SUFFIX
from utils.images.decode import is_image_name

MOST_SUBFOLDERS = 100  # of a folder of data sets; more are parts of one
Folders = Sequence[tuple[str, list[str]]]
FindLayouts = Callable[[Path, Folders], list[Layout]]


def separate_layouts(
    root: Path, folders: Folders, find: FindLayouts, find_files: FindLayouts
) -> list[Layout]:
    """Return the data sets in the subfolders of a folder if they are several, else none.

    A subfolder is a data set of its own if images lie in it together with their labels. Such
    subfolders are several data sets if they differ in format, or have each a YAML or an obj.data.
    Those that are called by splits are one. A file that describes the whole folder makes it one,
    too: it lies in the folder itself, or in a subfolder without images.

    Args:
        root: the folder.
        folders: it and its subfolders, each with its file names.
        find: returns what may be in a folder, given like these.
        find_files: returns the layouts of files that describe or list images, likewise.
    """
    # The subfolders with images, and whether a file outside of them describes all.
    groups = _by_subfolder(root, folders)
    parts = {folder: inside for folder, inside in groups.items() if _have_images(inside)}
    parts.pop(root, None)
    if not 1 < len(parts) <= MOST_SUBFOLDERS:
        return []
    rest = [entry for folder, inside in groups.items() if folder not in parts for entry in inside]
    try:
        if find_files(root, rest):
            return []
        layouts_of = {folder: find(folder, inside) for folder, inside in parts.items()}
    except ValueError:
        return []  # a YAML with an error, which is said where all of them are looked at

    # Those of them that have their own labels.
    found = {}
    for folder, layouts in layouts_of.items():
        if any(_names_others(layout, folder) for layout in layouts):
            return []
        if any(_has_its_labels(layout, folder) for layout in layouts):
            found[folder] = layouts
    if all(split_of_path([folder.name]) for folder in found):
        return []

    # Images whose labels are in another subfolder, as those of images/ in labels/.
    for folder in parts.keys() - found.keys():
        if _has_labels_in(root, folder):
            found[folder] = layouts_of[folder]

    separate = [layout for folder in sorted(found) for layout in found[folder]]
    kinds = {_kind(layout) for layout in separate}
    return separate if len(kinds) > 1 else []


def _by_subfolder(root: Path, folders: Folders) -> dict[Path, list[tuple[str, list[str]]]]:
    """Return the folders by the subfolder of `root` that they are in; `root` is by itself."""
    groups = defaultdict(list)
    for folder, names in folders:
        inside = Path(folder).relative_to(root).parts
        groups[root.joinpath(*inside[:1])].append((folder, names))
    return groups


def _have_images(folders: Folders) -> bool:
    return any(is_image_name(name) for _, names in folders for name in names)


def _kind(layout: Layout) -> str:
    """Return what tells data sets apart: their format, or the file that describes one."""
    is_described = layout.is_yaml or layout.path.suffix.lower() == SUFFIX
    return str(layout.path) if is_described else layout.title


def _names_others(layout: Layout, folder: Path) -> bool:
    """Whether the data YAML in a folder names images outside of it."""
    if not layout.is_yaml:
        return False
    splits = read_data_yaml(layout.path).splits.values()
    sources = [source.resolve() for sources in splits for source in sources]
    outside = [source for source in sources if not source.is_relative_to(folder.resolve())]
    return any(source.exists() for source in outside)


def _has_its_labels(layout: Layout, folder: Path) -> bool:
    """Whether the labels of a layout are in its folder: always where a file lists its images."""
    if layout.is_yaml or layout.path.is_file():
        return True
    sources = [source for group in layout.splits.values() for source in group]
    return format_of(sources[0]).lists_images or _has_labels_in(folder, folder)


def _has_labels_in(top: Path, images: Path) -> bool:
    """Whether a label file of the images in a folder is in the folder `top`."""
    return any(Path(file).is_relative_to(top) for file in label_files_of(images))
