"""Open the data set of a YAML, or of whatever else --data names."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from data.dataset_yaml import (
    ALLOWED_WEIGHTS,
    FOLDER,
    MAX_WEIGHT,
    MIN_WEIGHT,
    DataSpec,
    find_data,
    name_as_given,
    read_data_yaml,
)
from data.fetching import fetch_data, require_finished
from data.formats.base import ClassNames
from data.formats.registry import YOLO_TEXT, format_of
from data.layouts.archives import is_archive, unpacked, without_outer_folders
from data.layouts.base import Choices, Layout
from data.layouts.labels_elsewhere import find_pair, join
from data.layouts.names import check_listed_names, chosen_names
from data.layouts.reasons.contents import contents_of_archive
from data.layouts.reasons.unread import unread_labels
from data.layouts.recognize import (
    YAML_SUFFIXES,
    NoDataSetError,
    SeveralDataSetsError,
    recognize,
)
from data.layouts.surroundings import with_surroundings
from data.layouts.written import GROUP_NOT_USED, write_data_set
from data.shapes.generate import generate
from utils.files.archives import NoWantedFileError
from utils.files.folders import cache_folder, make_folder, temporary_cache_folder
from utils.files.writers import write_text
from utils.printable import counted, printable


class Given(NamedTuple):
    """A path that --data names, and what was found there."""

    path: Path
    layout: Layout
    spec: DataSpec | None = None  # of a data YAML
    unpacked: Mapping[Path, str] = {}  # as in DataSpec
    notes: tuple[str, ...] = ()  # of what lies around the path


def open_data(
    *names: str,
    download: bool = False,
    splits: Sequence[str] = (),
    choices: Choices | None = None,
    cache_dir: str = "",
) -> DataSpec:
    """Open the data set of a YAML that `find_data` finds, or what else lies at this path.

    The generated data set is drawn if it does not exist.

    Args:
        names: of the YAML, or the path of a folder, an archive, or a file of an annotation tool;
            several are joined to one data set.
        download: download missing data from the URLs in the YAML. Nothing else may use the network.
        splits: the splits that will be read.
        choices: what flags choose, such as the images that are held out.
        cache_dir: folder of the caches, "" for the user's cache folder.

    Raises ValueError if one of the splits is not in the YAML or on the disk, before any is scanned,
    or if it is not known what lies at a path.
    """
    choices = choices or Choices()
    _check_weights(choices.weights, names)
    cache = cache_folder(cache_dir)
    given = _all_given(names, cache, download=download)
    given = [_with_surroundings(one, choices) for one in given]
    archives = {folder: path for one in given for folder, path in one.unpacked.items()}
    try:
        spec = _opened(given, names, splits, choices, cache)
    except ValueError as error:
        raise ValueError(name_as_given(str(error), archives)) from None
    notes = tuple(name_as_given(note, archives) for note in spec.notes)
    return replace(spec, notes=notes, unpacked=archives)


def _opened(
    given: Sequence[Given],
    names: Sequence[str],
    splits: Sequence[str],
    choices: Choices,
    cache: Path | None,
) -> DataSpec:
    """Return the data set of all that was given. The arguments are those of `open_data`."""
    first = given[0].spec
    if first is not None and len(given) == 1 and _is_complete(first, splits, choices):
        chosen_names(ClassNames(first.names, str(first.file)), choices.names)
        spec = first
        if choices.group:
            spec = replace(spec, notes=(*spec.notes, GROUP_NOT_USED))
    else:
        needs_train = "train" in splits
        if needs_train:
            for one in given:
                _require_train(one.spec)
        layouts = [one.layout for one in given]
        if choices.weights:
            pairs = zip(layouts, choices.weights, strict=True)
            layouts = [layout.weighted(weight) for layout, weight in pairs]
            _check_products(layouts)
        folder = _written_folder([one.path for one in given], choices, cache)
        spec = write_data_set(layouts, choices, folder, cache=cache, needs_train=needs_train)
        notes = (*_notes(given), *spec.notes)
        spec = replace(spec, notes=notes, written_for=" ".join(names))

    for split in splits:
        spec.sources(split)
    listed = [note for one in given for note in _compared_with_lists(one, splits)]
    label_sources = [source for one in given for source in one.layout.label_sources]
    unread = unread_labels(label_sources)
    return replace(spec, notes=(*spec.notes, *listed, *unread))


def images_to_detect_in(spec: DataSpec, split: str, cache_dir: str = "") -> Path:
    """Return a folder, or a list, of the images of a split, as detect.py takes it as --source.

    Where the split is neither, but several or a file such as a COCO JSON, the list is written
    below the cache.
    """
    sources = spec.sources(split)
    first = sources[0]
    is_taken = first.is_dir() or format_of(first) is YOLO_TEXT
    if len(sources) == 1 and is_taken:
        return first

    paths = []
    for source in sources:
        contents = format_of(source).images(source, spec.classes_in(source))
        paths += [image.path for image in contents.images]
    folder = _written_folder(sources, Choices(), cache_folder(cache_dir))
    make_folder(folder, "--cache-dir")
    file = folder / f"{split}-images.txt"
    write_text(file, "".join(f"{path}\n" for path in paths))
    return file


def is_other_path(name: str) -> bool:
    """Whether --data is a path that is no YAML: a folder, an archive, a tool's file."""
    path = Path(name)
    if not name:
        return False  # not the current folder
    return path.is_dir() or (path.is_file() and path.suffix.lower() not in YAML_SUFFIXES)


