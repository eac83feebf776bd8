"""Read the data YAML: the paths of each split, the class names and the download URLs."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from utils.files.download import DownloadSource, check_url
from utils.files.yaml_tree import is_absent, pairs, read_tree, where
from utils.printable import counted, did_you_mean, excerpt, printable

ALLOWED_KEYS = (
    "path",
    "train",
    "val",
    "test",
    "labels",
    "names",
    "nc",
    "merge",
    "label_names",
    "kpt_shape",
    "download",
)
# keys of others
MEANT = {"validation": "val", "dev": "val", "classes": "names", "num_classes": "nc", "root": "path"}
# of Roboflow's exports: where the data set comes from; of keypoints: their mirror images
IGNORED_KEYS = ("roboflow", "flip_idx")
# Keys that say nothing about which images, boxes and classes there are: the log names them.
FOREIGN_KEYS = (
    *("author", "channels", "colors", "contributor", "creator", "date", "description", "info"),
    *("kpt_names", "license", "licenses", "maintainer", "skeleton", "source", "task", "url"),
    *("version", "year"),
)
WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/].*|\\\\.*")
SPLITS = ("train", "val", "test")
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0  # of a path of the train split
ALLOWED_WEIGHTS = f"choose a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}"
FOLDER = Path(__file__).parent  # of the YAMLs that Kestrel has
MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class DataSpec:
    """A parsed and checked data YAML.

    `train`, `val`, `test`: paths of folders, lists and files that list images. `labels`: the files
    or folders that have the labels of all splits, if these are lists of images; otherwise empty.
    `weights`: of the paths of `train` whose images an epoch draws more or less often than once.
    `names`: of the classes that are trained. `label_names`: for each source whose labels have other
    ones, the name of each of its classes, in the order of their numbers, and the one it becomes.
    """

    file: Path
    root: Path
    train: tuple[Path, ...] | None
    val: tuple[Path, ...] | None
    test: tuple[Path, ...] | None
    names: tuple[str, ...]
    labels: tuple[Path, ...] = ()
    weights: Mapping[Path, float] = field(default_factory=dict)
    label_names: Mapping[Path, Mapping[str, str]] = field(default_factory=dict)
    keypoints: tuple[int, int] | None = None  # number and dimensions of those after each box
    download: tuple[DownloadSource, ...] = ()
    # why the `download` entry cannot be used; "" if it can be used or is absent
    download_error: str = ""
    notes: tuple[str, ...] = ()  # for the log: values that were not taken as written
    # what --data named, if the YAML was written for it, into the cache: a run keeps a copy
    written_for: str = ""
    # folders below the cache, and what the user gave for each, such as an archive, for messages
    unpacked: Mapping[Path, str] = field(default_factory=dict)

    @property
    def is_written(self) -> bool:
        """Whether no user has written the YAML."""
        return bool(self.written_for)

    @property
    def title(self) -> str:
        """What messages call the data set: the YAML, or what --data named, ready to print."""
        return self.as_given(printable(self.written_for or self.file))

    def as_given(self, text: str) -> str:
        """Return a message with the archives that the user gave, not the folders of their files."""
        return name_as_given(text, self.unpacked)

    @property
    def splits(self) -> dict[str, tuple[Path, ...]]:
        """The paths of each split that the YAML has, in the order of SPLITS."""
        paths_of = {"train": self.train, "val": self.val, "test": self.test}
        return {split: paths for split, paths in paths_of.items() if paths is not None}

    def classes_in(self, source: Path) -> list[str]:
        """Return the classes of a source's labels, in the order of their numbers."""
        return list(self.label_names.get(source, self.names))

    def sources(self, split: str) -> tuple[Path, ...]:
        """Return the paths of `split`.

        Raises ValueError if the YAML has no such split or a path does not exist.
        """
        if split not in SPLITS:
            raise ValueError(f"split is '{excerpt(split)}', allowed are {', '.join(SPLITS)}")

        paths = self.splits.get(split)
        if paths is None:
            known = ", ".join(self.splits) or "no split"
            raise ValueError(f"{self.title} has no '{split}' (it has: {known})")

        for key, sources in ((split, paths), ("labels", self.labels)):
            for path in sources:
                if not os.path.exists(path):
                    raise ValueError(self._missing(key, path))
        return paths

    def _missing(self, key: str, path: Path) -> str:
        """Return what is said of a path that does not exist."""
        hint = self._where_else(path)
        if self.download and not self.sources_exist():
            hint = f"; --download would fetch {', '.join(map(str, self.download[:3]))}"
        return f"{self.title}: '{key}' is {printable(path)}, which does not exist{hint}"

    def _where_else(self, path: Path) -> str:
        """Return what is said of a path that does not exist: where its data may be."""
        beside = self.file.parent / os.path.relpath(path, self.root)
        if beside != path and os.path.exists(beside):
            exists = f"{printable(beside)} exists: remove 'path' from the YAML, or correct it"
            return f"{_of_windows('path', self.root, self.file.parent)}; {exists}"
        if self.file.parent == FOLDER:
            return "; the first lines of that file say where to get the data"
        if self.labels:
            return "; if the data were moved, give their new path as --data"
        if os.path.exists(self.root):
            return _of_windows("", path, self.root)
        of_windows = _of_windows("path", self.root, self.file.parent)
        return of_windows or f"; 'path' is {printable(self.root)}, which does not exist either"

    def needed(self) -> tuple[Path, ...]:
        """Return the paths of the train and val splits, or else those of the test split."""
        return (*(self.train or ()), *(self.val or ())) or self.test or ()

    def sources_exist(self) -> bool:
        """Whether all paths that `needed` returns exist."""
        return all(os.path.exists(path) for path in self.needed())


