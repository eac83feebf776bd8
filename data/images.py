"""Find the image files of a folder or a list."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from data.report import IMAGE_DROPPED, NOTE, REPEATED_LINES, RUN_FOLDERS, Problem
from utils.files.folders import is_run_folder
from utils.images.decode import IMAGE_SUFFIXES, is_image_name
from utils.printable import counted, excerpt, printable, utf_16_hint

# Folders that only say that images are in them, in lower case: readers look for labels beside them.
IMAGE_FOLDERS = ("images", "jpegimages")

# Images that are not read: of phones, animated and drawn ones, of cameras.
UNREAD_SUFFIXES = frozenset(
    (".heic", ".heif", ".jxl", ".gif", ".svg", ".ico", ".tga", ".psd", ".exr", ".hdr", ".pfm")
    + (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".raw", ".rw2")
)


class ImageFiles(NamedTuple):
    """Sorted paths of image files, and the problems: entries that were left out, notes."""

    images: list[str]
    problems: list[Problem]


def find_images(
    source: str | Path,
    *,
    videos: frozenset[str] = frozenset(),
    labels: frozenset[str] = frozenset(),
) -> ImageFiles:
    """Return the images in a folder and its subfolders, in a .txt list, or one image file.

    Sorted by path.

    videos: suffixes of video files to return as well, such as .mp4. labels: suffixes of label files
    beside the images, which are not reported as ignored. Symlinks are followed. A list has one path
    per line, relative to the folder of the list. Entries that are missing, not an image, or listed
    twice are reported.

    Run folders inside a folder hold results, not data: they are left out and reported. The images
    of a run are used if the folder is the run folder itself or lies in it, or if a list names them.

    Raises ValueError if `source` does not exist or is something else.
    """
    source = Path(os.path.abspath(source))
    if os.path.isdir(source):
        return _images_in_folder(source, videos, labels)
    if not os.path.isfile(source):
        raise ValueError(f"{printable(source)} does not exist")
    if source.suffix.lower() == ".txt":
        return _images_in_list(source, videos)
    if is_listed_name(source.name, videos):
        return ImageFiles([str(source)], [])
    raise ValueError(
        f"{printable(source)} is not a folder, a .txt list or an image "
        f"({' '.join(sorted(IMAGE_SUFFIXES))})"
    )


def is_listed_name(name: str, videos: frozenset[str]) -> bool:
    """Whether a file with this name counts as an image, or as a video with one of these suffixes.

    >>> is_listed_name("a.MP4", frozenset({".mp4"})), is_listed_name("a.mp4", frozenset())
    (True, False)
    """
    if is_image_name(name):
        return True
    suffix = os.path.splitext(name)[1].lower()
    return suffix in videos and not name.startswith(".")


def walk_images(folder: Path) -> Iterator[str]:
    """Iterate over the images in a folder and its subfolders, in the order of the file system.

    To look at the first ones only: `find_images` returns them sorted, with the problems. Raises
    nothing.
    """
    for parent, names in walk_folders(folder):
        for name in names:
            if is_image_name(name):
                yield os.path.join(parent, name)


def walk_folders(
    folder: Path,
    onerror: Callable[[OSError], None] | None = None,
    on_run_folder: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, list[str]]]:
    """Iterate over a folder and its subfolders, each with its file names.

    Symlinks are followed after all folders that are none: where a folder is reached in two ways,
    its images have their own paths, beside which their labels lie.

    Run folders inside it are left out; on_run_folder is called with the path of each.
    """
    visited: set[str] = set()
    starts = deque([str(folder)])  # the folder, then symlinks to others
    while starts:
        for parent, folders, names in os.walk(starts.popleft(), onerror=onerror):
            real = os.path.realpath(parent)
            if real in visited:  # a symlink to a parent folder would loop forever
                folders.clear()
                continue
            visited.add(real)
            if parent != str(folder) and is_run_folder(parent, names):
                folders.clear()
                on_run_folder(parent)
                continue
            folders.sort()
            paths = [os.path.join(parent, name) for name in folders]
            starts.extend(path for path in paths if os.path.islink(path))  # `walk` does not follow
            yield parent, names


def _images_in_folder(folder: Path, videos: frozenset[str], labels: frozenset[str]) -> ImageFiles:
    images: list[str] = []
    problems: list[Problem] = []
    others: Counter[str] = Counter()

    def unreadable(error: OSError) -> None:
        reason = f"folder cannot be read: {error.strerror}"
        problems.append(Problem(IMAGE_DROPPED, printable(error.filename), reason))

    runs: list[str] = []
    for parent, names in walk_folders(folder, unreadable, runs.append):
        for name in names:
            path = os.path.join(parent, name)
            if is_listed_name(name, videos) and os.path.isfile(path):
                images.append(path)
            elif is_listed_name(name, videos):
                reason = "is not a file, or is a broken symlink"
                problems.append(Problem(IMAGE_DROPPED, printable(path), reason))
            elif os.path.splitext(name)[1] not in labels:
                others[excerpt(Path(name).suffix.lower() or name)] += 1

    left_out = sum(_count_files(run, videos) for run in runs)
    if left_out:
        kind = "image or video file" if videos else "image"
        reason = run_folders_text(left_out, kind, runs)
        problems.append(Problem(RUN_FOLDERS, printable(folder), reason))
    if others:
        kinds = ", ".join(f"{count} {kind}" for kind, count in others.most_common(10))
        allowed = "images or videos" if videos else "images"
        reason = f"files that are not {allowed}, ignored: {kinds}"
        advice = conversion_advice(others)
        if advice:
            reason += f"; {advice}"
        problems.append(Problem(NOTE, printable(folder), reason))
    return ImageFiles(sorted_paths(images), problems)


def conversion_advice(suffixes: Iterable[str]) -> str:
    """Return how to convert images that are not read, if these suffixes have one; otherwise "".

    >>> conversion_advice([".txt", ".gif"])
    "photographs as .gif are not read: convert them, as with 'magick mogrify -format jpg *.gif'"
    """
    for suffix in suffixes:
        if suffix in UNREAD_SUFFIXES:
            command = f"magick mogrify -format jpg *{suffix}"
            return f"photographs as {suffix} are not read: convert them, as with '{command}'"
    return ""


def run_folders_text(files: int, kind: str, runs: Sequence[str]) -> str:
    """Return what is said of files in run folders that are left out.

    kind: of the files, such as "image".

    >>> run_folders_text(28, "image", ["runs/train/exp", "runs/train/exp2"])
    '28 images left out in 2 run folders, results of train.py, val.py or detect.py, as in
    runs/train/exp'
    """
    where = (
        f"{counted(len(runs), 'run folder')}, results of train.py, val.py or detect.py, as "
        f"in {printable(runs[0])}"
    )
    return f"{counted(files, kind)} left out in {where}"


def _count_files(folder: str, videos: frozenset[str]) -> int:
    """Return the number of images and videos in a folder and its subfolders.

    Symlinks are not followed.
    """
    return sum(is_listed_name(name, videos) for _, _, names in os.walk(folder) for name in names)


def _images_in_list(file: Path, videos: frozenset[str]) -> ImageFiles:
    images: set[str] = set()
    problems: list[Problem] = []
    allowed = "an image or video file" if videos else "an image file"
    shortened = 0  # paths that were found without their first folders
    repeated: list[int] = []  # lines whose image another line has
    for number, line in enumerate(read_lines(file), 1):
        if not line.strip():
            continue

        path = _listed_path(file.parent, line)
        if not os.path.isfile(path) and (found := _without_first_folders(file.parent, line)):
            path = found
            shortened += 1
        reason = ""
        if not is_listed_name(os.path.basename(path), videos):
            reason = f"'{excerpt(line, 200)}' is not the path of {allowed}"
        elif not os.path.isfile(path):
            reason = f"{printable(path)} does not exist"
        elif path in images:
            repeated.append(number)
            continue
        if reason:
            problems.append(Problem(IMAGE_DROPPED, f"{printable(file)} line {number}", reason))
        else:
            images.add(path)

    if shortened:
        paths = f"{counted(shortened, 'path')} found without the first folders, as data/ of CVAT's"
        problems.append(Problem(NOTE, printable(file), paths))
    if repeated:
        lines = f"{counted(len(repeated), 'line')}, the first is {repeated[0]},"
        reason = f"{lines} with an image that is listed before, which counts once"
        problems.append(Problem(REPEATED_LINES, printable(file), reason))
    return ImageFiles(sorted_paths(images), problems)


def sorted_paths(paths: Iterable[str]) -> list[str]:
    """Sort paths folder by folder, as Path objects compare.

    Creating 100,000 Path objects would take a second.

    >>> sorted_paths(["/a/b.png", "/a/b/c.png", "/a.png"])
    ['/a/b/c.png', '/a/b.png', '/a.png']
    """
    return sorted(paths, key=lambda path: path.split(os.sep))


def read_lines(file: Path) -> list[str]:
    """Return the lines of a UTF-8 text file, with any line ends.

    Raises ValueError if it cannot be read.
    """
    try:
        data = file.read_bytes()
        if hint := utf_16_hint(data):
            raise ValueError(f"{printable(file)} line 1: not UTF-8 text{hint}")
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{printable(file)} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(f"{printable(file)} line {line}: not UTF-8 text") from None
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _without_first_folders(folder: Path, line: str) -> str:
    """Return the file in a folder that has the last parts of a path in a list; "" if none has.

    Lists are written on other machines, also on Windows.
    """
    parts = [part for part in line.strip().replace("\\", "/").split("/") if part]
    if ".." in parts:
        return ""
    for count in range(1, len(parts)):
        path = os.path.abspath(os.path.join(folder, *parts[count:]))
        if os.path.isfile(path):
            return path
    return ""


def _listed_path(folder: Path, line: str) -> str:
    """Return the path in one line of a list.

    It is the path as written if that file exists, otherwise without surrounding spaces, or with
    percent-encoded letters if that file exists.
    """
    plain = line.strip()
    for text in (line, plain, unquote(plain)):
        path = os.path.abspath(os.path.join(folder, text))
        if "\0" not in path and os.path.isfile(path):
            return path
    return os.path.abspath(os.path.join(folder, plain))
