"""Names of frames: safe relative paths, different for different inputs."""

import os
from pathlib import PurePath

from utils.files.safe_names import safe_name


class FrameNames:
    """Gives each input a name that no other one has, such as `street/a.jpg`.

    The same input keeps its name. Two names differ in more than case, because some file systems do
    not tell `A.jpg` from `a.jpg`.
    """

    def __init__(self) -> None:
        self._name_of: dict[str, str] = {}
        self._used: set[str] = set()
        # by wanted name, so that many equal names take no quadratic time
        self._last_number: dict[str, int] = {}

    def name(self, path: str, wanted: str) -> str:
        """Return the name for the input at `path`: `wanted` made safe.

        It gets -2, -3, ... if another input has it.

        >>> names = FrameNames()
        >>> [names.name(path, "a.jpg") for path in ("/x/a.jpg", "/y/a.jpg", "/x/a.jpg")]
        ['a.jpg', 'a-2.jpg', 'a.jpg']
        """
        if path not in self._name_of:
            self._name_of[path] = self._unused(safe_name(wanted))
        return self._name_of[path]

    def _unused(self, wanted: str) -> str:
        """Return `wanted`, or `wanted` with the first number that makes it a new name."""
        key = wanted.casefold()
        number = self._last_number.get(key, 0) + 1
        while _numbered(wanted, number).casefold() in self._used:
            number += 1

        name = _numbered(wanted, number)
        self._last_number[key] = number
        self._used.add(name.casefold())
        return name


def _numbered(name: str, number: int) -> str:
    """Return a file name with a number before its suffix; the first has none."""
    if number == 1:
        return name
    stem, suffix = os.path.splitext(name)
    return f"{stem}-{number}{suffix}"


def path_below(path: str, folder: str) -> str:
    """Return the path of a file relative to a folder that contains it, with forward slashes.

    >>> path_below("/a/b/c.jpg", "/a")
    'b/c.jpg'
    """
    return PurePath(os.path.relpath(path, folder)).as_posix()