def _of_windows(key: str, path: Path, folder: Path) -> str:
    """Return what is said of a path of Windows below a folder, "" for any other.

    key: that has it, "" if it is the path that is spoken of.
    """
    text = os.path.relpath(path, folder)
    if os.name == "nt" or not WINDOWS_PATH.fullmatch(text):
        return ""
    subject = f"'{key}'" if key else "it"
    return f"; {subject} is {printable(text)}, a path of Windows: write where the data are here"


def name_as_given(text: str, unpacked: Mapping[Path, str]) -> str:
    """Return a message that names what the user gave in place of folders below the cache.

    >>> name_as_given("/cache/a-1/x.txt line 1", {Path("/cache/a-1"): "/photos/a.zip"})
    '/photos/a.zip/x.txt line 1'
    """
    for folder, archive in unpacked.items():
        text = text.replace(printable(folder), printable(archive))
    return text


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


def find_yaml(name: str | Path, folder: Path, what: str = "file") -> Path:
    """Return the path `name` as given, or else `name` in `folder`, a bare name also without .yaml.

    Raises ValueError with both paths and the files of the folder if none exists.
    """
    given = Path(name)
    inside = folder / name
    for candidate in (given, inside):
        if os.path.isfile(candidate):
            return candidate
    if str(name) and os.path.isdir(given):
        raise ValueError(f"{printable(given)} is a folder: give a {what} YAML file")

    with_suffix = folder / f"{name}.yaml"
    if given.name == str(name) and os.path.isfile(with_suffix):
        return with_suffix

    first, second = (printable(os.path.abspath(path)) for path in (given, inside))
    if not str(name):
        missing = "the name is empty"
    elif first == second:
        missing = f"{first} does not exist"
    else:
        missing = f"neither {first} nor {second} exists"
    known = ", ".join(sorted(printable(file.name) for file in folder.glob("*.yaml")))
    hint = f". Files in {folder.name}/: {known}" if known else ""
    raise ValueError(f"no {what} {excerpt(str(name), 300)}: {missing}{hint}")


def read_data_yaml(file: str | Path) -> DataSpec:
    """Read the data YAML `file`.

    Every value is taken literally (`no` and `007` stay as written).

    `path` is relative to the folder of the YAML, which is also its default; the splits are relative
    to `path`. If there is no such folder, but one relative to the current folder, that one is used,
    as YOLOv5 does. `~` at the start is the home folder. A `../x` that does not exist is read as `x`
    if that exists: Roboflow's exports say `../train/images` for the folder `train/images` beside
    the YAML. Raises ValueError with the file and, where possible, the line.
    """
    file = Path(os.path.abspath(file))
    notes: list[str] = []
    entries = _entries(file, notes)
    names = _names(file, entries.get("names"))
    _check_class_count(file, entries.get("nc"), names)
    renamed = _merge(file, entries.get("merge"), names)

    # The folder, and the paths in it.
    root = _root(file, entries.get("path"), notes)
    train, val, test, labels = [
        _split(root, file, key, entries.get(key)) for key in (*SPLITS, "labels")
    ]
    moved = [text for split in (train, val, test, labels) for text in split.moved]
    if moved:
        notes.append(
            f"{printable(file)}: {', '.join(moved)} not found: used without ../ in "
            f"{printable(root)}"
        )

    # The classes as the labels name them.
    label_names = _label_names(root, file, entries.get("label_names"), names)
    if renamed:
        sources = {path for split in (train, val, test, labels) for path in split.paths or ()}
        own_names = label_names  # of sources whose labels have other classes
        label_names = {}
        for path in sorted(sources):
            kept = own_names.get(path)
            label_names[path] = renamed
            if kept is not None:
                label_names[path] = {old: renamed[name] for old, name in kept.items()}
        names = distinct(renamed.values())

    download, download_error = _download(file, entries.get("download"))
    return DataSpec(
        file=file,
        root=root,
        train=train.paths,
        val=val.paths,
        test=test.paths,
        names=names,
        labels=labels.paths or (),
        weights=train.weights,  # the others have none
        label_names=label_names,
        keypoints=_keypoints(file, entries.get("kpt_shape")),
        download=download,
        download_error=download_error,
        notes=tuple(notes),
    )


