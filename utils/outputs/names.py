"""Where the files of a frame are written.

Below the run folder, a different file for each image and video.
"""

import itertools
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from utils.files.safe_names import safe_name
from utils.images.detections import Frame

# Of the run folder, which a folder of the source must not be called.
OWN_NAMES = (
    "annotations",
    "crops",
    "labels",
    "kestrel-run.txt",
    "predictions.csv",
    "predictions.json",
    "sources.csv",
)
MAX_BYTES = 180  # of one part of a path: systems allow 255, and suffixes are added


class OutputNames:
    """Gives each image and each video a path without suffix, `street/a`, that no other one has.

    known: the name of each input, and whether it is a video, if they are known before the first one
    arrives. Then the paths do not depend on the order: where several inputs would share a path, as
    `a.bmp` and `a.jpg`, all of them keep their suffix, `a.bmp` and `a.jpg`. Frames of the video
    `clip.mp4` have files called `clip_1`, `clip_2`, ..., so an image `clip_1.jpg` keeps its suffix,
    too.

    None: inputs arrive one by one. The first of `a.bmp` and `a.jpg` gets `a`, the second one keeps
    its suffix.

    reserved: names, in lower case, that no folder gets.
    """

    def __init__(
        self,
        known: Sequence[tuple[str, bool]] | None = None,
        *,
        reserved: Collection[str] = (),
    ) -> None:
        self._reserved = reserved
        # by path: the name of the frame, and whether it is of a video
        self._owners: dict[str, tuple[str, bool]] = {}
        self._folders: set[str] = set()
        self._videos: set[str] = set()
        self._numbered: set[str] = set()  # `clip` for an image `clip_1.jpg`
        self._are_known = known is not None
        self._inputs: set[str] = set()  # paths with suffix
        self._shared: set[str] = set()  # paths without suffix of several inputs
        self._expect(known or ())

    def _expect(self, known: Sequence[tuple[str, bool]]) -> None:
        """Note the inputs that will arrive."""
        count = Counter[str]()
        for name, is_video in known:
            path = path_inside(name, self._reserved).casefold()
            stem = os.path.splitext(path)[0]
            count[stem] += 1
            self._inputs.add(path)
            self._folders.update(folders_of(path))
            if is_video:
                self._videos.update((stem, path))
        self._shared = {stem for stem, number in count.items() if number > 1}

    def stem(self, frame: Frame, suffix: str = "") -> str:
        """Return the path for this frame's image or video.

        It is unique together with `suffix`, which is not added.

        >>> import numpy as np
        >>> names, image = OutputNames(), np.zeros((1, 1, 3), np.uint8)
        >>> paths = ("b/a.jpg", "b/a.png", "b/a.jpg", "../c.jpg")
        >>> [names.stem(Frame(image, "", path)) for path in paths]
        ['b/a', 'b/a.png', 'b/a', '_/c']
        >>> names = OutputNames([("a.bmp", False), ("a.jpg", False), ("b.jpg", False)])
        >>> [names.stem(Frame(image, "", name), ".txt") for name in ("a.jpg", "b.jpg", "a.bmp")]
        ['a.jpg', 'b', 'a.bmp']
        """
        return self._stem(frame, suffix, keep_suffix=False)

    def picture(self, frame: Frame, suffix: str) -> str:
        """Return the path of this image's picture, with `suffix`.

        `a.jpg` gets `a.jpg`, and no other image does. In another format `a.bmp` gets `a.jpg` only
        if it is known that no other `a` will arrive, otherwise `a.bmp.jpg`.
        """
        is_converted = not path_inside(frame.name, self._reserved).endswith(suffix)
        return self._stem(frame, suffix, keep_suffix=is_converted and not self._are_known) + suffix

    def _stem(self, frame: Frame, suffix: str, *, keep_suffix: bool) -> str:
        name = path_inside(frame.name, self._reserved)
        is_video = frame.number is not None
        owner = (frame.name, is_video)
        if any(folder in self._owners for folder in folders_of(name.casefold())):
            name = name.replace("/", "_")  # a file has the name of its folder

        without_suffix, suffix_of_name = os.path.splitext(name)
        is_shared = without_suffix.casefold() in self._shared
        must_keep_suffix = bool(suffix_of_name) and (keep_suffix or is_shared)
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        for candidate in itertools.chain((without_suffix, name), numbered):
            path = (candidate + suffix).casefold()  # some file systems ignore case
            if self._owners.get(path) == owner:
                return candidate

            is_own_name = path == name.casefold()  # the picture a.jpg of the image a.jpg
            lacks_suffix = candidate == without_suffix and not is_own_name
            if lacks_suffix and must_keep_suffix:
                continue
            if path in self._inputs and not is_own_name:  # the picture of another image
                continue
            if path in self._owners or path in self._folders:
                continue
            if self._claim(candidate.casefold(), is_video):
                self._owners[path] = owner
                self._folders.update(folders_of(path))
                return candidate
        raise AssertionError("unreachable: the numbers never end")

    def _claim(self, candidate: str, is_video: bool) -> bool:
        """Return whether a name is free, and claim it.

        It is not if a frame of a video and an image with a number at its end would share a path.
        """
        base = re.fullmatch(r"(.+)_[0-9]+", candidate, re.DOTALL)
        if is_video and candidate not in self._numbered:
            self._videos.add(candidate)
            return True
        if is_video or (base and base[1] in self._videos):
            return False
        if base:
            self._numbered.add(base[1])
        return True


