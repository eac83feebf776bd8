"""Find the files of a source: a folder, a list, a pattern such as `photos/*.jpg`, or a single file."""

import glob
import os
import re
from collections.abc import Callable

from data.images import find_images, is_listed_name, sorted_paths
from data.report import NOTE
from data.sources.containers import VIDEO_SUFFIXES
from data.sources.files import FileSource, InputFile
from data.sources.names import FrameNames, path_below
from utils.images.decode import IMAGE_SUFFIXES
from utils.printable import printable


def is_input_name(name: str) -> bool:
    """Whether a file with this name counts as an image or a video."""
    return is_listed_name(name, VIDEO_SUFFIXES)


def suffixes_text() -> str:
    """All suffixes of images and videos, for a message."""
    return " ".join((*sorted(IMAGE_SUFFIXES), *sorted(VIDEO_SUFFIXES)))


def single_file(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """The frames of one image or video file, which exists. Raises ValueError if it has another suffix."""
    if os.path.splitext(text)[1].lower() not in IMAGE_SUFFIXES | VIDEO_SUFFIXES:
        raise ValueError(
            f"{printable(text)} is not an image, a video, a .txt list or a .streams file ({suffixes_text()})"
        )
    files = [InputFile(text, FrameNames().name(text, os.path.basename(text)))]
    return FileSource(files, printable(text), frame_step=frame_step, say=say)


def folder_or_list(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """The frames of a folder and its subfolders, or of a .txt list; sorted by path, problems are reported."""
    listing = find_images(text, videos=VIDEO_SUFFIXES)
    for problem in listing.problems:
        say(str(problem))
    skipped = sum(problem.kind != NOTE for problem in listing.problems)
    if not listing.images:
        raise ValueError(f"{printable(text)} contains no image or video ({suffixes_text()})")
    folder = os.path.abspath(text) if os.path.isdir(text) else ""
    return FileSource(_named(listing.images, folder), printable(text), frame_step=frame_step, say=say, skipped=skipped)


def pattern(text: str, *, frame_step: int, say: Callable[[str], None]) -> FileSource:
    """The frames of the files that match a pattern; sorted by path. `**` stands for any number of folders.

    A folder that exists is meant by its name: in `[examples]/*.jpg` too, if there is a folder `[examples]`.
    """
    found: dict[str, str] = {}
    for path in sorted_paths(glob.glob(_with_literal_folders(text), recursive=True)):
        if is_input_name(os.path.basename(path)) and os.path.isfile(path):
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            found.setdefault(real, path)  # a symlink to a parent folder repeats all files
    if not found:
        raise ValueError(f"no image or video matches {printable(text)} ({suffixes_text()})")
    return FileSource(_named(list(found.values()), ""), printable(text), frame_step=frame_step, say=say)


def _with_literal_folders(text: str) -> str:
    """Return a pattern whose first folders, as far as they exist under their very names, are no patterns."""
    separators = re.escape(os.sep + (os.altsep or ""))
    parts = re.split(f"([{separators}])", text)  # folders and the separators between them
    literal = ""
    for index, part in enumerate(parts[:-1]):
        if not os.path.lexists(literal + part) and part not in ("", os.sep, os.altsep):
            return glob.escape(literal) + "".join(parts[index:])
        literal += part
    return glob.escape(literal) + parts[-1]


def _named(paths: list[str], folder: str) -> list[InputFile]:
    """Name each file by its path below `folder`, or by its own name if that is ""."""
    names = FrameNames()
    wanted = (path_below(path, folder) if folder else os.path.basename(path) for path in paths)
    return [InputFile(path, names.name(path, name)) for path, name in zip(paths, wanted, strict=True)]
