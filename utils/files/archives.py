"""Unpack untrusted zip and tar archives: names are checked before writing, bytes are counted.

Only regular files and folders are written, below the given folder, with the permissions of new
files. An archive that contains anything else, such as links or devices, is refused as a whole: data
sets do not need them, attackers do.
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
from utils.files.zip_names import names_in_zip
from utils.terminal import FaultError

CHUNK = 2**20
MAX_READ = 4 * CHUNK  # bytes per read; no valid tar header is longer
MAX_END = 65535 + 200  # bytes that hold a zip's last records: a comment, and what precedes it
MAX_PADDING = CHUNK  # bytes of zeros after a tar's end
COMPRESSIONS: dict[bytes, Callable[..., Any]] = {  # how a file begins, and what opens it
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
OTHER_ARCHIVES = {  # how those begin that are not read, and what they are called
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!": "RAR",
    b"\x28\xb5\x2f\xfd": "Zstandard",
}
EXISTING_FILE_ERRORS = (FileExistsError, IsADirectoryError, NotADirectoryError)
# devices, streams, trailing dots
WINDOWS_NAMES = r'(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*[<>:"|?*].*|.*[. ]'


class ArchiveError(ValueError):
    """An archive is refused; the text is the second half of a sentence that says why."""


class NoWantedFileError(ArchiveError):
    """An archive has none of the files that are wanted of it."""


@dataclass(frozen=True)
class Limits:
    """The most that an archive may contain.

    size: bytes unpacked. ratio: bytes unpacked per byte of the archive; up to `size_always` bytes
    any ratio is allowed.
    """

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
    """Write the files of an archive below `folder`; return the suffixes of skipped files.

    An interrupted call leaves files behind, so `folder` should be one that may be deleted.

    Args:
        archive: a zip, or a tar: plain, gzip, bzip2 or xz.
        folder: that exists.
        wanted: whether to write a file, given its folders and name.
        top: a top folder that is left out of the paths if all wanted files are in it.
        limits: the most that the archive may contain.

    Raises ArchiveError, with half a sentence, for an archive that is damaged, exceeds `limits`,
    contains anything but files and folders, or contains a file that exists in `folder`; FaultError
    if the disk has too little space; and OSError if the disk fills up.
    """
    with _archive_errors(), _open_entries(archive) as entries:
        # Choose among the files.
        all_files = _check_entries(entries, archive.stat().st_size, limits)
        files: dict[tuple[str, ...], Entry] = {}
        skipped: Counter[str] = Counter()
        for path, entry in all_files.items():
            if wanted(path):
                files[path] = entry
            else:
                skipped[Path(path[-1]).suffix] += 1
        if not files:
            raise NoWantedFileError("it contains no wanted file")

        # Write them.
        require_free_space(folder, sum(entry.size for entry in files.values()))
        all_in_top = all(path[0] == top and len(path) > 1 for path in files)
        dropped_folders = 1 if all_in_top else 0
        for path, entry in tqdm(files.items(), desc="unpacking", disable=None, leave=False):
            _write(entry, folder.joinpath(*path[dropped_folders:]))
    return skipped


def paths_in(archive: Path) -> list[tuple[str, ...]]:
    """Return the folders and the name of each file in an archive.

    Raises ArchiveError, with half a sentence, if it is damaged, or such a path is unsafe.
    """
    with _archive_errors(), _open_entries(archive) as entries:
        return list(_check_entries(entries, archive.stat().st_size, LIMITS))


def safe_path(name: str, limits: Limits = LIMITS) -> tuple[str, ...]:
    """Split an entry's name into folders and file name, relative to the target folder.

    () is that folder itself. Raises ArchiveError, with half a sentence, for a name that is unsafe
    or exceeds `limits`.

    >>> safe_path("./images/a.jpg")
    ('images', 'a.jpg')
    >>> safe_path("images/../../a.jpg")
    Traceback (most recent call last):
    utils.files.archives.ArchiveError: 'images/../../a.jpg' leads out of its folder
    """
    path = tuple(part for part in name.split("/") if part not in ("", "."))
    longest = max((len(os.fsencode(part)) for part in path), default=0)

    if not name:
        problem = "is empty"
    elif name.startswith("/"):
        problem = "is an absolute path"
    elif ".." in path:
        problem = "leads out of its folder"
    elif re.search(r"[\0-\x1f\x7f\\]", name):
        problem = "contains a backslash or a control character"
    elif any(part[1:2] == ":" and part[0].isalpha() for part in path):
        problem = "names a drive"
    elif os.name == "nt" and any(re.fullmatch(WINDOWS_NAMES, part) for part in path):
        problem = "is not a valid file name on Windows"
    elif longest > limits.name or len(os.fsencode(name)) > limits.path or len(path) > limits.depth:
        most = f"{limits.name} bytes per name, {limits.path} per path, {limits.depth} folders"
        problem = f"is too long: at most {most}"
    else:
        return path

    raise ArchiveError(f"{_quoted(name)} {problem}")


def _quoted(name: str) -> str:
    """Return a name for a message: in quotes, cut at 100 characters."""
    if len(name) > 100:
        name = f"{name[:100]}..."
    return ascii(name)


@contextmanager
def _archive_errors() -> Iterator[None]:
    """Turn the errors of zipfile and tarfile, of nearly any type, into ArchiveError."""
    try:
        yield
    except (ArchiveError, FaultError):
        raise
    except EXISTING_FILE_ERRORS as error:
        raise ArchiveError("it contains a file that another archive also contains") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # a fault of the disk, not of the archive
        raise ArchiveError("it is damaged or truncated") from error


@contextmanager
def _open_entries(archive: Path) -> Iterator[Iterator[Entry]]:
    """Yield the entries of an archive, read as its first bytes say, not its file name."""
    with open(archive, "rb") as raw:
        start = raw.read(6)
        raw.seek(0)

        if start.startswith((b"PK\3\4", b"PK\5\6")):
            with zipfile.ZipFile(raw) as zip_file:
                # a damaged entry can hide the next one
                if len(zip_file.infolist()) != _stated_entry_count(raw):
                    raise ArchiveError("its list of files is damaged")
                yield _zip_entries(zip_file)
            return

        for magic, kind in OTHER_ARCHIVES.items():
            if start.startswith(magic):
                raise ArchiveError(f"it is a {kind} archive; zip and tar are read: unpack it")

        unpacked: Any = raw
        for magic, open_compressed in COMPRESSIONS.items():
            if start.startswith(magic):
                unpacked = open_compressed(raw, "rb")
        stream = Stream(unpacked)
        with _open_tar(stream) as tar:
            yield _tar_entries(tar, stream)


def _open_tar(stream: Any) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=stream, mode="r:", encoding="utf-8")
    except tarfile.ReadError:
        raise ArchiveError(
            "it is not a zip or tar (plain, gzip, bzip2 or xz), or is damaged"
        ) from None


def _stated_entry_count(raw: BinaryIO) -> int:
    """Return the number of entries that the end of a zip states, which zipfile ignores.

    Source: APPNOTE.TXT, 4.3.14 and 4.3.16.
    """
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(size - MAX_END, 0))
    end = raw.read()
    at = end.rfind(b"PK\5\6") + 10
    count = int.from_bytes(end[at : at + 2], "little")
    if count < 0xFFFF:
        return count
    # more entries, stated in the record of a zip of 64 bits
    at = end.rfind(b"PK\6\6") + 32
    return int.from_bytes(end[at : at + 8], "little")


def _zip_entries(zip_file: zipfile.ZipFile) -> Iterator[Entry]:
    """Yield the files and folders of a zip. Raises ArchiveError for anything else."""
    infos = zip_file.infolist()
    for info, name in zip(infos, names_in_zip(infos), strict=True):
        # the Unix file type; 0 if the zip was made elsewhere
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            what = "link" if kind == stat.S_IFLNK else "device or pipe"
            raise ArchiveError(f"{_quoted(name)} is a {what}")
        if info.flag_bits & 0x41:
            raise ArchiveError(f"{_quoted(name)} is encrypted")
        yield Entry(name, info.file_size, name.endswith("/"), partial(zip_file.open, info))


def _tar_entries(tar: tarfile.TarFile, stream: "Stream") -> Iterator[Entry]:
    """Yield the files and folders of a tar. Raises ArchiveError for anything else."""
    for member in tar:
        is_folder = member.isdir()
        is_file = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
        if not (is_file or is_folder) or member.issparse():
            is_link = member.islnk() or member.issym()
            kind = "link" if is_link else "device, pipe, sparse or other special file"
            raise ArchiveError(f"{_quoted(member.name)} is a {kind}")
        size = 0 if is_folder else member.size
        yield Entry(member.name, size, is_folder, partial(tar.extractfile, member))

    # tarfile treats a damaged header as the end, and reads nothing after it.
    if any(stream.last) or len(stream.last) < tarfile.BLOCKSIZE:
        raise ArchiveError("it is truncated, or one of its headers is damaged")
    rest = stream.read(MAX_PADDING)
    if any(rest) or stream.read(1):
        raise ArchiveError("it has data after its end")


class Stream:
    """A tar's decompressed bytes for tarfile, which would read a header of any length.

    Long reads are refused. last: the bytes of the last read.
    """

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise ArchiveError(f"it has a header of more than {format_bytes(MAX_READ)}")
        self.last = self.file.read(size)
        return self.last

    def seek(self, position: int, whence: int = 0) -> int:
        return self.file.seek(position, whence)

    def tell(self) -> int:
        return self.file.tell()


def _check_entries(
    entries: Iterator[Entry], archive_size: int, limits: Limits
) -> dict[tuple[str, ...], Entry]:
    """Return the files of an archive by path; ArchiveError for the first entry not allowed."""
    files: dict[tuple[str, ...], Entry] = {}
    file_keys: set[str] = set()
    folder_keys: set[str] = {""}
    most = min(limits.size, max(limits.size_always, limits.ratio * archive_size))
    total = 0
    for number, entry in enumerate(entries, 1):
        # Not too much.
        total += entry.size
        if number > limits.entries:
            raise ArchiveError(f"it contains more than {limits.entries:,} files and folders")
        if entry.size < 0 or total > most:
            raise ArchiveError(
                f"its {format_bytes(archive_size)} would unpack to more than {format_bytes(most)}"
            )

        # Note its folder and those above; that of the target is known from the start.
        path = safe_path(entry.name, limits)
        parent = path if entry.is_folder else path[:-1]
        while (key := _collision_key(parent)) not in folder_keys:
            folder_keys.add(key)
            parent = parent[:-1]
        if entry.is_folder:
            continue

        # No file twice.
        key = _collision_key(path)
        if not path or key in file_keys:
            raise ArchiveError(
                f"{_quoted(entry.name)} appears twice (upper and lower case count as the same)"
            )
        file_keys.add(key)
        files[path] = entry

    clash = file_keys & folder_keys
    if clash:
        raise ArchiveError(f"{_quoted(min(clash))} is both a file and a folder")
    return files


def _collision_key(path: tuple[str, ...]) -> str:
    """Return a key that is equal for all paths that some file system takes for one file."""
    decomposed = unicodedata.normalize("NFD", "/".join(path))
    return unicodedata.normalize("NFC", decomposed.casefold())


def _write(entry: Entry, target: Path) -> None:
    """Write a file's bytes to `target`; ArchiveError unless there are as many as stated."""
    left = entry.size
    target.parent.mkdir(parents=True, exist_ok=True)
    with entry.open() as source, name_os_errors(target), open(target, "xb") as out:
        while chunk := source.read(min(CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                break
            out.write(chunk)
    if left:
        raise ArchiveError(f"{_quoted(entry.name)} does not have the size that the archive states")
