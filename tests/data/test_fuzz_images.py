"""Truncated, altered and misnamed images of every kind: all pixels or an error message, never half
an image.
"""

import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from data.augment.plan import Planner
from data.augment.records import Augmentation
from data.labels import LabelRow, LabelsBuilder
from tests.support.drawn import draw
from tests.support.fuzzing import assert_unchanged, mutate, result_or_error
from utils.images.decode import decode_bgr, quiet_decoder, read_image
from utils.images.letterbox import resized

pytestmark = pytest.mark.slow

WIDTH, HEIGHT = 64, 48
NAME = Path("images/a b.png")


def noise_image() -> Image.Image:
    """Return RGB noise, in which no two rows are equal."""
    return Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    )


def encode_image(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    content = io.BytesIO()
    (image or noise_image()).save(content, kind, **options)
    return content.getvalue()


def kinds() -> dict[str, bytes]:
    """Return one file of each kind that users have."""
    plain, other = noise_image(), noise_image().rotate(180)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {
        "jpeg": encode_image("JPEG"),
        "jpeg progressive": encode_image("JPEG", progressive=True),
        "jpeg gray": encode_image("JPEG", plain.convert("L")),
        "jpeg cmyk": encode_image("JPEG", plain.convert("CMYK")),
        "jpeg turned": encode_image("JPEG", exif=exif),
        "png": encode_image("PNG"),
        "png alpha": encode_image("PNG", plain.convert("RGBA")),
        "png palette": encode_image("PNG", plain.convert("P")),
        "png one bit": encode_image("PNG", plain.convert("1")),
        "png 16 bits": cv2.imencode(".png", np.asarray(plain).astype(np.uint16) * 257)[1].tobytes(),
        "tiff 16 bits": cv2.imencode(".tif", np.asarray(plain).astype(np.uint16) * 257)[
            1
        ].tobytes(),
        "tiff": encode_image("TIFF"),
        "tiff two pages": encode_image(
            "TIFF", save_all=True, append_images=[other], compression="tiff_lzw"
        ),
        "webp": encode_image("WEBP"),
        "webp animated": encode_image("WEBP", save_all=True, append_images=[other], lossless=True),
        "png animated": encode_image("PNG", save_all=True, append_images=[other]),
        "bmp": encode_image("BMP"),
        "ppm": encode_image("PPM"),
    }
    return {
        name: data for name, data in found.items() if not isinstance(decode_or_error(data), str)
    }


def decode_or_error(data: bytes) -> np.ndarray | str:
    return result_or_error(lambda: decode(data), NAME)


def decode(data: bytes) -> np.ndarray:
    image = decode_bgr(data, NAME)
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == 3
    return image


KINDS = kinds()
each_kind = pytest.mark.parametrize("kind", KINDS)


def test_opencv_reads_the_common_image_formats() -> None:
    assert {
        "jpeg",
        "jpeg cmyk",
        "jpeg turned",
        "png",
        "png alpha",
        "png 16 bits",
        "tiff",
        "bmp",
        "webp",
    } <= KINDS.keys()


@each_kind
def test_truncated_image_is_complete_or_rejected(kind: str) -> None:
    """Also when filled up with zeros, for formats that can detect it: others have neither an end
    nor a checksum.
    """
    data, expected = KINDS[kind], decode(KINDS[kind])
    lengths = {
        *np.random.default_rng(0).integers(0, len(data), 25).tolist(),
        *range(len(data) - 9, len(data)),
    }
    with quiet_decoder():
        for length in lengths:
            for tail in (
                [b"", bytes(len(data) - length)] if kind.startswith(("jpeg", "png")) else [b""]
            ):
                result = decode_or_error(data[:length] + tail)
                assert isinstance(result, str) or np.array_equal(result, expected), (length, tail)


@each_kind
def test_mutated_image_is_decoded_or_rejected_deterministically(kind: str) -> None:
    random = np.random.default_rng(1)
    with quiet_decoder():
        for _ in range(20):
            data = mutate(KINDS[kind], random)
            first, second = decode_or_error(data), decode_or_error(data)
            assert (
                np.array_equal(first, second) if isinstance(first, np.ndarray) else first == second
            )


def png_with_size(width: int, height: int, body: bytes) -> bytes:
    """Return a gray PNG whose header claims this size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + name
            + content
            + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def oversized_files() -> dict[str, bytes]:
    """Return files whose headers claim more pixels than they contain."""
    jpeg = bytearray(KINDS["jpeg"])
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    bmp = bytearray(KINDS["bmp"])
    bmp[18:26] = struct.pack("<ii", 100_000, 100_000)
    return {
        "jpeg": bytes(jpeg),
        "jpeg without end": bytes(jpeg[:-2]),
        "bmp": bytes(bmp),
        "png": png_with_size(100_000, 100_000, zlib.compress(bytes(1000))),
        "png of 30000": png_with_size(30_000, 30_000, zlib.compress(bytes(1000))),
        "ppm": b"P6\n100000 100000\n255\n" + bytes(1000),
        "pgm without end": b"P5\n" + b"9" * 10_000,
        "pgm of 30000": b"P5\n30000 30000\n255\n" + bytes(1000),
        "gif": b"GIF89a" + b"\xff" * 1000,
        "gif of 30000": b"GIF89a" + struct.pack("<HH", 30_000, 30_000) + encode_image("GIF")[10:],
    }


@pytest.mark.parametrize("claim", oversized_files())
def test_image_header_with_excessive_size_is_rejected(claim: str) -> None:
    with quiet_decoder():
        assert isinstance(decode_or_error(oversized_files()[claim]), str)


@pytest.mark.parametrize(
    ("height", "width"), [(2, 2), (1, 3), (10, 20_000), (20_000, 10), (2, 9000), (4000, 4000)]
)
@pytest.mark.parametrize("side", [64, 320])
def test_images_of_any_shape_are_drawn_with_their_boxes(
    tmp_path: Path, height: int, width: int, side: int
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(cv2.imencode(".png", np.full((height, width, 3), 50, np.uint8))[1].tobytes())
    builder = LabelsBuilder()
    builder.add_image(
        str(file),
        (width, height),
        1,
        [LabelRow(0, (0, 0, width, height), width * height, False, None, 1)],
    )
    augmentation = Augmentation(mosaic=1.0, degrees=10, perspective=0.001, mixup=1.0)
    planner = Planner(builder.build([1]), side, augmentation, 0)
    plans = [planner.plain(0, (side, side)), planner.plan(0, 0, (side, side), mosaic=True)]
    for plan in plans:
        with assert_unchanged(tmp_path):
            drawn = draw(plan, lambda index: resized(read_image(file), *planner.base_size(index)))
        assert drawn.shape == (side, side, 3)
        assert np.isfinite(plan.targets).all()
    x1, y1, x2, y2 = plans[0].targets[0, 1:] if len(plans[0].targets) else (0, 0, side, side)
    assert max(x2 - x1, y2 - y1) == side