def with_number(stem: str, frame: Frame) -> str:
    """Return the path for a file of this one frame.

    `clip_7` for frame 7 of a video, `a` for an image.
    """
    return stem if frame.number is None else f"{stem}_{frame.number}"


def folders_of(path: str) -> list[str]:
    """Return the folders that a relative path goes through.

    >>> folders_of("a/b/c.jpg"), folders_of("c.jpg")
    (['a', 'a/b'], [])
    """
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def path_inside(name: str, reserved: Collection[str] = ()) -> str:
    """Return a relative path that stays in its folder, the same as `name` if that is one.

    Long parts are shortened. A folder that has the name of one of the outputs' own gets another
    one, and so does any folder with a reserved name.

    >>> path_inside("street/a.jpg"), path_inside("/etc/../b.jpg"), path_inside("crops/a.jpg")
    ('street/a.jpg', 'etc/_/b.jpg', '_crops/a.jpg')
    >>> path_inside("a/Images/b.jpg", reserved=["images"])
    'a/_Images/b.jpg'
    """
    *folders, file = safe_name(name).split("/")
    parts = []
    for index, folder in enumerate(folders):
        is_own = index == 0 and folder.casefold() in OWN_NAMES
        is_reserved = folder.casefold() in reserved
        parts.append(f"_{folder}" if is_own or is_reserved else folder)
    return "/".join(map(shorten, [*parts, file]))


def shorten(part: str, max_bytes: int = MAX_BYTES) -> str:
    """Return a file name of at most this many bytes.

    A checksum and the suffix end one that was longer.
    """
    raw = os.fsencode(part)
    if len(raw) <= max_bytes:
        return part
    suffix = os.path.splitext(part)[1]
    suffix = suffix if len(suffix) <= 8 else ""
    return f"{raw[: max_bytes - 20].decode('utf-8', 'ignore')}~{zlib.crc32(raw):08x}{suffix}"


def prepare_file(folder: Path, relative: str) -> Path:
    """Return the path of a file in an existing folder, after its subfolders were created.

    The folder itself is not created: if it was removed, the write that follows says so.
    """
    file = folder / relative
    if not file.parent.is_dir() and folder.is_dir():
        file.parent.mkdir(parents=True, exist_ok=True)
    return file
