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
    (
        ".3gp",
        ".asf",
        ".avi",
        ".flv",
        ".gif",
        ".m2ts",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
    )
    + (".ogv", ".ts", ".vob", ".webm", ".wmv")
)
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
    """Return FFmpeg's name of the container that starts with these bytes (HEAD_BYTES suffice), or
    None.

    >>> container_of(b"RIFF\\x00\\x00\\x00\\x00AVI LIST"), container_of(b"#EXTM3U")
    ('avi', None)
    """
    if head[4:8] in FIRST_BOXES:
        return "mov"
    if head[:4] == b"RIFF" and head[8:11] == b"AVI":
        return "avi"
    if any(
        len(head) > offset + size and set(head[offset::size]) == {0x47}
        for offset, size in ((0, 188), (4, 192))
    ):
        return "mpegts"
    return next((name for name, start in STARTS.items() if head.startswith(start)), None)


def is_cut_off(path: str | os.PathLike[str], container: str) -> bool:
    """Whether a video file is shorter than its own headers say.

    False if its container does not say.
    """
    ends = {"mov": _end_of_boxes, "avi": _end_of_riff, "matroska": _end_of_segment}
    if container not in ends:
        return False
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return ends[container](stream, size) > size


def presented_ms(path: str | os.PathLike[str], container: str) -> float | None:
    """Return how long a video file of the MP4 family plays, in milliseconds, after the cuts of its
    edit lists.

    None if the file does not say, and for other containers. Source: ISO/IEC 14496-12, 8.2.2 (mvhd).
    """
    if container != "mov":
        return None
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        movie = next((start for kind, start, _ in _boxes(stream, 0, size) if kind == b"moov"), None)
        if movie is None:
            return None
        header = next(
            (start for kind, start, _ in _boxes(stream, movie, size) if kind == b"mvhd"), None
        )
        if header is None:
            return None
        stream.seek(header)
        content = stream.read(MOVIE_HEADER_BYTES)

    is_long = content[:1] == b"\1"  # version 1 has 64-bit times
    scale_at, duration_bytes = (20, 8) if is_long else (12, 4)
    scale = int.from_bytes(content[scale_at : scale_at + 4], "big")
    duration = int.from_bytes(content[scale_at + 4 : scale_at + 4 + duration_bytes], "big")
    is_unknown = duration in (0, (1 << 8 * duration_bytes) - 1)
    return None if is_unknown or not scale else 1000 * duration / scale


def _boxes(stream: BinaryIO, start: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the type of each box from an offset on, and where its content begins and where it says
    it ends.

    A length of 0 means up to the end of the file, and ends the boxes, as a length that cannot be
    does.
    """
    position = start
    for _ in range(MAX_BOXES):
        stream.seek(position)
        header = stream.read(16)
        if len(header) < 8:
            return
        length, content = int.from_bytes(header[:4], "big"), position + 8
        if length == 1:
            length, content = int.from_bytes(header[8:16], "big"), position + 16
        if length < 8:
            if length == 0:
                yield header[4:8], content, size
            return
        yield header[4:8], content, position + length
        position += length
        if position >= size:
            return


def _end_of_boxes(stream: BinaryIO, size: int) -> int:
    """Return the offset at which the last top-level box ends.

    A length of 0 means up to the end of the file.
    """
    return max((end for _, _, end in _boxes(stream, 0, size)), default=0)


def _end_of_riff(stream: BinaryIO, _: int) -> int:
    length = int.from_bytes(stream.read(8)[4:], "little")
    return 0 if length in (0, 0xFFFFFFFF) else length + 8  # not filled in by the recorder


def _end_of_segment(stream: BinaryIO, _: int) -> int:
    """Return the offset at which the segment of a Matroska file ends; 0 if it is not stated."""
    stream.seek(4)
    head_length = _ebml_number(stream)
    stream.seek(head_length or 0, os.SEEK_CUR)
    if stream.read(4) != SEGMENT:
        return 0
    length = _ebml_number(stream)
    return 0 if length is None else stream.tell() + length


def _ebml_number(stream: BinaryIO) -> int | None:
    """Read a length: as many further bytes as there are zero bits before the first 1.

    None if unknown (all ones).
    """
    first = stream.read(1)
    if not first or not first[0]:
        return None
    more = 8 - first[0].bit_length()
    bits = 7 * (more + 1)
    value = int.from_bytes(first + stream.read(more), "big") & (1 << bits) - 1
    return None if value == (1 << bits) - 1 else value
