"""Find images that are nearly identical: copies, also of other sizes and encodings.

Two images are nearly identical if no pixel of their thumbnails, 17 x 16 in gray, differs by more
than MOST_DIFFERENCE. On 752 photographs of three data sets, copies of half the size or with a JPEG
quality of 40 differ by at most 7; of different photographs only those of one scene are as close.
Thumbnails are compared if a part of their difference hashes is equal: the bits say which pixels are
brighter than their left neighbors.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from utils.files.fingerprint import digest_of_states
from utils.files.writers import write_bytes
from utils.images.decode import quiet_decoder, read_bytes
from utils.images.opencv import cv2
from utils.threads import map_in_threads

WIDTH = 17
HEIGHT = 16
MOST_DIFFERENCE = 8  # gray levels
BAND_BYTES = 4  # of a hash of 32 bytes: one of its 8 parts is equal if at most 7 bits differ
MOST_IN_BAND = 2000  # images with an equal part of their hashes that are compared with each other
UNREADABLE = b"\0" * (WIDTH * HEIGHT)


def similar_groups(paths: Sequence[str], cache: Path | None, threads: int) -> list[int]:
    """Return a group for each image, which it shares with all that are nearly identical to it.

    The thumbnails are stored below `cache`, unless it is None. A photograph of 640 pixels takes
    1.5 ms of one core, so 100,000 some three minutes, once. An image that cannot be decoded, or is
    all black, is in a group of its own.
    """
    thumbnails = _stored_thumbnails(paths, cache, threads)
    groups = Groups(len(paths))

    # Equal thumbnails, and one image of each.
    first_of: dict[bytes, int] = {}
    for index, thumbnail in enumerate(thumbnails):
        if thumbnail != UNREADABLE:
            groups.join(first_of.setdefault(thumbnail, index), index)

    for members in _equal_bands(first_of):
        if len(members) > MOST_IN_BAND:
            continue
        pixels = np.array([np.frombuffer(thumbnails[index], np.uint8) for index in members])
        pixels = pixels.astype(np.int16)
        for place, index in enumerate(members):
            difference = np.abs(pixels[place + 1 :] - pixels[place]).max(1)
            for offset in np.flatnonzero(difference <= MOST_DIFFERENCE).tolist():
                groups.join(index, members[place + 1 + offset])
    return groups.numbers()


class Groups:
    """Disjoint groups of the numbers 0 to count - 1, which are joined one by one."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def find(self, index: int) -> int:
        """Return the number that stands for the group of `index`."""
        while self._parents[index] != index:
            self._parents[index] = self._parents[self._parents[index]]
            index = self._parents[index]
        return index

    def join(self, one: int, other: int) -> None:
        """Make the groups of two numbers one group."""
        first, second = sorted((self.find(one), self.find(other)))
        self._parents[second] = first

    def numbers(self) -> list[int]:
        """Return the group of each number.

        >>> groups = Groups(4)
        >>> groups.join(3, 1)
        >>> groups.numbers()
        [0, 1, 2, 1]
        """
        return [self.find(index) for index in range(len(self._parents))]


def thumbnail_of(data: bytes) -> bytes:
    """Return the gray values of the thumbnail of an encoded image; UNREADABLE if there is none."""
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_REDUCED_GRAYSCALE_2)
    except cv2.error:  # empty, or more pixels than OpenCV allows
        image = None
    if image is None:
        return UNREADABLE
    return cv2.resize(image, (WIDTH, HEIGHT), interpolation=cv2.INTER_AREA).tobytes()


def _difference_hash(thumbnail: bytes) -> bytes:
    """Return 256 bits: whether each pixel is brighter than its left neighbor."""
    pixels = np.frombuffer(thumbnail, np.uint8).reshape(HEIGHT, WIDTH)
    return np.packbits(pixels[:, 1:] > pixels[:, :-1]).tobytes()


def _equal_bands(first_of: dict[bytes, int]) -> Iterable[list[int]]:
    """Return the images, of different thumbnails, that have a part of their hashes in common."""
    hashes = {index: _difference_hash(thumbnail) for thumbnail, index in first_of.items()}
    for start in range(0, HEIGHT * (WIDTH - 1) // 8, BAND_BYTES):
        members = defaultdict(list)
        for index, value in hashes.items():
            members[value[start : start + BAND_BYTES]].append(index)
        yield from (indices for indices in members.values() if len(indices) > 1)


def _stored_thumbnails(paths: Sequence[str], cache: Path | None, threads: int) -> list[bytes]:
    """Return the thumbnail of each image, from the cache if no file has changed."""
    key = f"{WIDTH} {HEIGHT} {cv2.__version__} {digest_of_states(paths)}"
    file = None
    if cache is not None:
        file = cache / f"thumbnails-{hashlib.sha256(key.encode()).hexdigest()[:16]}.bin"
        stored = _read(file, len(paths))
        if stored is not None:
            return stored

    with quiet_decoder():  # the scan reports damaged images
        thumbnails = list(map_in_threads(_thumbnail_of_file, paths, threads))
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            content = b"".join(thumbnails)
            write_bytes(file, content + hashlib.sha256(content).digest())
        except OSError:
            pass  # they are computed again
    return thumbnails


def _read(file: Path, count: int) -> list[bytes] | None:
    """Return stored thumbnails, None if the file is missing or damaged."""
    try:
        data = file.read_bytes()
    except OSError:
        return None
    content = data[:-32]
    length = len(UNREADABLE)
    if hashlib.sha256(content).digest() != data[-32:] or len(content) != count * length:
        return None
    return [content[start : start + length] for start in range(0, len(content), length)]


def _thumbnail_of_file(path: str) -> bytes:
    try:
        return thumbnail_of(read_bytes(path))
    except ValueError:
        return UNREADABLE
