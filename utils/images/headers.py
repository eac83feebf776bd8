"""What the headers of image files say.

Sizes that files claim, JPEG segments, whether there is only one channel.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

PNG_START, GIF_STARTS, TIFF_STARTS = (
    b"\x89PNG\r\n\x1a\n",
    (b"GIF87a", b"GIF89a"),
    (b"II*\0", b"MM\0*"),
)
JPEG_START, JPEG_END, JPEG_SCAN = b"\xff\xd8", b"\xff\xd9", 0xDA
# frame markers, one for each JPEG coding process
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PROGRESSIVE = (0xC2, 0xCA)
GRAY_PNG_TYPES = (0, 4)  # color types: gray, gray with alpha
GRAY_PNM_STARTS = (b"P1", b"P2", b"P4", b"P5")
# the tag PhotometricInterpretation; WhiteIsZero and BlackIsZero
TIFF_PHOTOMETRIC, TIFF_GRAY = 262, (0, 1)
# the tags BitsPerSample and SampleFormat, whose values follow
TIFF_BITS, TIFF_SAMPLE_FORMAT = 258, 339
TIFF_SIGNED, TIFF_FLOAT = 2, 3
TIFF_SHORT = 3  # the type of 16-bit numbers


class JpegHeader(NamedTuple):
    """The frame marker, the number of pixels and channels, and the offset of the first scan.

    0 for what is absent.
    """

    frame: int = 0
    pixels: int = 0
    channels: int = 0
    scan: int = 0


def jpeg_header(data: bytes) -> JpegHeader:
    """Return what the header of a JPEG says; zeros for other data.

    Goes from segment to segment, because a thumbnail in the header has its own frame and end
    marker.
    """
    found, position = JpegHeader(), 2 if data.startswith(JPEG_START) else len(data)
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker, length = (
            data[position + 1],
            int.from_bytes(data[position + 2 : position + 4], "big"),
        )
        if marker == JPEG_SCAN:
            return found._replace(scan=position)
        if marker in FRAMES:
            sides = data[position + 5 : position + 9]
            pixels = int.from_bytes(sides[:2], "big") * int.from_bytes(sides[2:], "big")
            found = JpegHeader(
                marker, pixels, int.from_bytes(data[position + 9 : position + 10], "big")
            )
        position += 1 if marker == 0xFF else 2 + length
    return found


def gif_pixels(data: bytes) -> int:
    """Return the number of pixels of the canvas that the frames of a GIF are drawn on.

    0 for other data.
    """
    if not data.startswith(GIF_STARTS):
        return 0
    return int.from_bytes(data[6:8], "little") * int.from_bytes(data[8:10], "little")


def is_gray(data: bytes) -> bool:
    """Return whether the header of an image file says that it has gray values only.

    Of a JPEG, PNG, PNM or TIFF file. False for all other kinds of files.

    >>> is_gray(b"P5\\n1 1\\n255\\n0"), is_gray(b"P6\\n1 1\\n255\\n000")
    (True, False)
    """
    if data.startswith(PNG_START):
        return data[25:26] != b"" and data[25] in GRAY_PNG_TYPES
    if data[:4] in TIFF_STARTS:
        return tiff_number(data, TIFF_PHOTOMETRIC) in TIFF_GRAY
    return data.startswith(GRAY_PNM_STARTS) or jpeg_header(data).channels == 1


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type of each chunk of a PNG, and where its content begins and ends.

    Up to IEND or the end of the data. The end of the last chunk may be past the end of the data.
    """
    position = len(PNG_START)
    while position < len(data):
        start = position + 8
        kind = data[position + 4 : start]
        end = start + int.from_bytes(data[position : position + 4], "big")
        yield kind, start, end
        if kind == b"IEND":
            return
        position = end + 4  # the checksum


def tiff_number(data: bytes, tag: int) -> int:
    """Return the 16-bit number of a tag in the first page of a TIFF, or in EXIF data.

    -1 if it is absent. Of several numbers, such as BitsPerSample, the first one. Source: TIFF 6.0,
    section 2.
    """
    if data[:4] not in TIFF_STARTS:
        return -1
    order: Literal["big", "little"] = "big" if data.startswith(b"MM") else "little"

    def number(start: int, length: int) -> int:
        return int.from_bytes(data[start : start + length], order)

    page = number(4, 4)
    for entry in range(page + 2, page + 2 + 12 * number(page, 2), 12):
        if entry + 12 > len(data):
            break
        if number(entry, 2) == tag and number(entry + 2, 2) == TIFF_SHORT:
            fits_in_entry = number(entry + 4, 4) <= 2
            return number(entry + 8, 2) if fits_in_entry else number(number(entry + 8, 4), 2)
    return -1
