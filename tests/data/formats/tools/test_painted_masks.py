"""Masks that a brush has painted: an encoder written here, damaged bytes, a mask too large."""

import base64
import zlib
from itertools import pairwise

import numpy as np
import pytest

from data.formats.tools.painted_masks import bitmap_size, brush_box
from data.labels import BadRowError

WORD_BITS = 8
LENGTH_BITS = (3, 4, 8, 16)


def encoded(values: np.ndarray, runs: bool = True) -> list[int]:
    """Return values as bytes of runs of equal values, or of one run of different ones."""
    bits = f"{len(values):032b}{WORD_BITS - 1:05b}"
    bits += "".join(f"{width - 1:04b}" for width in LENGTH_BITS)
    if runs:
        starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
        for start, stop in pairwise(starts):
            bits += "1" + length(stop - start) + f"{values[start]:08b}"
    else:
        bits += "0" + length(len(values)) + "".join(f"{value:08b}" for value in values)
    bits += "0" * (-len(bits) % 8)
    return [int(bits[place : place + 8], 2) for place in range(0, len(bits), 8)]


def length(count: int) -> str:
    """Return the bits of a run's length: which of four widths, and the length minus 1."""
    index = next(k for k, width in enumerate(LENGTH_BITS) if count <= 1 << width)
    return f"{index:02b}{count - 1:0{LENGTH_BITS[index]}b}"


@pytest.mark.parametrize("runs", [True, False])
def test_box_of_what_is_painted(runs: bool) -> None:
    """Alpha counts; columns 3 to 5 of rows 2 to 6 are painted, and the color of another pixel."""
    rgba = np.zeros((10, 12, 4), np.uint8)
    rgba[2:7, 3:6] = 255
    rgba[9, 9, :3] = 7
    assert brush_box(encoded(rgba.ravel(), runs), (12, 10)) == (3, 2, 6, 7)


def test_whole_image_and_one_pixel() -> None:
    assert brush_box(encoded(np.full(4 * 5 * 3, 255, np.uint8)), (5, 3)) == (0, 0, 5, 3)
    assert brush_box(encoded(np.full(4, 1, np.uint8)), (1, 1)) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    ("rle", "size", "reason"),
    [
        ([], (2, 2), "the mask ends too early"),
        (encoded(np.ones(16, np.uint8))[:-1], (2, 2), "the mask ends too early"),
        (encoded(np.ones(16, np.uint8)), (2, 3), "the mask has 16 values, must have 4 for each"),
        (encoded(np.zeros(16, np.uint8)), (2, 2), "nothing is painted in the mask"),
        ([255] * 99, (10**6, 10**6), "a mask of 1000000 x 1000000 is too large"),
    ],
)
def test_bad_masks_are_refused(rle: list[int], size: tuple[int, int], reason: str) -> None:
    with pytest.raises(BadRowError) as found:
        brush_box(rle, size)
    assert str(found.value).startswith(reason)


def test_only_the_start_of_a_bitmap_is_decompressed() -> None:
    """A gigabyte of zeros is a megabyte in zlib; here 10 MiB, which would fail as a PNG, too."""
    bomb = zlib.compress(bytes(10 << 20))
    with pytest.raises(BadRowError, match=r"^the mask is no PNG"):
        bitmap_size(base64.b64encode(bomb).decode())
    start = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + (7).to_bytes(4, "big") + (3).to_bytes(4, "big")
    assert bitmap_size(base64.b64encode(zlib.compress(start)).decode()) == (7, 3)
    assert bitmap_size(base64.b64encode(zlib.compress(start + bomb)).decode()) == (7, 3)
