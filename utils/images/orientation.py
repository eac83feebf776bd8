"""How an image file says that its pixels have to be turned, and the turned pixels.

JPEG, PNG and WebP say it by the tag Orientation of their EXIF data, TIFF by the same tag of its
own, AVIF by the boxes `irot` and `imir`. OpenCV turns JPEG and TIFF; it ignores AVIF's boxes, and
EXIF in animated PNG and WebP, and in some versions in still ones.

Source: EXIF 2.32, 4.6.4 (tag 274); PNG 3rd edition, 11.3.3.4 (eXIf); WebP container specification,
"Metadata"; ISO/IEC 23008-12:2022, 6.5.10 (irot), 6.5.12 (imir); ISO/IEC 14496-12, 4.2 and 8.11
(boxes, items).
"""

from collections.abc import Iterator

import numpy as np

from utils.images.headers import (
    EXIF_START,
    JPEG_START,
    PNG_START,
    TIFF_STARTS,
    jpeg_exif,
    png_chunks,
    tiff_number,
)
from utils.images.opencv import cv2

AS_STORED = 1  # the EXIF orientation of an image that is not turned
ORIENTATION_TAG = 0x0112

# A hostile file can have a box for each 8 bytes, and an association for each byte.
MAX_BOXES = 1000
MAX_IPMA_BYTES = 2**20

# The EXIF orientations 1 to 8: whether rows and columns change places, and then which axes are
# mirrored.
TURNS = {
    1: (False, ()),
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}
FLIP_CODES = {(0,): 0, (1,): 1, (0, 1): -1}  # of cv2.flip

# By the quarter turns of AVIF's irot, anticlockwise, and the axis of its imir, which is applied
# after it. imir 0 exchanges top and bottom, 1 left and right.
EXIF_OF_AVIF = {
    (0, None): 1,
    (1, None): 8,
    (2, None): 3,
    (3, None): 6,
    (0, 0): 4,
    (1, 0): 5,
    (2, 0): 2,
    (3, 0): 7,
    (0, 1): 2,
    (1, 1): 7,
    (2, 1): 4,
    (3, 1): 5,
}


def stored_orientation(data: bytes) -> int:
    """Return the EXIF orientation, 1 to 8, of an image file of any kind; 1 if it has none."""
    if data.startswith(JPEG_START):
        return _exif_orientation(jpeg_exif(data))
    if data[:4] in TIFF_STARTS:
        return _exif_orientation(data)
    return orientation_of(data) or AS_STORED


def orientation_of(data: bytes) -> int | None:
    """Return the EXIF orientation, 1 to 8, of a PNG, WebP or AVIF file; None for other files.

    Those are turned by OpenCV. It is 1 if the file says nothing, or nothing valid. EXIF in AVIF
    does not count: the standard leaves the orientation to irot and imir.
    """
    if data.startswith(PNG_START):
        return _exif_orientation(_exif_of_png(data))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _exif_orientation(_exif_of_webp(data))
    if is_avif(data):
        return _avif_orientation(data)
    return None


def is_avif(data: bytes) -> bool:
    """Return whether the first box of a file says that it is an AVIF image or image sequence.

    >>> is_avif(b"\\0\\0\\0\\x14ftypavif\\0\\0\\0\\0mif1")
    True
    >>> is_avif(b"\\0\\0\\0\\x10ftypisom\\0\\0\\0\\0")
    False
    """
    return bool(brands(data) & {b"avif", b"avis"})


def brands(data: bytes) -> set[bytes]:
    """Return what the first box of an ISO media file (AVIF, HEIC, MP4) says it is.

    That is its major brand and its compatible ones, of four letters each; none for other data.
    """
    if data[4:8] != b"ftyp":
        return set()

    major = data[8:12]  # its version follows
    length = int.from_bytes(data[:4], "big")
    end = min(length, 8 + 4 * MAX_BOXES)
    compatible = {data[start : start + 4] for start in range(16, end, 4)}
    return {major} | compatible


def turned(image: np.ndarray, orientation: int) -> np.ndarray:
    """Return an image [H, W, C] as its EXIF orientation, 1 to 8, wants it shown.

    >>> wide = np.array([[[1], [2], [3]]], np.uint8)
    >>> turned(wide, 6)[..., 0].tolist(), turned(wide, 2)[..., 0].tolist()
    ([[1], [2], [3]], [[3, 2, 1]])
    """
    exchanges_sides, mirrored = TURNS[orientation]
    if exchanges_sides:
        image = cv2.transpose(image)
    if mirrored:
        image = cv2.flip(image, FLIP_CODES[mirrored])
    return image if image.ndim == 3 else image[..., None]


