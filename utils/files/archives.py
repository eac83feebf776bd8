"""Archives unpacked as data: every name is checked before anything is written, every byte counted as it comes.

Only plain files and folders come out, below the folder that was named, with the permissions of new files. An archive
that holds anything else is refused as a whole: a data set has no use for links and devices, an attacker has.
"""

import bz2
import errno
import gzip
import lzma
import os
import re
import stat
import tarfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from utils.files.atomic import name_os_errors
from utils.files.disk import format_bytes, require_free_space
from utils.terminal import FaultError

CHUNK = 2**20
MOST_READ = 4 * CHUNK  # at once; no valid tar header is longer
MOST_END = 65535 + 200  # bytes of a zip's last records: a comment, and what stands before it
MOST_PADDING = CHUNK  # after a tar's end
FOREIGN_FILES = (FileExistsError, IsADirectoryError, NotADirectoryError)
WINDOWS_NAMES = r'(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:"|?*].*|.*[. ]'  # devices, streams, trailing dots


class ArchiveError(ValueError):
    """An archive that is not unpacked, and why."""


@dataclass(frozen=True)
class Limits:
    """The most that an archive may hold. ratio: of what comes out to the archive itself, above `size_always`."""

    entries: int = 5_000_000
    name: int = 255  # bytes of a file's or a folder's own name
    path: int = 1000  # bytes
    depth: int = 32
    size: int = 2**42
    ratio: int = 200
    size_always: int = 2**30


LIMITS = Limits()


@dataclass(frozen=True)
class Entry:
    """A file or folder of an archive, as its header describes it."""

    name: str
    size: int
    is_folder: bool
    open: Callable[[], Any]


def unpack(
    archive: Path,
    folder: Path,
    *,
    wanted: Callable[[Sequence[str]], bool] = lambda path: True,
    top: str = "",
    limits: Limits = LIMITS,
) -> Counter[str]:
    """Write the files of a zip or tar (plain, gzip, bzip2 or xz) below `folder`; return the suffixes of those left out.

    wanted: which files to write, by folders and name. top: if this is the only top folder, its contents are written.
    An interrupted call leaves a part behind: give a folder that may be deleted.

    Raises ArchiveError, with half a sentence, for an archive that is damaged, that holds more than `limits`, or
    anything but files and folders, or a file that `folder` has already; FaultError if there is not enough room, and
    OSError if the disk is full.
    """
    with _refusing(), _opened(archive) as entries:
        files = _checked(entries, archive.stat().st_size, limits)
        left_out = Counter(Path(path[-1]).suffix for path in files if not wanted(path))
        files = {path: entry for path, entry in files.items() if wanted(path)}
        if not files:
            raise ArchiveError("it holds no file that is wanted")
        require_free_space(folder, sum(entry.size for entry in files.values()))
        below = int(all(path[0] == top and len(path) > 1 for path in files))
        for path, entry in tqdm(files.items(), desc="unpacking", disable=None, leave=False):
            _write(entry, folder.joinpath(*path[below:]))
    return left_out


def safe_path(name: str, limits: Limits = LIMITS) -> tuple[str, ...]:
    """The folders and the file that a name means, below some folder; () for that folder itself.

    >>> safe_path("./images/a.jpg")
    ('images', 'a.jpg')
    >>> safe_path("images/../../a.jpg")
    Traceback (most recent call last):
    utils.files.archives.ArchiveError: 'images/../../a.jpg' leads out of its folder
    """
    path = tuple(part for part in name.split("/") if part not in ("", "."))
    longest = max((len(os.fsencode(part)) for part in path), default=0)
    if name.startswith("/") or not name:
        problem = "is an absolute path" if name else "is empty"
    elif ".." in path:
        problem = "leads out of its folder"
    elif re.search(r"[\0-\x1f\x7f\\]", name):
        problem = "holds a backslash or a control character"
    elif any(part[1:2] == ":" and part[0].isalpha() for part in path):
        problem = "names a drive"
    elif os.name == "nt" and any(re.fullmatch(WINDOWS_NAMES, part) for part in path):
        problem = "is not a valid file name on Windows"
    elif longest > limits.name or len(os.fsencode(name)) > limits.path or len(path) > limits.depth:
        problem = f"is too long: {limits.name} bytes a name, {limits.path} a path, {limits.depth} folders"
    else:
        return path
    raise ArchiveError(f"{_shown(name)} {problem}")


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 100 else f"{name[:100]}...")


@contextmanager
def _refusing() -> Iterator[None]:
    """Turns what a reader raises for a foreign or damaged archive, nearly anything, into one sentence."""
    try:
        yield
    except (ArchiveError, FaultError):
        raise
    except FOREIGN_FILES as error:
        raise ArchiveError("it holds a file that another archive has too") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # of the disk
        raise ArchiveError("it is damaged or cut short") from error


