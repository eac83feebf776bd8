"""Images with 16 bits per channel become 8-bit images by their range; 8-bit images are not
changed.
"""

import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
import pytest

from utils.images.bit_depth import BIT_DEPTHS, bit_depth, to_8_bits
from utils.images.decode import decode_any_depth, decode_bgr
from utils.images.headers import is_gray


def values(most: int, channels: int = 3) -> np.ndarray:
    """Return random values from 0 to `most`, both included: uint16 [16, 24, channels], [16, 24] for
    one channel.
    """
    image = np.random.default_rng(most).integers(0, most + 1, (16, 24, channels)).astype(np.uint16)
    image[0, 0], image[0, 1] = most, 0
    return image[..., 0] if channels == 1 else image


def slowly_scaled(image: np.ndarray) -> np.ndarray:
    """Apply the documented rule value by value, with exact fractions."""
    most = max(int(value) for value in image.reshape(-1))
    full_scale = next(2**bits - 1 for bits in (8, 10, 12, 14, 16) if most <= 2**bits - 1)
    scaled = [
        int(Fraction(int(value) * 255, full_scale) + Fraction(1, 2)) for value in image.reshape(-1)
    ]
    return np.array(scaled, np.uint8).reshape(image.shape)


def three_channels(image: np.ndarray) -> np.ndarray:
    """Return what a decoder makes of these channels: gray is repeated, alpha is dropped."""
    return np.dstack([image] * 3) if image.ndim == 2 else image[..., :3]


def png(image: np.ndarray, kind: int, *, more: bytes = b"") -> bytes:
    """Return a 16-bit PNG of a color type (0 gray, 4 gray and alpha) with further chunks before
    the pixels.
    """

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    height, width = image.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + more
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def pnm(image: np.ndarray, most: int) -> bytes:
    """Return a binary PGM or PPM file; image: gray, or blue green red."""
    start = b"P5" if image.ndim == 2 else b"P6"
    order = image if image.ndim == 2 else image[..., ::-1]
    sides = f"{image.shape[1]} {image.shape[0]}\n{most}\n".encode()
    return start + b"\n" + sides + order.astype(">u2").tobytes()


def encoded(suffix: str) -> Callable[[np.ndarray], bytes]:
    return lambda image: cv2.imencode(suffix, image)[1].tobytes()


WRITERS: dict[
    str, tuple[int, Callable[[np.ndarray], bytes]]
] = {  # channels, and a function that returns a file
    "png gray": (1, encoded(".png")),
    "png color": (3, encoded(".png")),
    "png color and alpha": (4, encoded(".png")),
    "png gray and alpha": (2, lambda image: png(image, 4)),
    "tiff gray": (1, encoded(".tif")),
    "tiff color": (3, encoded(".tif")),
    "tiff color and alpha": (4, encoded(".tif")),
    "pgm": (1, lambda image: pnm(image, 65535)),
    "ppm": (3, lambda image: pnm(image, 65535)),
}


@pytest.mark.parametrize(
    "most", [0, 1, 255, 256, 1023, 1024, 4095, 4096, 16383, 16384, 40000, 65535]
)
def test_every_value_is_scaled_as_by_slow_oracle(most: int) -> None:
    image = np.arange(most + 1, dtype=np.uint16)
    scaled = to_8_bits(image)
    assert scaled.dtype == np.uint8
    assert np.array_equal(scaled, slowly_scaled(image))


@pytest.mark.parametrize("bits", BIT_DEPTHS)
def test_full_scale_of_each_usual_depth_becomes_255(bits: int) -> None:
    image = np.array([[0, 2**bits - 1]], np.uint16)
    assert bit_depth(image) == bits
    assert to_8_bits(image).tolist() == [[0, 255]]


def test_8_bit_image_is_returned_as_it_is_and_empty_image_is_accepted() -> None:
    image = np.arange(256, dtype=np.uint8)
    assert to_8_bits(image) is image
    assert to_8_bits(np.zeros((0, 3), np.uint16)).shape == (0, 3)
    assert bit_depth(np.zeros((0, 3), np.uint16)) == 8


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("most", [200, 1000, 4095, 65535])
def test_16_bit_file_is_decoded_as_by_slow_oracle(kind: str, most: int) -> None:
    channels, write = WRITERS[kind]
    image = values(most, channels)
    if channels == 4:
        image[..., 3] = 65535  # alpha has its own range, which does not count
    expected = three_channels(image[..., 0] if channels == 2 else image)
    data = write(image)
    assert np.array_equal(decode_any_depth(data, kind), expected)
    assert np.array_equal(decode_bgr(data, kind), slowly_scaled(expected))
    assert is_gray(data) == (channels < 3)


def test_png_sbit_chunk_does_not_change_the_scale() -> None:
    content = b"\x0c"  # 12 significant bits: of values that were scaled to 16 bits already
    sbit = (
        struct.pack(">I", 1) + b"sBIT" + content + struct.pack(">I", zlib.crc32(b"sBIT" + content))
    )
    image = values(65535, 1)
    assert np.array_equal(
        decode_bgr(png(image, 0, more=sbit), "a.png"), three_channels(slowly_scaled(image))
    )


def test_exif_rotation_is_applied_to_16_bit_png() -> None:
    image = values(4095, 1)
    # orientation 6: 90 degrees clockwise
    exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    chunk = (
        struct.pack(">I", len(exif))
        + b"eXIf"
        + exif
        + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    )
    decoded = decode_bgr(png(image, 0, more=chunk), "a.png")
    assert np.array_equal(decoded, np.rot90(three_channels(slowly_scaled(image)), -1))


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif", ".ppm", ".pgm", ".webp"])
def test_8_bit_files_are_decoded_as_before(suffix: str) -> None:
    image = values(255).astype(np.uint8)
    data = cv2.imencode(suffix, image[..., 0] if suffix == ".pgm" else image)[1].tobytes()
    assert np.array_equal(
        decode_bgr(data, "a"), cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    )
    assert is_gray(data) == (suffix == ".pgm")


def test_palette_and_one_bit_png_are_decoded_as_before(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    for mode in ("P", "1", "LA"):
        Image.fromarray(values(255).astype(np.uint8)).convert(mode).save(tmp_path / f"{mode}.png")
        data = (tmp_path / f"{mode}.png").read_bytes()
        assert np.array_equal(
            decode_bgr(data, mode), cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        )
        assert is_gray(data) == (mode != "P")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32"])
def test_tiff_with_other_values_is_refused(dtype: str) -> None:
    data = cv2.imencode(".tif", values(4000).astype(dtype))[1].tobytes()
    reason = (
        "has floating-point values"
        if "float" in dtype
        else f"has {dtype} values, allowed are unsigned ones"
    )
    with pytest.raises(
        ValueError, match=f"^a.tif ({reason}|is damaged, truncated or not an image)"
    ):
        decode_bgr(data, "a.tif")


@pytest.mark.parametrize("suffix", [".png", ".tif", ".jpg"])
def test_header_of_truncated_file_is_read_without_error(suffix: str) -> None:
    data = cv2.imencode(suffix, values(255, 1).astype(np.uint8))[1].tobytes()
    assert is_gray(data)
    for length in range(len(data)):
        assert isinstance(is_gray(data[:length]), bool)
    assert not is_gray(b"")