def _entries(file: Path, notes: list[str]) -> dict[str, Node]:
    """Return the top-level values by key as YAML nodes, which hold the text and its line.

    Keys of other programs are left out, and noted.
    """
    document = read_tree(file, file, "data YAML", MAX_BYTES)
    if not isinstance(document, MappingNode):
        raise ValueError(
            f"{printable(file)} is not a data YAML: it must be a mapping with "
            f"{', '.join(ALLOWED_KEYS)}"
        )

    entries = {}
    foreign = []
    for key, value in pairs(document, file, "the file"):
        if key in IGNORED_KEYS:
            continue
        if key in FOREIGN_KEYS:
            foreign.append(key)
            continue
        if key not in ALLOWED_KEYS:
            problem = f"unknown key '{excerpt(key)}', allowed are {', '.join(ALLOWED_KEYS)}"
            hint = did_you_mean(MEANT.get(key.lower(), key), ALLOWED_KEYS)
            raise ValueError(f"{where(file, value)}: {problem}{hint}")
        entries[key] = value
    if foreign:
        notes.append(f"{printable(file)}: keys of other programs, not used: {', '.join(foreign)}")
    return entries


def _root(file: Path, node: Node | None, notes: list[str]) -> Path:
    """Return the folder that the splits are relative to.

    It is noted if it is relative to the current folder.
    """
    if node is None or is_absent(node):
        return file.parent
    root = _join(file.parent, file, "path", node)
    here = _join(Path.cwd(), file, "path", node)
    if here == root or os.path.exists(root) or not os.path.isdir(here):
        return root
    notes.append(
        f"{printable(file)}: {printable(root)} not found: used {printable(here)}, from the current "
        "folder"
    )
    return here


def _text(file: Path, key: str, node: Node) -> str:
    if not isinstance(node, ScalarNode) or not node.value:
        raise ValueError(f"{where(file, node)}: '{key}' must be text and not empty")
    return node.value


def _join(root: Path, file: Path, key: str, node: Node) -> Path:
    text = _text(file, key, node)
    if "\0" in text:
        raise ValueError(
            f"{where(file, node)}: '{key}' contains a NUL character, which is not allowed in a path"
        )
    path = os.path.join(root, text)
    if "\\" in text and not os.path.exists(path):
        with_slashes = os.path.join(root, text.replace("\\", "/"))
        path = with_slashes if os.path.exists(with_slashes) else path
    if text.startswith("~") and not os.path.lexists(path):  # the home folder, as a shell reads it
        path = os.path.join(root, os.path.expanduser(text))
    return Path(os.path.abspath(path))


class SplitPaths(NamedTuple):
    """The paths of a split, None if the YAML has none.

    moved: those that are read without their leading `../`, as written. weights: those other than 1
    that are given with a path.
    """

    paths: tuple[Path, ...] | None
    moved: list[str]
    weights: dict[Path, float]


