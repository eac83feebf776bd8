"""Find the images that a label file names, as tools on other machines have written the names."""

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from data.images import walk_folders
from data.report import NOTE, Problem
from utils.images.decode import is_image_name
from utils.printable import counted, printable

# What was done to a name until it was found, for the log.
FOLDERS_DROPPED = "without their folders"
DECODED = "as file names of an address"
SUFFIX_ADDED = "with the suffix of the file"
ACCENTS_COMPOSED = "with accents written in another way"
CASE_IGNORED = "with other capital letters"
FOUND_BESIDE = "in folders beside that of the file"
PREFIX_DROPPED = "without the prefix of Label Studio"

UNASSIGNED = ""  # the split of images that no folder or list puts into one
SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "trainval": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}

IMAGES = "images"  # the folder beside the file that CVAT's names are relative to
LABEL_STUDIO_PREFIX = re.compile(r"^[0-9a-f]{8}-(?=.)")
ADDRESS = re.compile(r"^(?:file:|[A-Za-z][A-Za-z0-9+.-]+:/)/*")  # a drive has one letter
LOCAL_FILE = re.compile(r"/local-files/\?(?:.*&)?d=([^&]*)")  # of Label Studio
DRIVE = re.compile(r"^/*[A-Za-z]:")


def split_of_path(parts: Iterable[str]) -> str:
    """Return the split that a folder or a file name of a path names, UNASSIGNED if none does.

    >>> split_of_path(["valid", "images"]), split_of_path(["instances_train2017.json"])
    ('val', 'train')
    >>> split_of_path(["photos"])
    ''
    """
    for part in parts:
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in SPLIT_WORDS:
                return SPLIT_WORDS[word]
    return UNASSIGNED


class AmbiguousImageError(ValueError):
    """A name fits several images. The message names two of them."""


class _Found(NamedTuple):
    path: str
    right_folders: int  # how many of the last folders in the name are right
    # how many words of the label file's name told which of several images it is; 0 for a single one
    telling_words: int
    rules: list[str]  # by which it was found