def _exif_orientation(exif: bytes) -> int:
    """Return the orientation in EXIF data, 1 if they have no valid one."""
    value = tiff_number(exif.removeprefix(EXIF_START), ORIENTATION_TAG)
    return value if value in TURNS else AS_STORED


def _exif_of_png(data: bytes) -> bytes:
    """Return the content of the first eXIf chunk, which may follow the pixels; b"" without one."""
    for kind, start, end in png_chunks(data):
        if kind == b"eXIf":
            return data[start:end]
    return b""


def _exif_of_webp(data: bytes) -> bytes:
    """Return the content of the first EXIF chunk, b"" if there is none."""
    position = 12
    while position + 8 <= len(data):
        kind = data[position : position + 4]
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        start = position + 8
        end = start + length
        if kind == b"EXIF":
            return data[start:end]
        position = end + end % 2  # chunks begin at even offsets
    return b""


def _avif_orientation(data: bytes) -> int:
    """Return the EXIF orientation that the primary item's irot and imir amount to."""
    meta = _first_box(data, b"meta", 0, len(data))
    if meta is None:
        return AS_STORED

    turns = 0
    axis = None
    for kind, start, end in _properties_of_primary_item(data, *meta):
        if start == end:  # without its byte
            continue
        if kind == b"irot":
            turns = data[start] & 3
        elif kind == b"imir":
            axis = data[start] & 1
    return EXIF_OF_AVIF[turns, axis]


def _properties_of_primary_item(
    data: bytes, start: int, end: int
) -> Iterator[tuple[bytes, int, int]]:
    """Yield each property of the primary item of a `meta` box, as `_boxes` does.

    start, end: of the content of that box.
    """
    start += 4  # version and flags of meta
    primary = _first_box(data, b"pitm", start, end)
    properties = _first_box(data, b"iprp", start, end)
    if primary is None or properties is None:
        return

    # The id of the primary item.
    content = data[slice(*primary)]
    id_bytes = 4 if content[:1] > b"\0" else 2  # by the version of pitm
    item = int.from_bytes(content[4 : 4 + id_bytes], "big")

    # The properties of all items, numbered from 1 in the order of their boxes.
    container = _first_box(data, b"ipco", *properties)
    if container is None:
        return
    numbered = list(_boxes(data, *container))

    # Those that belong to the item.
    for kind, first, last in _boxes(data, *properties):
        if kind == b"ipma":
            last = min(last, first + MAX_IPMA_BYTES)
            for number in _associations(data[first:last], item):
                if 0 < number <= len(numbered):
                    yield numbered[number - 1]


def _associations(content: bytes, item: int) -> Iterator[int]:
    """Yield the numbers, from 1, of the properties that an `ipma` box gives to an item.

    content: of the box. item: the id.

    Source: ISO/IEC 23008-12, 9.3.
    """
    if len(content) < 8:
        return

    id_bytes = 4 if content[0] else 2  # by the version
    number_bytes = 2 if content[3] & 1 else 1  # by the flags
    mask = (1 << (8 * number_bytes - 1)) - 1  # the highest bit says that the property is essential

    # After the number of entries, for each: the id of its item, a count, and so many numbers.
    position = 8
    while position + id_bytes < len(content):
        owner = int.from_bytes(content[position : position + id_bytes], "big")
        count = content[position + id_bytes]
        position += id_bytes + 1
        end = position + count * number_bytes
        if owner == item:
            for start in range(position, end, number_bytes):
                yield int.from_bytes(content[start : start + number_bytes], "big") & mask
        position = end


def _first_box(data: bytes, wanted: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Return where the content of the first box of a type begins and ends; None without one."""
    for kind, first, last in _boxes(data, start, end):
        if kind == wanted:
            return first, last
    return None


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type of each box between two offsets, and where its content begins and ends.

    It stops at a box that reaches out of them, and after MAX_BOXES boxes.
    """
    position = start
    for _ in range(MAX_BOXES):
        if position + 8 > end:
            return
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        first = position + 8
        if length == 1:  # it follows, in 8 bytes
            length = int.from_bytes(data[position + 8 : position + 16], "big")
            first = position + 16

        last = position + length if length else end  # 0: up to the end
        if last < first or last > end:
            return
        yield kind, first, last
        position = last
