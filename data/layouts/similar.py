"""Find images that are nearly identical: copies, also of other sizes and encodings, or mirrored.

Two images are nearly identical if no pixel of their thumbnails, 17 x 16 in gray, differs by more
than MOST_DIFFERENCE, and all together by less than a share of the contrast. On 300 photographs of
three data sets, mirrored copies and copies of a quarter to 1.5 times the size or with a JPEG
quality of 20 differ by at most 8; of different photographs only those of one scene are as close.
Thumbnails are compared if a part of their difference hashes is equal: the bits say which pixels are
brighter than their left neighbors.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.files.fingerprint import digest_of_states
from utils.files.writers import write_bytes
from utils.images.decode import quiet_decoder, read_bytes
from utils.images.headers import jpeg_header
from utils.images.opencv import cv2
from utils.images.orientation import stored_orientation
from utils.threads import map_in_threads

WIDTH = 17
HEIGHT = 16
VERSION = 2  # increase it when a change of the code gives other thumbnails
MOST_DIFFERENCE = 8  # gray levels
# The RMS of the differences, as a share of the thumbnail's standard deviation: two pages of text
# hardly differ in gray levels, but they do by their own contrast.
MOST_OF_CONTRAST = 0.2
ROUNDING = 1.0  # gray levels, RMS: of thumbnails without contrast
BAND_BYTES = 4  # of a hash of 32 bytes: one of its 8 parts is equal if at most 7 bits differ
MOST_IN_BAND = 2000  # images with an equal part of their hashes that are all compared
MANY_IN_BAND = 250  # of more, only so many to twice as many of similar brightness
UNREADABLE = b"\0" * (WIDTH * HEIGHT)
# JPEGs are decoded at a half, quarter or eighth of their size if this many pixels are left of the
# short side: with fewer, the thumbnails of copies of two sizes differ.
REDUCED_SIDE = 256
REDUCTIONS = {
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
}
TRANSPOSED = 5  # orientations from this one on have width and height exchanged


class Close(NamedTuple):
    """The images among others that are nearly identical to one."""

    image: int
    others: NDArray[np.int64]  # all larger than image
    differences: NDArray[np.int64]  # of each, the largest of a pixel, in gray levels
    mirrored: bool  # whether the others are nearly identical to its mirror image


def similar_groups(paths: Sequence[str], cache: Path | None, threads: int) -> list[int]:
    """Return a group for each image, which it shares with all that are nearly identical to it.

    Mirrored images do not count. The thumbnails are stored below `cache`, unless it is None. An
    image that cannot be decoded, or is all black, is in a group of its own.
    """
    thumbnails = thumbnails_of(paths, cache, threads)
    groups = Groups(len(paths))
    first_of = first_of_equals(thumbnails)
    for index, first in enumerate(first_of):
        groups.join(first, index)

    for found in close_images(thumbnails, first_of):
        for other in found.others.tolist():
            groups.join(found.image, other)
    return groups.numbers()


def first_of_equals(thumbnails: Sequence[bytes]) -> list[int]:
    """Return for each thumbnail the number of the first one that is equal to it, often its own.

    Unreadable ones are equal to no other.
    """
    first_of: dict[bytes, int] = {}
    numbers = []
    for index, thumbnail in enumerate(thumbnails):
        is_readable = thumbnail != UNREADABLE
        numbers.append(first_of.setdefault(thumbnail, index) if is_readable else index)
    return numbers


def close_images(
    thumbnails: Sequence[bytes], first_of: Sequence[int], *, mirrored: bool = False
) -> Iterator[Close]:
    """Yield the images that are nearly identical to each other; a pair may come several times.

    Args:
        thumbnails: of all images.
        first_of: as `first_of_equals` returns it: of equal ones only the first is compared.
        mirrored: yield the mirrored pairs too.
    """
    compared = [
        index
        for index, first in enumerate(first_of)
        if index == first and thumbnails[index] != UNREADABLE
    ]
    pixels = np.frombuffer(b"".join(thumbnails), np.uint8).reshape(-1, HEIGHT, WIDTH)
    hashes = {index: _difference_hash(pixels[index]) for index in compared}
    for members in _equal_bands(hashes, hashes):
        yield from _close_in_band(pixels, members, members, mirrored=False)

    if mirrored:
        turned = {index: _difference_hash(pixels[index, :, ::-1]) for index in compared}
        for members in _equal_bands(hashes, turned):
            plain = [index for index in members if index >= 0]
            others = [~index for index in members if index < 0]
            yield from _close_in_band(pixels, plain, others, mirrored=True)


def _close_in_band(
    pixels: NDArray[np.uint8], first: Sequence[int], second: Sequence[int], *, mirrored: bool
) -> Iterator[Close]:
    """Yield the images among `second` that are nearly identical to each of `first`.

    Of many images, such as frames of one camera, only those of similar brightness are compared.
    """
    if not first or not second:
        return
    if len(first) + len(second) <= 2 * MOST_IN_BAND:
        yield from _close_pairs(pixels, first, np.sort(second), mirrored=mirrored)
        return

    members = np.union1d(first, second)
    brightness = pixels[members].mean((1, 2))  # the same for mirrored images
    order = np.argsort(brightness, kind="stable")
    for start in range(0, len(order), MANY_IN_BAND):
        part = members[order[start : start + 2 * MANY_IN_BAND]]
        near_first = np.intersect1d(part, first).tolist()
        near_others = np.intersect1d(part, second)
        yield from _close_pairs(pixels, near_first, near_others, mirrored=mirrored)


def _close_pairs(
    pixels: NDArray[np.uint8], first: Sequence[int], others: NDArray[np.int64], *, mirrored: bool
) -> Iterator[Close]:
    """Yield the images among `others`, sorted, that are nearly identical to each of `first`."""
    flat = len(others), HEIGHT * WIDTH
    others_pixels = pixels[others].reshape(flat).astype(np.int16)
    for index in first:
        image = pixels[index, :, ::-1] if mirrored else pixels[index]
        start = int(np.searchsorted(others, index, side="right"))
        difference = others_pixels[start:] - image.reshape(-1).astype(np.int16)
        largest = np.abs(difference).max(1, initial=0)
        near = np.flatnonzero(largest <= MOST_DIFFERENCE)
        if len(near):
            rms = np.sqrt(np.square(difference[near]).mean(1))
            near = near[rms <= max(ROUNDING, MOST_OF_CONTRAST * image.std())]
            yield Close(index, others[start + near], largest[near].astype(np.int64), mirrored)


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
    gray = reduced_gray(data, REDUCED_SIDE)
    if gray is None:
        return UNREADABLE
    return np.rint(gray.resampled(HEIGHT, WIDTH)).astype(np.uint8).tobytes()


class Gray(NamedTuple):
    """An image in gray that may have been decoded at a part of its size."""

    pixels: np.ndarray  # uint8 [H, W]
    # height and width in these pixels; not whole if the last row or column is only partly covered
    extent: tuple[float, float]

    def resampled(self, rows: int, columns: int) -> NDArray[np.float32]:
        """Return the image in so many rows and columns, float32, in gray levels.

        Each value is a mean, weighted by the distance from its center up to that of its neighbors:
        the same at every size of the image, as far as it has the details.
        """
        height, width = self.pixels.shape
        down = _weights(rows, height, self.extent[0])
        along = _weights(columns, width, self.extent[1])
        resampled: NDArray[np.float32] = down @ self.pixels.astype(np.float32) @ along.T
        return resampled


def reduced_gray(data: bytes, least: int) -> Gray | None:
    """Return an encoded image in gray, upright; None if it cannot be decoded.

    least: a JPEG is decoded at a part of its size if so many pixels are left of its short side.
    """
    size = jpeg_header(data).size
    short = min(size)
    reduction = next((part for part in REDUCTIONS if short >= least * part), 1)
    flag = REDUCTIONS.get(reduction, cv2.IMREAD_GRAYSCALE)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error:  # empty, or more pixels than OpenCV allows
        return None
    if pixels is None:
        return None

    height, width = pixels.shape
    if reduction == 1:
        return Gray(pixels, (height, width))
    width, height = size
    if stored_orientation(data) >= TRANSPOSED:
        height, width = width, height
    return Gray(pixels, (height / reduction, width / reduction))


@lru_cache(maxsize=256)
def _weights(cells: int, pixels: int, extent: float) -> NDArray[np.float32]:
    """Return the share that each pixel has in each cell, float32 [cells, pixels].

    A tent: 1 at the center of the cell, 0 at those of its neighbors.

    >>> (7 * _weights(2, 4, 4.0)).round(3).tolist()
    [[3.0, 3.0, 1.0, 0.0], [0.0, 1.0, 3.0, 3.0]]
    """
    side = extent / cells
    centers = (np.arange(cells) + 0.5) * side
    distance = np.abs(centers[:, None] - (np.arange(pixels) + 0.5))
    weights = np.maximum(1 - distance / max(side, 1), 0)
    # An image with fewer pixels than cells: the nearest pixel.
    empty = weights.sum(1) == 0
    weights[empty, distance[empty].argmin(1)] = 1
    shares: NDArray[np.float32] = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    return shares


def _difference_hash(pixels: NDArray[np.uint8]) -> bytes:
    """Return 256 bits: whether each pixel is brighter than its left neighbor."""
    return np.packbits(pixels[:, 1:] > pixels[:, :-1]).tobytes()


def _equal_bands(hashes: dict[int, bytes], others: dict[int, bytes]) -> Iterator[list[int]]:
    """Yield the images that have a part of their hashes in common.

    If `others` is not the same dict, its images are returned as ~index, and each list has some of
    both.
    """
    for start in range(0, HEIGHT * (WIDTH - 1) // 8, BAND_BYTES):
        members = defaultdict(list)
        for index, value in hashes.items():
            members[value[start : start + BAND_BYTES]].append(index)
        if others is not hashes:
            for index, value in others.items():
                members[value[start : start + BAND_BYTES]].append(~index)
        yield from (indices for indices in members.values() if len(indices) > 1)


def thumbnails_of(
    paths: Sequence[str],
    cache: Path | None,
    threads: int,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> list[bytes]:
    """Return the thumbnail of each image, from the cache if no file has changed.

    watch: passes the thumbnails on while they are computed, as a progress bar does.
    """
    key = f"{VERSION} {WIDTH} {HEIGHT} {cv2.__version__} {digest_of_states(paths)}"
    file = None
    if cache is not None:
        file = cache / f"thumbnails-{hashlib.sha256(key.encode()).hexdigest()[:16]}.bin"
        stored = _read(file, len(paths))
        if stored is not None:
            return stored

    with quiet_decoder():  # the scan reports damaged images
        thumbnails = list(watch(map_in_threads(_thumbnail_of_file, paths, threads)))
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
