"""What lies around a folder or a list that is given as --data: a data YAML above it, labels beside.

Tools write a data YAML beside the folders of the splits, of which people give one.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from data.dataset_yaml import DataSpec, read_data_yaml
from data.formats.base import ClassNames
from data.formats.registry import YOLO_TEXT, format_of, label_files_of
from data.formats.yolo_txt import is_list_of_images, listed_names
from data.images import find_images
from data.layouts.base import Layout
from utils.printable import printable

LEVELS = 3  # folders above a path that are looked at
SHOWN_FOLDERS = 3
MOST_YAMLS = 20  # of a folder


class Surrounded(NamedTuple):
    """A layout with the classes of the data YAML above it, and what the log says."""

    layout: Layout
    notes: list[str]


def with_surroundings(path: Path, layout: Layout, *, has_names: bool) -> Surrounded:
    """Return the layout of a path with the classes of a data YAML that lists its images.

    They are used for label files that have only numbers and no list of names near them, such as
    classes.txt, unless the data YAML renames classes. has_names: whether flags name the classes.

    Raises ValueError with the path of a list of names that cannot be read.
    """
    notes = _labels_beside(path, layout)
    spec = _yaml_above(path)
    if spec is None:
        return Surrounded(layout, notes)

    is_named = has_names or layout.names is not None or bool(spec.label_names)
    uses_names = not is_named and _has_only_numbers(layout)
    file = printable(spec.file)
    if uses_names:
        names = ClassNames(spec.names, str(spec.file))
        layout = layout._replace(names=names, keypoints=spec.keypoints)
        said = f"class names are those of {file}; its splits are not used: --data {file} uses them"
    else:
        said = f"names and splits of {file} are not used: --data {file} uses them"
    return Surrounded(layout, [*notes, f"{printable(path)}: {said}"])


def _has_only_numbers(layout: Layout) -> bool:
    """Whether nothing at all names the classes of a layout's label files."""
    sources = layout.label_sources
    if any(format_of(source) is not YOLO_TEXT for source in sources):
        return False
    return not any(listed_names(source) for source in sources)


def _yaml_above(path: Path) -> DataSpec | None:
    """Return the data YAML in a folder above a path that has its images; None without one."""
    images = _first_image(path)
    for folder in path.parents[:LEVELS]:
        for file in _yamls_in(folder):
            try:
                spec = read_data_yaml(file)
            except ValueError:
                continue
            if _has_images_in(spec, path) or _has_images_in(spec, images):
                return spec
    return None


def _yamls_in(folder: Path) -> Iterator[Path]:
    """Iterate over the YAMLs in a folder, `data.yaml` first; none if it cannot be read."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith((".yaml", ".yml")))
    except OSError:
        return
    for name in sorted(names, key=lambda name: name != "data.yaml")[:MOST_YAMLS]:
        file = folder / name
        if file.is_file():  # reading a pipe may never end
            yield file


def _has_images_in(spec: DataSpec, path: Path) -> bool:
    """Whether a path is one of the paths in a data YAML, or lies in one, or the other way round."""
    real = _real_path(path)
    for sources in spec.splits.values():
        for source in sources:
            listed = _real_path(source)
            if real == listed or real.is_relative_to(listed) or listed.is_relative_to(real):
                return True
    return False


def _real_path(path: Path) -> Path:
    """Return the path behind links; Path.resolve raises RuntimeError for a loop of them."""
    return Path(os.path.realpath(path))


def _first_image(path: Path) -> Path:
    """Return the first image of a list, or any other path as it is."""
    if path.suffix.lower() != ".txt" or not is_list_of_images(path):
        return path
    return Path(next(iter(find_images(path).images), path))


def _labels_beside(path: Path, layout: Layout) -> list[str]:
    """Return what is said of labels that lie outside of a folder that is given."""
    folders: dict[str, None] = {}
    if path.is_dir():
        for source in layout.label_sources:
            folders |= dict.fromkeys(_folders_outside(path, source))
    shown = ", ".join(map(printable, [*folders][:SHOWN_FOLDERS]))
    more = " ..." if len(folders) > SHOWN_FOLDERS else ""
    return [f"{printable(path)}: labels are those in {shown}{more}"] if folders else []


def _folders_outside(path: Path, source: Path) -> Iterator[str]:
    """Iterate over the folder of the first label file of a source, if it is outside of a path."""
    reader = format_of(source)
    if reader.lists_images or not source.is_dir():
        return
    for file in label_files_of(source):
        if os.path.splitext(file)[1].lower() in reader.suffixes:
            if not Path(file).is_relative_to(path):
                yield os.path.dirname(file)
            return
