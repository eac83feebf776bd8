"""Truncated, altered and misnamed images of every kind: all pixels or an error message, never half an image."""

import io
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from data.augment.draw import draw
from data.augment.plan import Planner
from data.augment.records import Augmentation
from data.images import decode_bgr, quiet_decoder, read_image
from data.labels import LabelRow, LabelsBuilder
from tests.support.fuzzing import mutated, outcome, unchanged
from utils.letterbox import resized

pytestmark = pytest.mark.slow

WIDTH, HEIGHT = 64, 48
NAME = Path("images/a b.png")


def picture() -> Image.Image:
    """Return RGB noise, in which no two rows are equal."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8))


def stored(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    content = io.BytesIO()
    (image or picture()).save(content, kind, **options)
    return content.getvalue()


def kinds() -> dict[str, bytes]:
    """Return one file of each kind that users have."""
    plain, other = picture(), picture().rotate(180)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = {
        "jpeg": stored("JPEG"),
        "jpeg progressive": stored("JPEG", progressive=True),
        "jpeg grey": stored("JPEG", plain.convert("L")),
        "jpeg cmyk": stored("JPEG", plain.convert("CMYK")),
        "jpeg turned": stored("JPEG", exif=exif),
        "png": stored("PNG"),
        "png alpha": stored("PNG", plain.convert("RGBA")),
        "png palette": stored("PNG", plain.convert("P")),
        "png one bit": stored("PNG", plain.convert("1")),
        "png 16 bits": cv2.imencode(".png", np.asarray(plain).astype(np.uint16) * 257)[1].tobytes(),
        "tiff 16 bits": cv2.imencode(".tif", np.asarray(plain).astype(np.uint16) * 257)[1].tobytes(),
        "tiff": stored("TIFF"),
        "tiff two pages": stored("TIFF", save_all=True, append_images=[other], compression="tiff_lzw"),
        "webp": stored("WEBP"),
        "webp animated": stored("WEBP", save_all=True, append_images=[other], lossless=True),
        "png animated": stored("PNG", save_all=True, append_images=[other]),
        "bmp": stored("BMP"),
        "ppm": stored("PPM"),
    }
    return {name: data for name, data in found.items() if not isinstance(tried(data), str)}


def tried(data: bytes) -> np.ndarray | str:
    return outcome(lambda: pixels(data), NAME)


def pixels(data: bytes) -> np.ndarray:
    image = decode_bgr(data, NAME)
    assert image.dtype == np.uint8
    assert image.ndim == 3
    assert image.shape[2] == 3
    return image


KINDS = kinds()
each_kind = pytest.mark.parametrize("kind", KINDS)


def test_opencv_reads_the_usual_kinds() -> None:
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
def test_cut_short_is_whole_or_refused(kind: str) -> None:
    """Also when filled up with zeros, for formats that can detect it: others have neither an end nor a checksum."""
    data, expected = KINDS[kind], pixels(KINDS[kind])
    lengths = {*np.random.default_rng(0).integers(0, len(data), 25).tolist(), *range(len(data) - 9, len(data))}
    with quiet_decoder():
        for length in lengths:
            for tail in [b"", bytes(len(data) - length)] if kind.startswith(("jpeg", "png")) else [b""]:
                result = tried(data[:length] + tail)
                assert isinstance(result, str) or np.array_equal(result, expected), (length, tail)


@each_kind
def test_altered_is_some_picture_or_refused_and_always_the_same(kind: str) -> None:
    random = np.random.default_rng(1)
    with quiet_decoder():
        for _ in range(20):
            data = mutated(KINDS[kind], random)
            first, second = tried(data), tried(data)
            assert np.array_equal(first, second) if isinstance(first, np.ndarray) else first == second


def png_of(width: int, height: int, body: bytes) -> bytes:
    """Return a grey PNG whose header claims this size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def claims() -> dict[str, bytes]:
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
        "png": png_of(100_000, 100_000, zlib.compress(bytes(1000))),
        "png of 30000": png_of(30_000, 30_000, zlib.compress(bytes(1000))),
        "ppm": b"P6\n100000 100000\n255\n" + bytes(1000),
        "pgm without end": b"P5\n" + b"9" * 10_000,
        "pgm of 30000": b"P5\n30000 30000\n255\n" + bytes(1000),
        "gif": b"GIF89a" + b"\xff" * 1000,
        "gif of 30000": b"GIF89a" + struct.pack("<HH", 30_000, 30_000) + stored("GIF")[10:],
    }


@pytest.mark.parametrize("claim", claims())
def test_a_header_that_claims_too_much_takes_no_memory(claim: str) -> None:
    with quiet_decoder():
        assert isinstance(tried(claims()[claim]), str)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (1, 3), (10, 20_000), (20_000, 10), (2, 9000), (4000, 4000)])
@pytest.mark.parametrize("side", [64, 320])
def test_any_shape_is_drawn_with_its_boxes(tmp_path: Path, height: int, width: int, side: int) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(cv2.imencode(".png", np.full((height, width, 3), 50, np.uint8))[1].tobytes())
    builder = LabelsBuilder()
    builder.add_image(
        str(file), (width, height), 1, [LabelRow(0, (0, 0, width, height), width * height, False, None, 1)]
    )
    augmentation = Augmentation(mosaic=1.0, degrees=10, perspective=0.001, mixup=1.0)
    planner = Planner(builder.build([1]), side, augmentation, 0)
    plans = [planner.plain(0, (side, side)), planner.plan(0, 0, (side, side), mosaic=True)]
    for plan in plans:
        with unchanged(tmp_path):
            drawn = draw(plan, lambda index: resized(read_image(file), *planner.base_size(index)))
        assert drawn.shape == (side, side, 3)
        assert np.isfinite(plan.targets).all()
    x1, y1, x2, y2 = plans[0].targets[0, 1:] if len(plans[0].targets) else (0, 0, side, side)
    assert max(x2 - x1, y2 - y1) == side
