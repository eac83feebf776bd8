"""Digests of many files, which caches store to notice changes of the files they were made from.

Modification times prove nothing: archives, `cp -p`, `rsync -t` and image layers set them to what
they were elsewhere.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from utils.threads import map_in_threads

FilePath = str | Path
CHUNK = 500  # paths that a thread handles at a time
THREADS = 16  # more than cores: on a network disk each file is a wait
BLOCK_BYTES = 2**20  # read at a time
ABSENT = b"absent"  # the state, or content, of a file that does not exist


def digest_of_contents(paths: Iterable[FilePath]) -> str:
    """Return a digest of path and contents of each file, in this order.

    Files that do not exist are allowed. For small files such as labels: 100,000 take 2 to 3 seconds
    on two busy cores, three times their `digest_of_states`.
    """
    return _digest(paths, _content)


def digest_of_states(paths: Iterable[FilePath]) -> str:
    """Return a digest of path, size, times and inode of each file, without reading them.

    The times are those of modification and change. Files that do not exist are allowed. The system
    sets the change time when a file is written or renamed, and no program can choose it; disks that
    keep none, such as read-only disk images, repeat the modification time or a constant, and there
    a file of the same size, time and inode counts as unchanged.
    """
    return _digest(paths, file_state)


def _digest(paths: Iterable[FilePath], describe: Callable[[FilePath], bytes]) -> str:
    """Return a digest of what `describe` returns for each path, and of the paths."""

    def digest_of_chunk(chunk: Sequence[FilePath]) -> bytes:
        digest = hashlib.sha256()
        for path in chunk:
            digest.update(os.fsencode(path) + b"\0" + describe(path) + b"\0")
        return digest.digest()

    digests = map_in_threads(digest_of_chunk, _chunks(paths), THREADS)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _chunks(paths: Iterable[FilePath]) -> Iterator[list[FilePath]]:
    remaining = iter(paths)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def file_state(path: FilePath) -> bytes:
    """Return size, times and inode of a file as text; ABSENT if there is none.

    Two files that were written to one path, one after the other, have different states.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ABSENT
    values = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return " ".join(map(str, values)).encode()


def _content(path: FilePath) -> bytes:
    digest = hashlib.sha256()
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe may never end
            return b"not a file"
        with open(path, "rb", buffering=0) as stream:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return ABSENT
    except (OSError, ValueError) as error:
        return f"unreadable: {type(error).__name__}".encode()
    return digest.hexdigest().encode()
