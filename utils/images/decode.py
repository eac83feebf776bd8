"""Read an image file, and decode it to uint8 BGR."""

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from utils.images.bit_depth import to_8_bits
from utils.images.headers import (
    JPEG_END,
    PNG_START,
    PROGRESSIVE,
    TIFF_BITS,
    TIFF_FLOAT,
    TIFF_SAMPLE_FORMAT,
    TIFF_SIGNED,
    gif_pixels,
    jpeg_header,
    png_chunks,
    stated_pixels,
    tiff_number,
)
from utils.images.opencv import cv2
from utils.images.orientation import brands, orientation_of, turned
from utils.printable import printable

# What OpenCV decodes to 8-bit color. Raw and HDR formats (.dng, .pfm, .exr) are left out: 8 bits
# change their meaning.
IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".dib", ".jp2", ".jpe", ".jpeg", ".jpg", ".mpo")
    + (".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)

MAX_PIXELS = 1 << 30  # that OpenCV reads

# JPEG: at most 64 per bit, 512 per byte; GIF: at most 4095 per 12 bits, 2730 per byte
MAX_PIXELS_PER_BYTE = 4000
# 10 blocks of 64 coefficients of 27 bits: less could end before it changes a pixel
MAX_BYTES_PER_UNIT = 2160

# PFM, HDR, EXR, with any suffix
FLOAT_STARTS = (b"PF\n", b"Pf\n", b"#?RADIANCE", b"#?RGBE", b"v/1\x01")
FLOAT_VALUES = "has floating-point values, whose range is unknown"
ALLOWED_VALUES = "allowed are unsigned ones of 8 and 16 bits"
HEIC_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"))

# Why a file cannot be read, for as long as its state is the same.
LASTING_ERRORS = (FileNotFoundError, NotADirectoryError, PermissionError)

DECODER_VERSION = 2  # increase it when a change of the code gives other pixels for the same files


def is_image_name(name: str) -> bool:
    """Return whether a file with this name counts as an image.

    >>> is_image_name("a.JPG"), is_image_name("a.txt"), is_image_name("._a.jpg")
    (True, False, False)
    """
    _, suffix = os.path.splitext(name)
    return suffix.lower() in IMAGE_SUFFIXES and not name.startswith(".")


def read_image(path: str | Path) -> np.ndarray:
    """Return the pixels of an image file: uint8 [H, W, 3], blue green red, upright.

    Raises: ValueError if the file cannot be read, and as `decode_bgr` does.
    """
    return decode_bgr(read_bytes(path), path)


class UnreadableFileError(ValueError):
    """A file cannot be read now, by a fault of a disk or a network that may pass."""


def read_bytes(path: str | Path) -> bytes:
    """Return the contents of a regular file.

    Raises: ValueError with its path if it cannot be read: UnreadableFileError if it may be later.
    """
    try:
        # Reading a pipe may never end, so only regular files are read.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a regular file")
        with open(path, "rb") as stream:
            return stream.read()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        may_pass = isinstance(error, OSError) and not isinstance(error, LASTING_ERRORS)
        kind = UnreadableFileError if may_pass else ValueError
        raise kind(f"{printable(path)} cannot be read: {reason}") from None


def decode_bgr(data: bytes, name: str | Path) -> np.ndarray:
    """Decode the bytes of an image file to uint8 [H, W, 3], blue green red, upright.

    The rotation and mirroring that the file asks for are applied (see orientation.py), gray becomes
    three equal channels, alpha is dropped, CMYK is converted, only the first page is read. 16-bit
    values are divided by the full scale of the smallest usual bit depth (8, 10, 12, 14 or 16 bits)
    that holds the largest value of the image, and mapped to 0 to 255: see `to_8_bits`. A JPEG that
    lacks only its end marker is accepted.

    Raises: as `decode_any_depth`.
    """
    return to_8_bits(decode_any_depth(data, name))


def decode_any_depth(data: bytes, name: str | Path) -> np.ndarray:
    """Decode the bytes of an image file as `decode_bgr` does, but keep 16-bit values.

    Returns uint8 or uint16 [H, W, 3].

    Raises: ValueError with `name` if the image is damaged or truncated, or has floating-point,
    signed or 32-bit values; MemoryError with `name` if there is too little memory for its pixels.
    """
    if data.startswith(FLOAT_STARTS):
        raise ValueError(f"{printable(name)} {FLOAT_VALUES}")

    try:
        image = _decode(data) if has_end(data) else _decode_without_end(data)
    except MemoryError as error:
        raise MemoryError(f"cannot decode {printable(name)}") from error

    if image is None:
        raise ValueError(f"{printable(name)} {_why_undecodable(data)}")
    if image.dtype.kind == "f":
        raise ValueError(f"{printable(name)} {FLOAT_VALUES}")
    if image.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"{printable(name)} has {image.dtype} values, {ALLOWED_VALUES}")
    return image