def _split(root: Path, file: Path, key: str, node: Node | None) -> SplitPaths:
    """Return the paths of a split.

    Args:
        root: the folder that the paths are relative to.
        file: the YAML.
        key: the name of the split.
        node: its value.
    """
    if node is None or is_absent(node):
        return SplitPaths(None, [], {})
    if isinstance(node, MappingNode) or (isinstance(node, SequenceNode) and not node.value):
        raise ValueError(
            f"{where(file, node)}: '{key}' must be a folder, a .txt list, a COCO .json, or a list "
            "of these, in 'train' also with weights as {path: a, weight: 2}"
        )

    entries = node.value if isinstance(node, SequenceNode) else [node]
    weight_of: dict[Path, float] = {}
    moved = []
    paths = []
    for given in entries:
        entry, weight = _weighted(file, key, given)
        path = _join(root, file, key, entry)
        text = _text(file, key, entry)

        # A path that begins with ../ and does not exist may lie inside the root.
        inside = Path(os.path.abspath(os.path.join(root, text.removeprefix("../"))))
        if text.startswith("../") and os.path.exists(inside) and not os.path.exists(path):
            moved.append(printable(text))
            path = inside
        if weight_of.setdefault(path, weight) != weight:
            problem = f"'{key}' lists {printable(text)} twice, with different weights"
            raise ValueError(f"{where(file, entry)}: {problem}")
        paths.append(path)
    weights = {path: weight for path, weight in weight_of.items() if weight != 1}
    return SplitPaths(tuple(paths), moved, weights)


def _weighted(file: Path, key: str, node: Node) -> tuple[Node, float]:
    """Return the path of an entry of a split, as a node, and its weight: 1 if it is a path only.

    Raises ValueError if it is neither a path nor a mapping of `path` and `weight`, or a weight is
    not for the train split.
    """
    if not isinstance(node, MappingNode):
        return node, 1.0
    given = dict(pairs(node, file, f"'{key}'"))
    if given.keys() != {"path", "weight"}:
        keys = excerpt(", ".join(given))
        raise ValueError(
            f"{where(file, node)}: '{key}' has an entry with the keys '{keys}', it must have path "
            "and weight"
        )
    if key != "train":
        raise ValueError(f"{where(file, node)}: '{key}' has weights, which only 'train' may have")
    return given["path"], _weight(file, given["weight"])


def _weight(file: Path, node: Node) -> float:
    """Return a weight. Raises ValueError if it is not a number that is allowed."""
    text = node.value if isinstance(node, ScalarNode) else ""
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"{where(file, node)}: 'weight' is '{excerpt(text)}': {ALLOWED_WEIGHTS}")
    return weight


def _names(file: Path, node: Node | None) -> tuple[str, ...]:
    """Return the class names. Raises ValueError if there are none, or two are equal."""
    if node is None:
        raise ValueError(
            f"{printable(file)} has no 'names': a list of class names, or a mapping from 0, 1, ... "
            "to names"
        )

    if isinstance(node, SequenceNode):
        entries = node.value
    elif isinstance(node, MappingNode):
        entries = _in_order_of_id(file, node)
    else:
        raise ValueError(
            f"{where(file, node)}: 'names' must be a list, or a mapping from 0, 1, ... to names"
        )
    if not entries:
        raise ValueError(f"{where(file, node)}: 'names' is empty; it must name at least one class")

    names = tuple(_text(file, "names", entry) for entry in entries)
    first_id: dict[str, int] = {}
    for index, name in enumerate(names):
        first = first_id.setdefault(name, index)
        if first != index:
            raise ValueError(
                f"{where(file, entries[index])}: classes {first} and {index} are both "
                f"'{excerpt(name)}'"
            )
    return names


def _in_order_of_id(file: Path, mapping: MappingNode) -> list[Node]:
    """Return the values of a mapping from 0, 1, 2, ... Raises ValueError for other keys."""
    by_id: dict[int, Node] = {}
    for key, value in pairs(mapping, file, "'names'"):
        index = _whole_number(key)
        if index is None or index in by_id:
            problem = f"class id '{excerpt(key)}' in 'names'; the ids must be 0, 1, 2, ..."
            raise ValueError(f"{where(file, value)}: {problem}")
        by_id[index] = value

    for index in range(len(by_id)):
        if index not in by_id:
            last = excerpt(str(max(by_id)))
            problem = (
                f"'names' has {len(by_id)} names up to id {last}, but none for {index}; "
                "the ids must be 0, 1, 2, ..."
            )
            raise ValueError(f"{where(file, mapping)}: {problem}")
    return [by_id[index] for index in range(len(by_id))]


