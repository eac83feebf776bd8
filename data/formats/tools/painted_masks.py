"""The box of a painted mask: of Supervisely's bitmaps and of Label Studio's brush strokes."""

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from data.formats.annotations import MASK
from data.labels import BadRowError
from utils.images.headers import PNG_START

MAX_PIXELS = 2**26  # of a mask that is decoded, with four bytes each
PNG_SIDES = slice(16, 24)  # its width and height, four bytes each


def bitmap_size(text: str) -> tuple[int, int]:
    """Return the width and height of a bitmap: a PNG, compressed by zlib, in Base64.

    Supervisely crops it to what is painted. Raises BadRowError if it is none.
    """
    try:
        compressed = base64.b64decode(text, validate=True)
        start = zlib.decompressobj().decompress(compressed, PNG_SIDES.stop)
    except (binascii.Error, ValueError, zlib.error):
        start = b""
    if not start.startswith(PNG_START) or len(start) < PNG_SIDES.stop:
        raise BadRowError(f"the {MASK} is no PNG that zlib has compressed")
    sides = start[PNG_SIDES]
    return int.from_bytes(sides[:4], "big"), int.from_bytes(sides[4:], "big")


def brush_box(rle: Sequence[int], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of what a brush has painted, in pixels.

    rle: the bytes of run lengths of the red, green, blue and alpha values of an image of `size`
    (width, height). Source: github.com/thi-ng/umbrella, packages/rle-pack.

    Raises BadRowError if they are not of such an image, or nothing is painted.
    """
    width, height = size
    if width * height > MAX_PIXELS:
        raise BadRowError(f"a {MASK} of {width} x {height} is too large")

    bits = _Bits(bytes(rle))
    count = bits.read(32)
    if count != 4 * width * height:
        raise BadRowError(f"the {MASK} has {count} values, must have 4 for each of its pixels")
    painted = np.zeros(count, np.bool_)
    for start, stop, value in _runs(bits, count):
        painted[start:stop] = value > 0

    alpha = painted.reshape(height, width, 4)[..., 3]
    rows = alpha.any(1).nonzero()[0]
    columns = alpha.any(0).nonzero()[0]
    if not len(rows):
        raise BadRowError(f"nothing is painted in the {MASK}")
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _runs(bits: "_Bits", count: int) -> Iterator[tuple[int, int, int]]:
    """Iterate over the first place, the end and the value of each run of equal values."""
    word_bits = bits.read(5) + 1
    length_bits = [bits.read(4) + 1 for _ in range(4)]
    place = 0
    while place < count:
        is_run = bits.read(1)
        length = bits.read(length_bits[bits.read(2)]) + 1
        stop = min(place + length, count)
        if is_run:
            yield place, stop, bits.read(word_bits)
        else:
            for index in range(place, stop):
                yield index, index + 1, bits.read(word_bits)
        place = stop


class _Bits:
    """Reads numbers of any width from bytes, the highest bit first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0  # the next bit

    def read(self, width: int) -> int:
        """Return the next number. Raises BadRowError at the end of the bytes."""
        stop = self.at + width
        if stop > 8 * len(self.data):
            raise BadRowError(f"the {MASK} ends too early")
        last = (stop + 7) // 8
        window = int.from_bytes(self.data[self.at // 8 : last], "big")
        self.at = stop
        return window >> (8 * last - stop) & ((1 << width) - 1)
