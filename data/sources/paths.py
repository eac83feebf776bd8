"""Find the files of a folder, a list, a pattern such as `photos/*.jpg`, or a single file."""

import glob
import os
import re
from collections.abc import Callable

from data.images import find_images, is_listed_name, run_folders_text, sorted_paths
from data.report import NOTE, REPEATED_LINES, RUN_FOLDERS
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
    """Return all suffixes of images and videos, for a message."""
    return " ".join((*sorted(IMAGE_SUFFIXES), *sorted(VIDEO_SUFFIXES)))


def single_file(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """Return the frames of one image or video file, which exists.

    Raises ValueError if it has another suffix.
    """
    suffix = os.path.splitext(text)[1].lower()
    if suffix not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
        raise ValueError(
            f"{printable(text)} is not an image, a video, a .txt list or a .streams file "
            f"({suffixes_text()})"
        )
    files = _named([text], "")
    return FileSource(files, printable(text), frame_step=frame_step, say=say)


def folder_or_list(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """Return the frames of a folder and its subfolders, or of a .txt list, sorted by path.

    Problems are reported. Raises ValueError if there is no image or video.
    """
    listing = find_images(text, videos=VIDEO_SUFFIXES)
    for problem in listing.problems:
        say(str(problem))

    if not listing.images:
        reasons = [f"; {each.reason}" for each in listing.problems if each.kind == RUN_FOLDERS]
        raise ValueError(
            f"{printable(text)} contains no image or video ({suffixes_text()}){''.join(reasons)}"
        )

    skipped = sum(
        problem.kind not in (NOTE, RUN_FOLDERS, REPEATED_LINES) for problem in listing.problems
    )
    folder = os.path.abspath(text) if os.path.isdir(text) else ""
    files = _named(listing.images, folder)
    return FileSource(files, printable(text), frame_step=frame_step, say=say, skipped=skipped)


def pattern(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """Return the frames of the files that match a pattern, sorted by path.

    `**` stands for any number of folders. Files in run folders are left out, unless the folders
    before the first wildcard lead into one. A folder that exists is meant by its name: in
    `[examples]/*.jpg` too, if there is a folder `[examples]`. Raises ValueError if there is no
    image or video.
    """
    folder, rest = _split_pattern(text)
    run_folders = InRunFolders(folder)
    path_of: dict[str, str] = {}  # by real path: a symlink to a parent folder repeats all files
    left_out = 0
    for path in sorted_paths(glob.glob(glob.escape(folder) + rest, recursive=True)):
        parent, name = os.path.split(path)
        if not is_input_name(name) or not os.path.isfile(path):
            continue
        if run_folders.run_folder(parent):
            left_out += 1
            continue
        path_of.setdefault(os.path.join(os.path.realpath(parent), name), path)

    runs = ""
    if left_out:
        runs = run_folders_text(left_out, "image or video file", run_folders.seen)
    if not path_of:
        reason = f"; {runs}" if runs else ""
        raise ValueError(f"no image or video matches {printable(text)} ({suffixes_text()}){reason}")
    if runs:
        say(f"{printable(text)}: {runs}")

    files = _named(list(path_of.values()), "")
    return FileSource(files, printable(text), frame_step=frame_step, say=say)


def _split_pattern(text: str) -> tuple[str, str]:
    """Return the leading folders of a pattern that exist under their names, and the rest."""
    separators = re.escape(os.sep + (os.altsep or ""))
    parts = re.split(f"([{separators}])", text)  # folders and the separators between them
    literal = ""
    for index, part in enumerate(parts[:-1]):
        is_folder_name = part not in ("", os.sep, os.altsep)
        if is_folder_name and not os.path.lexists(literal + part):
            return literal, "".join(parts[index:])
        literal += part
    return literal, parts[-1]


class InRunFolders:
    """Tells which folders below `top` are run folders, or inside one."""

    def __init__(self, top: str) -> None:
        self.seen: list[str] = []  # the run folders so far
        self._top = os.path.abspath(top)
        self._known: dict[str, str] = {self._top: ""}  # the answer for each folder

    def run_folder(self, folder: str) -> str:
        """Return the run folder that `folder` is or is in, "" if there is none below `top`."""
        folder = os.path.abspath(folder)
        if folder not in self._known:
            parent = os.path.dirname(folder)
            is_below = folder.startswith(self._top) and folder != parent
            self._known[folder] = self._look(folder, parent) if is_below else ""
        return self._known[folder]

    def _look(self, folder: str, parent: str) -> str:
        above = self.run_folder(parent)
        if above:
            return above

        try:
            names = os.listdir(folder)
        except OSError:  # a folder that may be entered, but not listed
            names = []
        if not is_run_folder(folder, names):
            return ""
        self.seen.append(folder)
        return folder


def _named(paths: list[str], folder: str) -> list[InputFile]:
    """Return each file with its name: the path below `folder`, or its own name if that is ""."""
    names = FrameNames()
    files = []
    for path in paths:
        wanted = path_below(path, folder) if folder else os.path.basename(path)
        files.append(InputFile(path, names.name(path, wanted)))
    return files