def _whole_number(text: str) -> int | None:
    """Return the value of 1 to 9 ASCII digits, or None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if is_number else None


def _check_class_count(file: Path, node: Node | None, names: tuple[str, ...]) -> None:
    """Raise ValueError if `nc` is given and is not the number of names."""
    if node is None or is_absent(node):
        return
    if not isinstance(node, ScalarNode) or _whole_number(node.value) != len(names):
        got = excerpt(node.value) if isinstance(node, ScalarNode) else "not a number"
        raise ValueError(
            f"{where(file, node)}: 'nc' is {got}, but 'names' has {counted(len(names), 'class')}"
        )


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without repetitions, in their order.

    >>> distinct(["cat", "dog", "cat"])
    ('cat', 'dog')
    """
    return tuple(dict.fromkeys(names))


def _merge(file: Path, node: Node | None, names: tuple[str, ...]) -> dict[str, str]:
    """Return the name that each class becomes by `merge`; nothing without it.

    Raises ValueError if it renames a class that is not in `names`.
    """
    if node is None or is_absent(node):
        return {}
    if not isinstance(node, MappingNode):
        raise ValueError(f"{where(file, node)}: 'merge' must be a mapping from old to new names")
    new_name = {name: name for name in names}
    for old, new in pairs(node, file, "'merge'"):
        if old not in new_name:
            problem = f"'merge' renames '{excerpt(old)}', which is not in 'names'"
            raise ValueError(f"{where(file, new)}: {problem}{did_you_mean(old, names)}")
        new_name[old] = _text(file, "merge", new)
    return new_name


def _label_names(
    root: Path, file: Path, node: Node | None, names: tuple[str, ...]
) -> dict[Path, dict[str, str]]:
    """Return the classes of the labels of some sources, and what each becomes.

    Raises ValueError if that is not in `names`.
    """
    if node is None or is_absent(node):
        return {}
    allowed = "'label_names' must be a mapping from sources to mappings from old to new names"
    if not isinstance(node, MappingNode):
        raise ValueError(f"{where(file, node)}: {allowed}")

    of_source = {}
    for source, classes in pairs(node, file, "'label_names'"):
        if not isinstance(classes, MappingNode) or not classes.value:
            raise ValueError(f"{where(file, classes)}: {allowed}")
        new_name = {}
        for old, new in pairs(classes, file, "'label_names'"):
            new_name[old] = _text(file, "label_names", new)
            if new_name[old] not in names:
                problem = f"'{excerpt(new_name[old])}' is not in 'names'"
                raise ValueError(f"{where(file, new)}: {problem}")
        of_source[Path(os.path.abspath(root / source))] = new_name
    return of_source


def _keypoints(file: Path, node: Node | None) -> tuple[int, int] | None:
    """Return the number of keypoints and their dimensions, None without `kpt_shape`."""
    if node is None or is_absent(node):
        return None
    entries = node.value if isinstance(node, SequenceNode) else []
    values = [_whole_number(entry.value) for entry in entries if isinstance(entry, ScalarNode)]
    if len(values) != 2 or not values[0] or values[1] not in (2, 3):
        raise ValueError(
            f"{where(file, node)}: 'kpt_shape' must be [number of keypoints, 2 or 3], as [17, 3]"
        )
    return values[0], values[1]


def _download(file: Path, node: Node | None) -> tuple[tuple[DownloadSource, ...], str]:
    """Return the `download` entry and "", or nothing and its error.

    Existing data can still be used without it.
    """
    if node is None or is_absent(node):
        return (), ""
    entries = node.value if isinstance(node, SequenceNode) else [node]
    try:
        return tuple(_source(file, entry) for entry in entries), ""
    except ValueError as error:
        return (), str(error)


def _source(file: Path, node: Node) -> DownloadSource:
    """Return the source given by a URL, or by a mapping of `url` and `sha256`."""
    given = {"url": node}
    if isinstance(node, MappingNode):
        given = dict(pairs(node, file, "'download'"))
    if not {"url"} <= given.keys() <= {"url", "sha256"}:
        keys = excerpt(", ".join(given))
        raise ValueError(
            f"{where(file, node)}: 'download' has the keys '{keys}', allowed are url and sha256"
        )

    url = _text(file, "download", given["url"])
    digest = _text(file, "sha256", given["sha256"]) if "sha256" in given else ""
    try:
        check_url(url)
    except ValueError as error:
        raise ValueError(f"{where(file, node)}: 'download' is '{excerpt(url)}': {error}") from None
    if digest and not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise ValueError(
            f"{where(file, node)}: 'sha256' is '{excerpt(digest, 64)}', not 64 hexadecimal digits"
        )
    return DownloadSource(url, digest.lower())