def _all_given(names: Sequence[str], cache: Path | None, *, download: bool) -> list[Given]:
    """Return what the names given as --data are; images and labels that lie apart are one."""
    paths = [Path(os.path.abspath(name)) for name in names if is_other_path(name)]
    pair = find_pair(paths) if len(paths) == len(names) else None
    if pair is None:
        return [_given(name, cache, download=download) for name in names]

    joined = join(pair, cache or temporary_cache_folder())
    layout = recognize(joined.path)
    return [Given(pair.images, layout, unpacked=joined.given)]


def _given(name: str, cache: Path | None, *, download: bool) -> Given:
    """Return what a name given as --data is; an archive is unpacked below the cache."""
    if not is_other_path(name):
        file = find_data(name)
        return _given_yaml(file, file, download=download)

    path = Path(os.path.abspath(name))
    if is_archive(path):
        return _given_archive(path, cache or temporary_cache_folder(), download=download)
    layout = recognize(path)
    return (
        _given_yaml(path, layout.path, download=download) if layout.is_yaml else Given(path, layout)
    )


def _with_surroundings(given: Given, choices: Choices) -> Given:
    """Return what was given with the classes of a data YAML above it, and what is said of that."""
    if given.spec is not None or given.unpacked:
        return given
    has_names = bool(choices.names)
    layout, notes = with_surroundings(given.path, given.layout, has_names=has_names)
    return given._replace(layout=layout, notes=tuple(notes))


def _given_archive(path: Path, cache: Path, *, download: bool) -> Given:
    """Return what an archive has, which is unpacked below the cache.

    Raises ValueError as `recognize` and `unpacked`, with the path of the archive.
    """
    no_data_set = f"{printable(path)} has no data set"
    try:
        folder = unpacked(path, cache)
    except NoWantedFileError:
        raise ValueError(f"{no_data_set}: {contents_of_archive(path)}") from None

    try:
        layout = recognize(without_outer_folders(folder), path)
        given = Given(path, layout)
        if layout.is_yaml:
            given = _given_yaml(path, layout.path, download=download)
            _require_inside(given, folder)
    except NoDataSetError:
        raise ValueError(f"{no_data_set}: {contents_of_archive(path)}") from None
    except SeveralDataSetsError:
        raise  # with commands, which name folders that exist
    except ValueError as error:
        raise ValueError(name_as_given(str(error), {folder: str(path)})) from None
    return given._replace(unpacked={folder: str(path)})


