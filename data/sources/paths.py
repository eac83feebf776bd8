"""Find the files of a source.

A folder, a list, a pattern such as `photos/*.jpg`, or a single file.
"""

import glob
import os
import re
from collections.abc import Callable

from data.images import find_images, is_listed_name, run_folders_text, sorted_paths
from data.report import NOTE, RUN_FOLDERS
from data.sources.containers import VIDEO_SUFFIXES
from data.sources.files import FileSource, InputFile
from data.sources.names import FrameNames, path_below
from utils.files.folders import is_run_folder
from utils.images.decode import IMAGE_SUFFIXES
from utils.printable import printable


def is_input_name(name: str) -> bool:
    """Whether a file with this name counts as an image or a video."""
    return is_listed_name(name, VIDEO_SUFFIXES)


def suffixes_text() -> str:
    """All suffixes of images and videos, for a message."""
    return " ".join((*sorted(IMAGE_SUFFIXES), *sorted(VIDEO_SUFFIXES)))


def single_file(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """The frames of one image or video file, which exists.

    Raises ValueError if it has another suffix.
    """
    if os.path.splitext(text)[1].lower() not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
        raise ValueError(
            f"{printable(text)} is not an image, a video, a .txt list or a .streams file "
            f"({suffixes_text()})"
        )
    files = [InputFile(text, FrameNames().name(text, os.path.basename(text)))]
    return FileSource(files, printable(text), frame_step=frame_step, say=say)


def folder_or_list(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """The frames of a folder and its subfolders, or of a .txt list.

    Sorted by path, problems are reported.
    """
    listing = find_images(text, videos=VIDEO_SUFFIXES)
    for problem in listing.problems:
        say(str(problem))
    skipped = sum(problem.kind not in (NOTE, RUN_FOLDERS) for problem in listing.problems)
    if not listing.images:
        runs = "".join(
            f"; {problem.reason}" for problem in listing.problems if problem.kind == RUN_FOLDERS
        )
        raise ValueError(f"{printable(text)} contains no image or video ({suffixes_text()}){runs}")
    folder = os.path.abspath(text) if os.path.isdir(text) else ""
    return FileSource(
        _named(listing.images, folder),
        printable(text),
        frame_step=frame_step,
        say=say,
        skipped=skipped,
    )


def pattern(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """The frames of the files that match a pattern; sorted by path.

    `**` stands for any number of folders.

    Files in run folders are left out, unless the folders before the first wildcard lead into one. A
    folder that exists is meant by its name: in `[examples]/*.jpg` too, if there is a folder
    `[examples]`.
    """
    folder, rest = _split_pattern(text)
    inside = InRunFolders(folder)
    found: dict[str, str] = {}
    left_out = 0
    for path in sorted_paths(glob.glob(glob.escape(folder) + rest, recursive=True)):
        if is_input_name(os.path.basename(path)) and os.path.isfile(path):
            if inside.run_folder(os.path.dirname(path)):
                left_out += 1
                continue
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            found.setdefault(real, path)  # a symlink to a parent folder repeats all files
    runs = run_folders_text(left_out, "image or video file", inside.found) if left_out else ""
    if not found:
        reason = f"; {runs}" if runs else ""
        raise ValueError(f"no image or video matches {printable(text)} ({suffixes_text()}){reason}")
    if runs:
        say(f"{printable(text)}: {runs}")
    return FileSource(
        _named(list(found.values()), ""), printable(text), frame_step=frame_step, say=say
    )


def _split_pattern(text: str) -> tuple[str, str]:
    """Return the first folders of a pattern, as far as they exist under their very names, and the
    rest of it.
    """
    separators = re.escape(os.sep + (os.altsep or ""))
    parts = re.split(f"([{separators}])", text)  # folders and the separators between them
    literal = ""
    for index, part in enumerate(parts[:-1]):
        if not os.path.lexists(literal + part) and part not in ("", os.sep, os.altsep):
            return literal, "".join(parts[index:])
        literal += part
    return literal, parts[-1]


class InRunFolders:
    """Tells which folders below `top` are run folders, or inside one.

    found: those that were seen.
    """

    def __init__(self, top: str) -> None:
        self.found: list[str] = []
        self._top = os.path.abspath(top)
        self._known: dict[str, str] = {self._top: ""}

    def run_folder(self, folder: str) -> str:
        """Return the run folder that `folder` is or is in, "" if there is none below `top`."""
        folder = os.path.abspath(folder)
        if folder not in self._known:
            parent = os.path.dirname(folder)
            is_below = folder.startswith(self._top) and folder != parent
            self._known[folder] = self._look(folder, parent) if is_below else ""
        return self._known[folder]

    def _look(self, folder: str, parent: str) -> str:
        if above := self.run_folder(parent):
            return above
        try:
            names = os.listdir(folder)
        except OSError:  # a folder that may be entered, but not listed
            names = []
        if not is_run_folder(folder, names):
            return ""
        self.found.append(folder)
        return folder


def _named(paths: list[str], folder: str) -> list[InputFile]:
    """Name each file by its path below `folder`, or by its own name if that is ""."""
    names = FrameNames()
    wanted = (path_below(path, folder) if folder else os.path.basename(path) for path in paths)
    return [
        InputFile(path, names.name(path, name)) for path, name in zip(paths, wanted, strict=True)
    ]
