"""What the headers of image files say: the size that a file claims, whether it is gray.

Also the parts of a file: the segments of a JPEG, the chunks of a PNG, the tags of a TIFF.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

# How files begin.
PNG_START = b"\x89PNG\r\n\x1a\n"
GIF_STARTS = (b"GIF87a", b"GIF89a")
TIFF_STARTS = (b"II*\0", b"MM\0*")  # little endian and big endian
JPEG_START = b"\xff\xd8"
GRAY_PNM_STARTS = (b"P1", b"P2", b"P4", b"P5")

# JPEG's markers.
JPEG_END = b"\xff\xd9"
JPEG_SCAN = 0xDA
JPEG_EXIF = 0xE1
EXIF_START = b"Exif\0\0"
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # one for each coding process
PROGRESSIVE = (0xC2, 0xCA)

GRAY_PNG_TYPES = (0, 4)  # color types: gray, gray with alpha

# TIFF's tags, and some of their values.
TIFF_BITS = 258  # BitsPerSample
TIFF_PHOTOMETRIC = 262  # PhotometricInterpretation
TIFF_GRAY = (0, 1)  # WhiteIsZero and BlackIsZero
TIFF_SAMPLE_FORMAT = 339  # SampleFormat
TIFF_SIGNED = 2
TIFF_FLOAT = 3
TIFF_SHORT = 3  # the type of 16-bit numbers


class JpegHeader(NamedTuple):
    """What the header of a JPEG says; 0 for what is absent."""

    frame: int = 0  # its marker
    pixels: int = 0
    channels: int = 0
    scan: int = 0  # offset of the first one
    size: tuple[int, int] = (0, 0)  # width and height, as stored


def jpeg_header(data: bytes) -> JpegHeader:
    """Return what the header of a JPEG says; zeros for other data.

    It goes from segment to segment, because a thumbnail in the header has its own frame and end
    marker.
    """
    header = JpegHeader()
    for marker, start in jpeg_segments(data):
        if marker == JPEG_SCAN:
            return header._replace(scan=start)
        if marker in FRAMES:
            height = int.from_bytes(data[start + 5 : start + 7], "big")
            width = int.from_bytes(data[start + 7 : start + 9], "big")
            channels = int.from_bytes(data[start + 9 : start + 10], "big")
            header = JpegHeader(marker, height * width, channels, size=(width, height))
    return header


def jpeg_exif(data: bytes) -> bytes:
    """Return the EXIF data in the header of a JPEG, with their mark; b"" if there are none."""
    for marker, start in jpeg_segments(data):
        content = data[start + 4 : start + 2 + _jpeg_length(data, start)]
        if marker == JPEG_EXIF and content.startswith(EXIF_START):
            return content
    return b""


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment in the header of a JPEG, and where it begins.

    The last one is that of the first scan, or the last one before the end of the data. None for
    other data.
    """
    if not data.startswith(JPEG_START):
        return

    position = len(JPEG_START)
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # a filling byte before a marker
            position += 1
            continue
        yield marker, position
        if marker == JPEG_SCAN:
            return
        position += 2 + _jpeg_length(data, position)


def _jpeg_length(data: bytes, start: int) -> int:
    """Return the length of the segment that begins at `start`, without its marker."""
    return int.from_bytes(data[start + 2 : start + 4], "big")


def gif_pixels(data: bytes) -> int:
    """Return the number of pixels of the canvas of a GIF; 0 for other data."""
    if not data.startswith(GIF_STARTS):
        return 0
    width = int.from_bytes(data[6:8], "little")
    height = int.from_bytes(data[8:10], "little")
    return width * height


def stated_pixels(data: bytes) -> int:
    """Return the number of pixels that the header of a JPEG or PNG states; 0 of other files."""
    if data.startswith(PNG_START):
        width = int.from_bytes(data[16:20], "big")
        height = int.from_bytes(data[20:24], "big")
        return width * height
    return jpeg_header(data).pixels


def is_gray(data: bytes) -> bool:
    """Return whether the header of an image file says that it has gray values only.

    The headers of JPEG, PNG, PNM and TIFF files are read; False for all other kinds of files.

    >>> is_gray(b"P5\\n1 1\\n255\\n0"), is_gray(b"P6\\n1 1\\n255\\n000")
    (True, False)
    """
    if data.startswith(PNG_START):
        color_type = data[25:26]  # one byte, or none if the file is cut
        return color_type != b"" and color_type[0] in GRAY_PNG_TYPES
    if data[:4] in TIFF_STARTS:
        return tiff_number(data, TIFF_PHOTOMETRIC) in TIFF_GRAY
    return data.startswith(GRAY_PNM_STARTS) or jpeg_header(data).channels == 1


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type of each chunk of a PNG, and where its content begins and ends.

    The last one is IEND, or that at the end of the data, which may end past the end of the data.
    """
    position = len(PNG_START)
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        start = position + 8
        end = start + length
        yield kind, start, end
        if kind == b"IEND":
            return
        position = end + 4  # the checksum


def tiff_number(data: bytes, tag: int) -> int:
    """Return the 16-bit number of a tag in the first page of a TIFF, or in EXIF data.

    It is -1 if the tag is absent. Of several numbers, such as BitsPerSample, it is the first one.

    Source: TIFF 6.0, section 2.
    """
    if data[:4] not in TIFF_STARTS:
        return -1
    order: Literal["big", "little"] = "big" if data.startswith(b"MM") else "little"

    def number(start: int, length: int) -> int:
        return int.from_bytes(data[start : start + length], order)

    # A page: the number of entries, then 12 bytes for each: tag, type, count, value or offset.
    page = number(4, 4)
    num_entries = number(page, 2)
    first_entry = page + 2
    for entry in range(first_entry, first_entry + 12 * num_entries, 12):
        if entry + 12 > len(data):
            break
        if number(entry, 2) == tag and number(entry + 2, 2) == TIFF_SHORT:
            value = entry + 8
            count = number(entry + 4, 4)
            if count > 2:  # they do not fit into the entry, which has their offset
                value = number(value, 4)
            return number(value, 2)
    return -1