class ImageFinder:
    """Finds images by the names that a label file gives them.

    A name that is the path of an image as it stands means that image, wherever it lies, as in a
    list of images; also one in the folder `images` beside the file, as CVAT writes them. Otherwise
    only images in the folder of the label file and its subfolders are found, or, if there are none,
    those beside it: `..` in a name leads nowhere. An image in a folder of another split than the
    name, or the label file, has is none: tools number the images of each split.

    `rules` counts how names were found that are not the path of a file as they stand.
    """

    def __init__(self, label_file: Path) -> None:
        self.label_file = label_file
        self.folder = label_file.parent
        self.label_words = _words(label_file.stem)
        self.rules: Counter[str] = Counter()
        self._in_folder: set[str] = set()  # names that were found in a folder that they name
        self._elsewhere: set[str] = set()  # names with folders, of which none is right
        self._path_of: dict[str, str] = {}  # of names without folders
        self._telling_words = 0  # the most that told which of several images a name meant

    def find(self, name: str) -> str | None:
        """Return the path of the image with this name, or None if there is none.

        A name may be a relative path, an absolute one, also of Windows, or an address; its folders
        and the case of its letters need not be right, and it may lack its suffix. Raises
        AmbiguousImageError if it fits several images.
        """
        if "\0" in name:
            return None
        for folder in (self.folder, self.folder / IMAGES):
            direct = os.path.abspath(os.path.join(folder, name))
            if is_image_name(direct) and os.path.isfile(direct):
                if os.path.dirname(name):
                    self._in_folder.add(name)
                return direct

        # The reading of which most folders are right, the first of several.
        best: _Found | None = None
        has_folders = False
        for plain, rules in _readings(name):
            parts = [part for part in plain.split("/") if part not in ("", ".")]
            found = self._find_reading(parts, rules) if parts else None
            if found and (best is None or found.right_folders > best.right_folders):
                best = found
                has_folders = len(parts) > 1
        if best is None:
            return None

        self.rules.update(best.rules)
        if has_folders:
            (self._in_folder if best.right_folders else self._elsewhere).add(name)
        else:
            self._path_of[name] = best.path
        self._telling_words = max(self._telling_words, best.telling_words)
        return best.path

    def is_doubtful(self, name: str) -> bool:
        """Whether a name was found in another folder than the names of other images say.

        To be asked when all names were looked for. Folders are right in all names, or in none: the
        image may be one of the same name in place of one that is missing. So may one without
        folders, if the name of the label file told where others lie, as day.csv in day/, and not
        here.
        """
        if self._telling_words and name in self._path_of:
            return self._label_words_in(self._path_of[name]) < self._telling_words
        return self.is_elsewhere(name) and bool(self._in_folder)

    def is_elsewhere(self, name: str) -> bool:
        """Whether a name was found in a folder that it does not name."""
        return name in self._elsewhere

    def notes(self) -> list[Problem]:
        """Return a note for each rule by which names were found."""
        where = printable(self.label_file)
        notes = []
        for rule, count in self.rules.most_common():
            reason = f"{counted(count, 'image name')} found {rule}"
            notes.append(Problem(NOTE, where, reason))
        return notes

    def _find_reading(self, parts: list[str], rules: list[str]) -> _Found | None:
        """Return the image that these parts of a name mean, also without a prefix of a tool."""
        found = self._find_parts(parts, rules)
        without_prefix = LABEL_STUDIO_PREFIX.sub("", parts[-1])
        if found is None and without_prefix != parts[-1]:
            found = self._find_parts([without_prefix], [*rules, PREFIX_DROPPED])
        return found

    def _find_parts(self, parts: list[str], rules: list[str]) -> _Found | None:
        """Return the image whose path ends with most of these parts."""
        name = parts[-1]
        wanted = [name_key(part) for part in parts[:-1]]
        candidates = self._candidates(name_key(name), wanted)
        if not candidates and not is_image_name(name):
            candidates = self._by_stem.get(name_key(name), [])
            rules = [*rules, SUFFIX_ADDED]
        candidates = [path for path in candidates if not self._is_of_other_split(path, wanted)]
        if not candidates:
            return None

        # The candidates that agree with most of the folders in the name.
        agreements = [_common_end(_folders(path), wanted) for path in candidates]
        most = max(agreements)
        best = [path for path, n in zip(candidates, agreements, strict=True) if n == most]
        path = self._only(best, name)
        telling_words = self._label_words_in(path) if len(best) > 1 else 0

        if not self._inside:
            rules = [*rules, FOUND_BESIDE]
        if most < len(wanted):
            rules = [*rules, FOLDERS_DROPPED]
        rules = [*rules, *_spelling_rules(name, os.path.basename(path))]
        return _Found(path, most, telling_words, rules)

    def _is_of_other_split(self, path: str, wanted: list[str]) -> bool:
        """Whether the folders of an image name another split than those of a name, or this file.

        The file's own counts only where images lie in folders of that split: train.csv and val.csv
        may divide one folder, as may that of trainval.
        """
        split = split_of_path(reversed(wanted))
        if not split and "trainval" not in self.label_words:
            split = split_of_path([self.label_file.stem])
            split = split if split in self._split_of_folder.values() else UNASSIGNED
        own = self._split_of_folder[os.path.dirname(path)]
        return bool(split) and own not in (split, UNASSIGNED)

    @cached_property
    def _split_of_folder(self) -> dict[str, str]:
        splits = {}
        for folder in set(map(os.path.dirname, self.images)):
            inside = os.path.relpath(folder, self.folder.parent)
            splits[folder] = split_of_path(reversed(inside.split(os.sep)))
        return splits

    def _candidates(self, key: str, wanted: list[str]) -> list[str]:
        """Return the images with a name: those in a folder of the right name, or else all."""
        if wanted:
            in_folder = self._by_folder_and_name.get((wanted[-1], key))
            if in_folder:
                return in_folder
        return self._by_name.get(key, [])

    def _only(self, paths: list[str], name: str) -> str:
        """Return the only path, or of several that with the same capital letters as `name`.

        Of several of these, the one whose folders have most words of the label file's name, as
        train/ for boxes_train.csv. Raises AmbiguousImageError if that is not one either.
        """
        if len(paths) > 1:
            same_case = [path for path in paths if os.path.basename(path) == name]
            paths = same_case or paths
        if len(paths) > 1:
            counts = [self._label_words_in(path) for path in paths]
            most = max(counts)
            paths = [path for path, count in zip(paths, counts, strict=True) if count == most]
        if len(paths) > 1:
            raise AmbiguousImageError(f"fits both {printable(paths[0])} and {printable(paths[1])}")
        return paths[0]

    def _label_words_in(self, path: str) -> int:
        """Return how many words of the label file's name the folders of an image have."""
        inside = os.path.relpath(os.path.dirname(path), self.folder)
        return len(self.label_words & _words(inside))

    @cached_property
    def images(self) -> list[str]:
        """The paths of all images that names may mean, in the order of the file system."""
        return self._inside or _images_of(self.folder.parent)

    @cached_property
    def _inside(self) -> list[str]:
        return _images_of(self.folder)

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        return _grouped(self.images, os.path.basename)

    @cached_property
    def _by_stem(self) -> dict[str, list[str]]:
        return _grouped(self.images, lambda path: os.path.splitext(os.path.basename(path))[0])

    @cached_property
    def _by_folder_and_name(self) -> dict[tuple[str, str], list[str]]:
        groups = defaultdict(list)
        for path in self.images:
            folder, name = path.split(os.sep)[-2:]
            groups[name_key(folder), name_key(name)].append(path)
        return dict(groups)


