"""Images of one split that are in another one, too: by a link, or as a copy with another name.

Only files of equal size are read, the last kilobytes of each. Where these are equal, more samples
are compared, and then whole files, but not more than COMPARED. 2,000 images against 40,000, on two
cores at a load of 10: 0.4 s if sizes differ as those of photographs do, 2.5 s if all are equal, and
2.2 s if all of the 2,000 are copies; beside 0.8 s that the system takes to say the sizes.
"""

import filecmp
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Sequence
from typing import NamedTuple, TypeVar

from data.labels import Labels
from utils.threads import map_in_threads

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 16  # more than cores: on a network disk each file is a wait
CHUNK = 500  # files that a thread handles at a time
SAMPLE_BYTES = 4096
COMPARED = 500  # copies that are compared as a whole; further ones have equal samples


class ImageFile(NamedTuple):
    """An image of a split. key: equal for two paths of one file. size: in bytes, -1 without."""

    path: str
    key: tuple[int, int] | str
    size: int


class SharedImages(NamedTuple):
    """How many images of a split are also in another one, and how many of these are copies."""

    images: int
    copies: int


def files_of(labels: Labels) -> list[ImageFile]:
    """Return the files of the images of a split."""
    paths = [labels.path(index) for index in range(len(labels))]
    return _in_chunks(_image_file, paths)


def shared_images(files: Sequence[ImageFile], others: Sequence[ImageFile]) -> SharedImages:
    """Return how many images of a split are also in another one.

    files, others: of the two splits, as `files_of` returns them.
    """
    keys = {other.key for other in others}
    unlinked = [file for file in files if file.key not in keys]
    linked = len(files) - len(unlinked)

    # Those that have the size, the end, and then the samples of another file.
    for trait in (_size, _end, _samples):
        values = set(_in_chunks(trait, unlinked))
        others_of = _by_trait(others, trait, values)
        others = [other for equal in others_of.values() for other in equal]
        of_values = _by_trait(unlinked, trait, others_of)
        unlinked = [file for equal in of_values.values() for file in equal]

    copies = len(unlinked[COMPARED:])
    for file in unlinked[:COMPARED]:
        equal = others_of[_samples(file)]
        copies += any(_equal_contents(file.path, other.path) for other in equal)
    return SharedImages(linked + copies, copies)


def _by_trait(
    files: Sequence[ImageFile],
    trait: Callable[[ImageFile], Hashable],
    wanted: Container[Hashable],
) -> dict[Hashable, list[ImageFile]]:
    """Return the files by their trait, those with a wanted one only."""
    found: defaultdict[Hashable, list[ImageFile]] = defaultdict(list)
    for file, value in zip(files, _in_chunks(trait, files), strict=True):
        if value in wanted:
            found[value].append(file)
    return found


def _in_chunks(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return the result for each item; a thread handles many at a time."""

    def of_chunk(chunk: Sequence[Item]) -> list[Result]:
        return [function(item) for item in chunk]

    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    return [result for part in map_in_threads(of_chunk, chunks, THREADS) for result in part]


def _image_file(path: str) -> ImageFile:
    try:
        status = os.stat(path)
    except OSError:  # removed meanwhile
        return ImageFile(path, path, -1)
    key = (status.st_dev, status.st_ino) if status.st_ino else path
    return ImageFile(path, key, status.st_size)


# ------------------------------------------------------- what copies have in common, cheapest first


def _size(file: ImageFile) -> Hashable:
    return file.size


def _end(file: ImageFile) -> Hashable:
    """Return the size and the last bytes: a JPEG begins with tables that many others have, too."""
    return file.size, _bytes_at(file, [file.size - SAMPLE_BYTES])


def _samples(file: ImageFile) -> Hashable:
    starts = [file.size * part // 8 for part in range(8)]
    return file.size, _bytes_at(file, [*starts, file.size - SAMPLE_BYTES])


def _bytes_at(file: ImageFile, starts: Sequence[int]) -> bytes:
    """Return a digest of some bytes of a file; its path if it cannot be read."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(file.path, "rb", buffering=0) as stream:
            for start in starts:
                stream.seek(max(0, start))
                digest.update(stream.read(SAMPLE_BYTES))
    except OSError:
        return os.fsencode(file.path)
    return digest.digest()


def _equal_contents(path: str, other: str) -> bool:
    try:
        return filecmp.cmp(path, other, shallow=False)
    except OSError:
        return False
