"""Video containers, recognized by the first bytes of a file.

FFmpeg is told which one it reads and never guesses.

Left to guess, FFmpeg takes a playlist, a concat script or a session description for a video,
whatever the suffix of the file is, and opens the files and addresses written in it. Source: ISO/IEC
14496-12 4.2 (boxes), RIFF (Multimedia Programming Interface 1.0, 1991), RFC 8794 (EBML), ISO/IEC
13818-1 2.4.3 and 2.5.3 (transport and program streams).
"""

import os
from collections.abc import Iterator
from typing import BinaryIO

VIDEO_SUFFIXES = frozenset(
    (".3gp", ".asf", ".avi", ".flv", ".gif", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4")
    + (".mpeg", ".mpg", ".mts", ".ogv", ".ts", ".vob", ".webm", ".wmv")
)
# Of a transport stream: where the first packet starts, the bytes of a packet.
PACKETS = ((0, 188), (4, 192))  # .ts, .m2ts
PACKET_START = 0x47
HEAD_BYTES = 4 + 5 * 192  # five packets of an .m2ts file

STARTS = {  # FFmpeg's name of the format: how its files start
    "matroska": b"\x1a\x45\xdf\xa3",  # also WebM
    "flv": b"FLV\x01",
    "asf": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c"),
    "gif": b"GIF8",
    "ogg": b"OggS",
    "mpeg": b"\x00\x00\x01\xba",
    "mpegvideo": b"\x00\x00\x01\xb3",
}
FIRST_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
SEGMENT = b"\x18\x53\x80\x67"
MOVIE_HEADER_BYTES = 36  # more than the box mvhd needs up to its duration
MAX_BOXES = 1000  # a hostile file can have a box for each 8 bytes


def container_of(head: bytes) -> str | None:
    """Return FFmpeg's name of the container that starts with these bytes, or None.

    HEAD_BYTES of a file suffice.

    >>> container_of(b"RIFF\\x00\\x00\\x00\\x00AVI LIST"), container_of(b"#EXTM3U")
    ('avi', None)
    """
    if head[4:8] in FIRST_BOXES:
        return "mov"
    if head[:4] == b"RIFF" and head[8:11] == b"AVI":
        return "avi"

    for offset, size in PACKETS:
        packet_starts = set(head[offset::size])
        if len(head) > offset + size and packet_starts == {PACKET_START}:
            return "mpegts"

    for name, start in STARTS.items():
        if head.startswith(start):
            return name
    return None


def is_cut_off(path: str | os.PathLike[str], container: str) -> bool:
    """Whether a video file is shorter than its own headers say; False if they do not."""
    readers = {"mov": _end_of_boxes, "avi": _end_of_riff, "matroska": _end_of_segment}
    if container not in readers:
        return False

    stated_end = readers[container]
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return stated_end(stream, size) > size


def presented_ms(path: str | os.PathLike[str], container: str) -> float | None:
    """Return how long a video file of the MP4 family plays, in milliseconds.

    Edit lists may cut some of its frames. None if the file does not say, and for other containers.
    Source: ISO/IEC 14496-12, 8.2.2 (mvhd).
    """
    if container != "mov":
        return None

    # The header mvhd is in the box moov.
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        movie = _content_of(b"moov", stream, 0, size)
        header = None if movie is None else _content_of(b"mvhd", stream, movie, size)
        if header is None:
            return None
        stream.seek(header)
        content = stream.read(MOVIE_HEADER_BYTES)

    # The ticks per second, then the duration in ticks. Version 1 has 64-bit times.
    is_version_1 = content[:1] == b"\1"
    scale_at = 20 if is_version_1 else 12
    duration_at = scale_at + 4
    duration_bytes = 8 if is_version_1 else 4
    scale = int.from_bytes(content[scale_at:duration_at], "big")
    duration = int.from_bytes(content[duration_at : duration_at + duration_bytes], "big")

    all_ones = (1 << 8 * duration_bytes) - 1
    if duration in (0, all_ones) or not scale:
        return None
    return 1000 * duration / scale


def _content_of(kind: bytes, stream: BinaryIO, start: int, size: int) -> int | None:
    """Return the offset of the content of the first box of a type, None if there is none.

    start: where the boxes begin. size: of the file.
    """
    for box_kind, content, _ in _boxes(stream, start, size):
        if box_kind == kind:
            return content
    return None


def _boxes(stream: BinaryIO, start: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the boxes from an offset on: type, where the content begins, where the box ends.

    A length of 0 means up to the end of the file, and ends the boxes, as a length that cannot be
    does. size: of the file.
    """
    position = start
    for _ in range(MAX_BOXES):
        stream.seek(position)
        header = stream.read(16)
        if len(header) < 8:
            return

        kind = header[4:8]
        length = int.from_bytes(header[:4], "big")
        content = position + 8
        if length == 1:  # a 64-bit length follows
            length = int.from_bytes(header[8:16], "big")
            content = position + 16

        if length == 0:
            yield kind, content, size
            return
        if length < 8:
            return
        yield kind, content, position + length
        position += length
        if position >= size:
            return


def _end_of_boxes(stream: BinaryIO, size: int) -> int:
    """Return the offset at which the last top-level box ends.

    A length of 0 means up to the end of the file.
    """
    ends = [end for _, _, end in _boxes(stream, 0, size)]
    return max(ends, default=0)


def _end_of_riff(stream: BinaryIO, _: int) -> int:
    """Return the offset at which an AVI file ends; 0 if the recorder has not filled it in."""
    length = int.from_bytes(stream.read(8)[4:], "little")
    return 0 if length in (0, 0xFFFFFFFF) else length + 8


def _end_of_segment(stream: BinaryIO, _: int) -> int:
    """Return the offset at which the segment of a Matroska file ends; 0 if it is not stated."""
    # Behind the EBML header.
    stream.seek(4)
    header_length = _ebml_length(stream)
    stream.seek(header_length or 0, os.SEEK_CUR)
    if stream.read(4) != SEGMENT:
        return 0

    length = _ebml_length(stream)
    return 0 if length is None else stream.tell() + length


def _ebml_length(stream: BinaryIO) -> int | None:
    """Read a length: as many further bytes as there are zero bits before the first 1.

    The bits after that 1 are the number; None if they are all ones, which means unknown.
    """
    first = stream.read(1)
    if not first or not first[0]:
        return None

    more = 8 - first[0].bit_length()
    content = first + stream.read(more)
    all_ones = (1 << 7 * (more + 1)) - 1
    length = int.from_bytes(content, "big") & all_ones
    return None if length == all_ones else length