def _images_of(folder: Path) -> list[str]:
    images = []
    for parent, names in walk_folders(folder):
        images += [os.path.join(parent, name) for name in names if is_image_name(name)]
    return images


def _grouped(paths: list[str], name_of: Callable[[str], str]) -> dict[str, list[str]]:
    groups = defaultdict(list)
    for path in paths:
        groups[name_key(name_of(path))].append(path)
    return dict(groups)


def name_key(name: str) -> str:
    """Return what two spellings of a name have in common: its letters, without their case.

    Composed and decomposed accents (NFC and NFD, as macOS writes them) are the same.
    """
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _spelling_rules(name: str, file_name: str) -> list[str]:
    """Return how the name in a label file differs from that of the file, apart from a suffix."""
    if not is_image_name(name):
        file_name = os.path.splitext(file_name)[0]
    if name == file_name:
        return []
    composed = unicodedata.normalize("NFC", name)
    if composed == unicodedata.normalize("NFC", file_name):
        return [ACCENTS_COMPOSED]
    return [CASE_IGNORED]


def _readings(name: str) -> list[tuple[str, list[str]]]:
    """Return what a name may mean, as paths with slashes, each with the rules that it needs.

    >>> _readings("file:///C:/my%20photos/a.jpg")
    [('my photos/a.jpg', ['as file names of an address']), ('my%20photos/a.jpg', [])]
    >>> _readings("images\\\\x.jpg")
    [('images/x.jpg', [])]
    >>> _readings("/data/local-files/?d=set%2Fx.jpg")[0]
    ('set/x.jpg', ['as file names of an address'])
    """
    plain = name.replace("\\", "/")
    is_address = ADDRESS.match(plain) is not None
    local_file = LOCAL_FILE.search(plain)
    if local_file:
        address = local_file[1]
    elif is_address:
        address = plain.partition("?")[0]
    else:
        address = plain

    as_written: tuple[str, list[str]] = (_relative(plain), [])
    decoded = (_relative(unquote(address)), [DECODED])
    if decoded[0] == as_written[0]:
        return [as_written]
    return [decoded, as_written] if is_address or local_file else [as_written, decoded]


def _relative(path: str) -> str:
    """Return a path without what is in front of its folders: an address's scheme, a drive.

    >>> _relative("s3://bucket/a.jpg"), _relative("/C:/a.jpg"), _relative("//server/a.jpg")
    ('bucket/a.jpg', 'a.jpg', 'server/a.jpg')
    """
    return DRIVE.sub("", ADDRESS.sub("", path)).lstrip("/")


def _words(text: str) -> set[str]:
    """Return the words of a name, in lower case.

    >>> sorted(_words("instances_train2017"))
    ['instances', 'train']
    """
    return {word for word in re.split(r"[^a-z]+", text.lower()) if word}


def _folders(path: str) -> list[str]:
    return [name_key(part) for part in path.split(os.sep)[:-1]]


def _common_end(folders: list[str], wanted: list[str]) -> int:
    """Return how many of the last parts of two paths are the same.

    >>> _common_end(["home", "images", "train"], ["data", "images", "train"])
    2
    """
    count = 0
    for own, other in zip(reversed(folders), reversed(wanted), strict=False):
        if own != other:
            break
        count += 1
    return count