def _require_inside(given: Given, folder: Path) -> None:
    """Raise ValueError if the YAML in an archive names data outside of it, which others may be."""
    sources = [source for group in given.layout.splits.values() for source in group]
    for source in (*sources, *given.layout.labels):
        if not source.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{printable(given.path)}: its {given.layout.path.name} names {printable(source)}, "
                "which is not in the archive: unpack it, correct the paths, and give the folder"
            )


def _given_yaml(path: Path, file: Path, *, download: bool) -> Given:
    """Return the data set of a YAML. Raises ValueError if it is only partly downloaded."""
    spec = read_data_yaml(file)
    if file.samefile(FOLDER / "shapes.yaml"):
        generate(spec.root)
    if download:
        fetch_data(spec)
    require_finished(spec)
    if path != file:
        spec = replace(spec, notes=(f"{printable(path)}: used {printable(file)}", *spec.notes))

    layout = Layout(
        "data YAML",
        spec.file,
        spec.splits,
        ClassNames(spec.names, str(spec.file)),
        labels=spec.labels,
        label_names=spec.label_names,
        keypoints=spec.keypoints,
        weights=spec.weights,
    )
    return Given(path, layout, spec)


def _compared_with_lists(given: Given, splits: Sequence[str]) -> list[str]:
    """Return what is said of the names in a data YAML or an obj.data, and of the tool's own lists.

    splits: that are read; images of train may be held out for any. Raises ValueError as
    `check_listed_names` does.
    """
    layout = given.layout
    if layout.names is None:
        return []  # they are those of the tool's own lists
    sources = list(layout.labels)
    if not sources:
        read = dict.fromkeys(("train", *splits))
        sources = [source for split in read for source in layout.splits.get(split, ())]
    names_of = {}
    for source in filter(os.path.exists, sources):
        names_of[source] = list(layout.label_names.get(source, layout.names.names))
    root = layout.root if given.spec is None else given.spec.root
    return check_listed_names(names_of, root, mixed=bool(layout.weights))


def _is_complete(spec: DataSpec, splits: Sequence[str], choices: Choices) -> bool:
    """Whether a data YAML is used as it is: nothing is held out, and no class is renamed."""
    wants_val = "val" in splits and choices.val_split > 0
    lacks_val = wants_val and not spec.val and bool(spec.train)
    return not lacks_val and not choices.merge


def _check_weights(weights: Sequence[float], names: Sequence[str]) -> None:
    """Raise ValueError for weights of --data-weights that are not allowed for these data sets."""
    if not weights:
        return
    for weight in weights:
        if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
            raise ValueError(f"--data-weights {weight:g}: {ALLOWED_WEIGHTS}")
    if len(weights) != len(names) or len(names) == 1:
        given = f"{counted(len(weights), 'weight')} for {counted(len(names), 'data set')}"
        raise ValueError(f"--data-weights: {given}: give several --data, and a weight for each")


def _check_products(layouts: Sequence[Layout]) -> None:
    """Raise ValueError if weights of --data-weights, times those of the data, are not allowed."""
    for layout in layouts:
        for source, weight in layout.weights.items():
            if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
                product = f"times the weight of {printable(source)} is {weight:g}"
                raise ValueError(f"--data-weights: {product}: {ALLOWED_WEIGHTS}")


def _require_train(spec: DataSpec | None) -> None:
    """Raise ValueError if a data YAML has no train split, or it does not exist."""
    if spec is not None:
        spec.sources("train")


def _notes(given: Sequence[Given]) -> list[str]:
    """Return what is said of the data YAMLs, and of what lies around other paths."""
    notes: list[str] = []
    for one in given:
        notes += one.notes if one.spec is None else one.spec.notes
    return notes


def _written_folder(paths: Sequence[Path], choices: Choices, cache: Path | None) -> Path:
    """Return the folder for the YAML of the data sets at these paths: below the cache.

    Without one it is below the system's temporary folder.
    """
    text = " ".join(str(path.resolve()) for path in paths)
    written_by = replace(choices, strict=False)  # which writes nothing else
    key = hashlib.sha256(f"{text} {written_by}".encode(errors="surrogateescape")).hexdigest()
    return (cache or temporary_cache_folder()) / "data" / key[:16]
