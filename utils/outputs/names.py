"""Where the files of a frame are written: below the run folder, a different file for each image and video."""

import itertools
import os
import re
import zlib
from pathlib import Path

from utils.files.safe_names import safe_name
from utils.images.detections import Frame

OWN_FOLDERS = ("crops", "labels")  # of the run folder
MAX_BYTES = 180  # of one part of a path: systems allow 255, and suffixes are added


class OutputNames:
    """Gives each image and each video a path without suffix, `street/a`, that no other one has.

    The first of `a.jpg` and `a.png` gets `a`, the second one `a.png`. Frames of the video `clip.mp4` have files called
    `clip_1`, `clip_2`, ..., so an image `clip_1.jpg` gets `clip_1.jpg` if the video came first.
    """

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, bool]] = {}  # by path: the name of the frame, and whether it is of a video
        self._folders: set[str] = set()
        self._videos: set[str] = set()
        self._numbered: set[str] = set()  # `clip` for an image `clip_1.jpg`

    def stem(self, frame: Frame, suffix: str = "") -> str:
        """The path for this frame's image or video; it is unique together with `suffix`, which is not added.

        >>> import numpy as np
        >>> names, image = OutputNames(), np.zeros((1, 1, 3), np.uint8)
        >>> [names.stem(Frame(image, "", name)) for name in ("b/a.jpg", "b/a.png", "b/a.jpg", "../c.jpg")]
        ['b/a', 'b/a.png', 'b/a', '_/c']
        """
        name, owner = path_inside(frame.name), (frame.name, frame.number is not None)
        if any(folder in self._owners for folder in folders_of(name.casefold())):
            name = name.replace("/", "_")  # a file has the name of its folder
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        for candidate in itertools.chain((os.path.splitext(name)[0], name), numbered):
            path = (candidate + suffix).casefold()  # some file systems ignore case
            if self._owners.get(path) == owner:
                break
            if path not in self._owners and path not in self._folders and self._claim(candidate.casefold(), owner[1]):
                self._owners[path] = owner
                self._folders.update(folders_of(path))
                break
        return candidate

    def _claim(self, candidate: str, is_video: bool) -> bool:
        """Whether the numbered frames of a video and an image with a number at its end do not share a path."""
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
    """The path for a file of this one frame: `clip_7` for frame 7 of a video, `a` for an image."""
    return stem if frame.number is None else f"{stem}_{frame.number}"


def folders_of(path: str) -> list[str]:
    """The folders that a relative path goes through.

    >>> folders_of("a/b/c.jpg"), folders_of("c.jpg")
    (['a', 'a/b'], [])
    """
    parts = path.split("/")[:-1]
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def path_inside(name: str) -> str:
    """A relative path that stays in its folder, the same as `name` if that is one. Long parts are shortened.

    A folder that has the name of one of the outputs' own gets another one.

    >>> path_inside("street/a.jpg"), path_inside("/etc/../b.jpg"), path_inside("crops/a.jpg")
    ('street/a.jpg', 'etc/_/b.jpg', '_crops/a.jpg')
    """
    parts = safe_name(name).split("/")
    if len(parts) > 1 and parts[0].casefold() in OWN_FOLDERS:
        parts[0] = f"_{parts[0]}"
    return "/".join(map(shorten, parts))


def shorten(part: str) -> str:
    """A file name of at most MAX_BYTES bytes; a checksum and the suffix end one that was longer."""
    raw = os.fsencode(part)
    if len(raw) <= MAX_BYTES:
        return part
    suffix = os.path.splitext(part)[1]
    suffix = suffix if len(suffix) <= 8 else ""
    return f"{raw[: MAX_BYTES - 20].decode('utf-8', 'ignore')}~{zlib.crc32(raw):08x}{suffix}"


def prepare_file(folder: Path, relative: str) -> Path:
    """The path of a file in an existing folder, after its subfolders were created.

    The folder itself is not created: if it was removed, the write that follows says so.
    """
    file = folder / relative
    if not file.parent.is_dir() and folder.is_dir():
        file.parent.mkdir(parents=True, exist_ok=True)
    return file