@contextmanager
def _opened(archive: Path) -> Iterator[Iterator[Entry]]:
    """What an archive holds, by the reader for its first bytes; the file's name says nothing."""
    with open(archive, "rb") as raw:
        start = raw.read(6)
        raw.seek(0)
        if start.startswith((b"PK\3\4", b"PK\5\6")):
            with zipfile.ZipFile(raw) as opened:
                if len(opened.infolist()) != _announced(raw):  # a damaged entry can swallow the next one
                    raise ArchiveError("its list of files is damaged")
                yield _zip_entries(opened)
            return
        readers = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open))
        reader = next((reader for magic, reader in readers if start.startswith(magic)), None)
        stream = Stream(reader(raw, "rb") if reader else raw)
        with _opened_tar(stream) as tar:
            yield _tar_entries(tar, stream)


def _opened_tar(stream: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=stream, mode="r:", encoding="utf-8")
    except tarfile.ReadError:
        raise ArchiveError("it is not a zip or tar (plain, gzip, bzip2 or xz), or is damaged") from None


def _announced(raw: BinaryIO) -> int:
    """How many entries the end of a zip says there are (APPNOTE.TXT, 4.3.14 and 4.3.16), which zipfile ignores."""
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(size - MOST_END, 0))
    end = raw.read()
    at = end.rfind(b"PK\5\6") + 10
    count = int.from_bytes(end[at : at + 2], "little")
    if count < 0xFFFF:
        return count
    at = end.rfind(b"PK\6\6") + 32
    return int.from_bytes(end[at : at + 8], "little")


def _zip_entries(opened: zipfile.ZipFile) -> Iterator[Entry]:
    for info in opened.infolist():
        name = info.orig_filename  # the reader's own version of it ends at a NUL
        kind = stat.S_IFMT(info.external_attr >> 16)  # of Unix; 0 elsewhere
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArchiveError(f"{_shown(name)} is a {'link' if kind == stat.S_IFLNK else 'device or pipe'}")
        if info.flag_bits & 0x41:
            raise ArchiveError(f"{_shown(name)} is encrypted")
        yield Entry(name, info.file_size, name.endswith("/"), partial(opened.open, info))


def _tar_entries(tar: tarfile.TarFile, stream: "Stream") -> Iterator[Entry]:
    for member in tar:
        if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)) or member.issparse():
            kind = "link" if member.islnk() or member.issym() else "device, a pipe or no plain file"
            raise ArchiveError(f"{_shown(member.name)} is a {kind}")
        yield Entry(member.name, 0 if member.isdir() else member.size, member.isdir(), partial(tar.extractfile, member))
    # tarfile treats a damaged header as the end, and reads nothing after the end.
    if any(stream.last) or len(stream.last) < tarfile.BLOCKSIZE:
        raise ArchiveError("it is cut short, or a header in it is damaged")
    rest = stream.read(MOST_PADDING)
    if any(rest) or stream.read(1):
        raise ArchiveError("it has data after its end")


class Stream:
    """A tar's bytes, decompressed, for tarfile, which would read a header of any length into memory."""

    def __init__(self, file: Any) -> None:
        self.file, self.last = file, b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_READ:
            raise ArchiveError(f"it has a header of more than {format_bytes(MOST_READ)}")
        self.last = self.file.read(size)
        return self.last

    def seek(self, position: int, whence: int = 0) -> int:
        return self.file.seek(position, whence)

    def tell(self) -> int:
        return self.file.tell()


def _checked(entries: Iterator[Entry], archive_size: int, limits: Limits) -> dict[tuple[str, ...], Entry]:
    """The files by their paths. Raises ArchiveError for the first entry that is not allowed."""
    files: dict[tuple[str, ...], Entry] = {}
    taken: set[str] = set()
    folders: set[str] = {""}
    most, total = min(limits.size, max(limits.size_always, limits.ratio * archive_size)), 0
    for number, entry in enumerate(entries, 1):
        total += entry.size
        if number > limits.entries:
            raise ArchiveError(f"it holds more than {limits.entries:,} files and folders")
        if entry.size < 0 or total > most:
            raise ArchiveError(f"its {format_bytes(archive_size)} would become more than {format_bytes(most)}")
        path = safe_path(entry.name, limits)
        inside = path if entry.is_folder else path[:-1]
        while (key := _folded(inside)) not in folders:
            folders.add(key)
            inside = inside[:-1]
        if entry.is_folder:
            continue
        if not path or (key := _folded(path)) in taken:
            raise ArchiveError(f"{_shown(entry.name)} is in it twice (upper and lower case count as the same)")
        taken.add(key)
        files[path] = entry
    if clash := taken & folders:
        raise ArchiveError(f"{_shown(min(clash))} is both a file and a folder")
    return files


def _folded(path: tuple[str, ...]) -> str:
    """One key for all names that some file system treats as the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", "/".join(path)).casefold())


def _write(entry: Entry, place: Path) -> None:
    """The bytes of a file, as many as its header says."""
    left = entry.size
    place.parent.mkdir(parents=True, exist_ok=True)
    with entry.open() as source, name_os_errors(place), open(place, "xb") as out:
        while chunk := source.read(min(CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                break
            out.write(chunk)
    if left:
        raise ArchiveError(f"{_shown(entry.name)} does not have the size that the archive states")