def has_end(data: bytes) -> bool:
    """Return False for a JPEG without its end marker, True for all other data.

    >>> data = b"\\xff\\xd8\\xff\\xda\\x00\\x02abc"
    >>> has_end(data), has_end(data + b"\\xff\\xd9")
    (False, True)
    """
    scan = jpeg_header(data).scan
    return not scan or data.find(JPEG_END, scan) >= 0


@contextmanager
def quiet_decoder() -> Iterator[None]:
    """Silence OpenCV's log on stderr while many files are decoded.

    The caller reports each problem itself.
    """
    log = cv2 if hasattr(cv2, "setLogLevel") else cv2.utils.logging  # OpenCV 4, OpenCV 5
    level = log.getLogLevel()
    log.setLogLevel(0)
    try:
        yield
    finally:
        log.setLogLevel(level)


def _is_damaged_png(data: bytes) -> bool:
    """Return whether a PNG is damaged in a way that OpenCV should not or does not meet.

    One is a chunk that reaches past the end of the file: OpenCV allocates as much memory as a chunk
    claims to need. The other is a wrong checksum in an animated file: OpenCV verifies those of
    still images only.
    """
    if not data.startswith(PNG_START):
        return False

    pixels_start = data.find(b"IDAT")
    is_animated = data.find(b"acTL", 0, pixels_start) >= 0
    for kind, start, end in png_chunks(data):
        if end + 4 > len(data):
            return True
        if is_animated:
            checksum = int.from_bytes(data[end : end + 4], "big")
            if zlib.crc32(memoryview(data)[start - 4 : end]) != checksum:
                return True
        if kind == b"IEND":
            return False
    return True


def _why_undecodable(data: bytes) -> str:
    """Return why OpenCV gives no pixels for the bytes of a file, as half a sentence."""
    if not data:
        return "is empty"
    if HEIC_BRANDS & brands(data):
        return "is a HEIC image, which OpenCV cannot decode; convert it to JPEG or PNG"
    sample_format = tiff_number(data, TIFF_SAMPLE_FORMAT)
    if sample_format == TIFF_FLOAT:
        return FLOAT_VALUES
    pixels = stated_pixels(data)
    if pixels > MAX_PIXELS:
        return (
            f"has {pixels:,} pixels by its header, more than OpenCV reads (2^30): cut it into "
            "parts, or set OPENCV_IO_MAX_IMAGE_PIXELS"
        )
    bits = tiff_number(data, TIFF_BITS)
    if sample_format == TIFF_SIGNED or bits > 16:
        kind = "int" if sample_format == TIFF_SIGNED else "uint"
        return f"has {kind}{bits} values, {ALLOWED_VALUES}"
    return "is damaged, truncated or not an image that OpenCV can decode"


def _decode(data: bytes) -> np.ndarray | None:
    """Return the upright pixels of an image, of any type; None if it cannot be decoded.

    Raises: MemoryError if there is too little memory.
    """
    claimed_pixels = gif_pixels(data) or jpeg_header(data).pixels
    if claimed_pixels > MAX_PIXELS_PER_BYTE * len(data):  # OpenCV would fill gigabytes with gray
        return None
    if _is_damaged_png(data):
        return None

    flags = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH
    orientation = orientation_of(data)
    if orientation is not None:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION

    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:  # empty, or more pixels than OpenCV allows
        if error.code == cv2.Error.StsNoMem:
            raise MemoryError from error  # the image may be intact: it must not count as damaged
        return None

    if image is None or orientation is None:
        return image
    return turned(image, orientation)


def _decode_without_end(data: bytes) -> np.ndarray | None:
    """Decode a JPEG without end marker; None if pixels are missing too.

    The data are decoded twice, with two fillings that differ from the first bit on: a decoder skips
    bytes after the last pixel, so the results differ only if pixels are missing. Progressive JPEGs
    are rejected: without the last scans no pixel is missing, but all are coarse.
    """
    if jpeg_header(data).frame in PROGRESSIVE:
        return None

    if data.endswith(b"\0\0"):  # as in a file whose length was set before its contents were written
        data = data.rstrip(b"\0")
    data = data.rstrip(b"\xff")  # the first byte of the end marker or of an escaped byte

    first = _decode(data + MAX_BYTES_PER_UNIT * b"\x00" + JPEG_END)
    second = _decode(data + MAX_BYTES_PER_UNIT * b"\xaa" + JPEG_END)
    if first is None or second is None or not np.array_equal(first, second):
        return None
    return first
