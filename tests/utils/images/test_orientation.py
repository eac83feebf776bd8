"""Images that their files turn: JPEG, PNG, TIFF, WebP and AVIF against Pillow, and hand-made boxes
and chunks.
"""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest

from utils.images.decode import decode_bgr
from utils.images.orientation import orientation_of, turned

Image = pytest.importorskip("PIL.Image")
from PIL import ImageOps, features  # noqa: E402 - after the check that Pillow is there

ORIENTATION = 0x0112
HEIGHT, WIDTH = 48, 64


def smooth_picture() -> "Image.Image":
    """Return a picture that no turn and no mirror leaves as it is."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return Image.fromarray(np.dstack([x * 3, y * 4, 250 - x - y]).astype(np.uint8))


def encoded(
    kind: str, orientation: int, picture: "Image.Image | None" = None, **options: object
) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = io.BytesIO()
    (picture or smooth_picture()).save(content, kind, exif=exif, **options)
    return content.getvalue()


def as_pillow_shows(data: bytes) -> np.ndarray:
    """Return the first frame of a file as Pillow shows it, BGR."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    return np.asarray(picture)[..., ::-1]


def assert_alike(found: np.ndarray, expected: np.ndarray) -> None:
    """Assert that two images are equal up to what two decoders of a lossy format may differ."""
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).mean() < 4  # a turned picture differs by 40 or more


FORMATS = {
    "jpeg": ("JPEG", {"quality": 95}),
    "jpeg progressive": ("JPEG", {"quality": 95, "progressive": True}),
    "mpo": ("MPO", {"quality": 95}),
    "png": ("PNG", {}),
    "png animated": ("PNG", {"save_all": True}),
    "tiff": ("TIFF", {}),
    "tiff lzw": ("TIFF", {"compression": "tiff_lzw"}),
    "webp": ("WEBP", {"quality": 95}),
    "webp lossless": ("WEBP", {"lossless": True}),
    "webp animated": ("WEBP", {"save_all": True, "lossless": True}),
    "avif": ("AVIF", {"quality": 95}),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", FORMATS)
def test_every_orientation_is_as_pillow_shows_it(name: str, orientation: int) -> None:
    kind, options = FORMATS[name]
    if kind == "AVIF" and not (features.check("avif") and cv2.haveImageWriter("a.avif")):
        pytest.skip("this Pillow or this OpenCV has no AVIF")
    if "save_all" in options:
        options = {**options, "append_images": [smooth_picture().rotate(180)]}
    data = encoded(kind, orientation, **options)
    assert_alike(decode_bgr(data, name), as_pillow_shows(data))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16"])
def test_other_kinds_of_pixels_are_turned_too(mode: str) -> None:
    gray = np.asarray(smooth_picture().convert("L"))
    picture = (
        Image.fromarray(gray.astype(np.uint16) * 257)
        if mode == "I;16"
        else smooth_picture().convert(mode)
    )
    for kind in ("PNG", "TIFF"):
        upright = decode_bgr(encoded(kind, 1, picture), kind)
        assert np.array_equal(decode_bgr(encoded(kind, 6, picture), kind), np.rot90(upright, -1))


def test_turns_are_those_of_pillow() -> None:
    stored = np.asarray(smooth_picture())
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        picture = Image.fromarray(stored)
        picture.info["exif"] = exif.tobytes()
        assert np.array_equal(
            turned(stored, orientation), np.asarray(ImageOps.exif_transpose(picture))
        )


def exif_data(value: int, order: str = "<", kind: int = 3) -> bytes:
    """Return EXIF data with the one tag Orientation."""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return start + struct.pack(f"{order}IHHHIHHI", 8, 1, ORIENTATION, kind, 1, value, 0, 0)


def png_with(exif: bytes, at_end: bool) -> bytes:
    """Return a PNG with an eXIf chunk before or after its pixels."""
    data = cv2.imencode(".png", np.zeros((4, 6, 3), np.uint8))[1].tobytes()
    chunk = (
        struct.pack(">I", len(exif))
        + b"eXIf"
        + exif
        + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    )
    place = len(data) - 12 if at_end else 33  # before IEND, or after IHDR
    return data[:place] + chunk + data[place:]


def webp_with(exif: bytes) -> bytes:
    """Return the chunks of a WebP file, of which the first has an odd length, without pixels."""
    body = b"WEBP" + b"ICCP\x03\0\0\0abc\0" + b"EXIF" + struct.pack("<I", len(exif)) + exif
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_exif_is_found_in_any_byte_order_and_place() -> None:
    for order in "<>":
        for value in range(1, 9):
            exif = exif_data(value, order)
            assert orientation_of(png_with(exif, at_end=False)) == value
            assert orientation_of(png_with(exif, at_end=True)) == value
            assert orientation_of(webp_with(exif)) == value
            assert orientation_of(webp_with(b"Exif\0\0" + exif)) == value


def test_invalid_orientations_count_as_none() -> None:
    for exif in (
        b"",
        b"II*\0",
        exif_data(0),
        exif_data(9),
        exif_data(65535),
        exif_data(6)[:-5],
        exif_data(6, kind=7),
    ):
        assert orientation_of(png_with(exif, at_end=False)) == 1
        assert orientation_of(webp_with(exif)) == 1
    assert decode_bgr(png_with(exif_data(9), at_end=False), "a.png").shape == (4, 6, 3)


def test_other_files_are_left_to_opencv() -> None:
    for data in (b"", b"\xff\xd8", b"II*\0", b"BM", b"RIFF", b"\0\0\0\x14ftypisom\0\0\0\0isom"):
        assert orientation_of(data) is None


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I", 8 + len(content)) + kind + content


def avif_with(
    *properties: bytes, used: tuple[int, ...], item: int = 1, wide: bool = False
) -> bytes:
    """Return the boxes of an AVIF file whose primary item, 1, is described, without pixels.

    properties: all of the file. used: the numbers, from 1, of those that `item` has. wide: 16-bit
    numbers.
    """
    numbers = (
        struct.pack(f">{len(used)}H", *used) if wide else bytes(0x80 | number for number in used)
    )
    other = struct.pack(">HB", 7, 1) + (b"\0\1" if wide else b"\1")
    own = struct.pack(">HB", item, len(used)) + numbers
    associations = box(b"ipma", bytes([0, 0, 0, wide]), struct.pack(">I", 2), other, own)
    meta = box(
        b"meta",
        bytes(4),
        box(b"pitm", bytes(4), struct.pack(">H", 1)),
        box(b"iprp", box(b"ipco", *properties), associations),
    )
    return box(b"ftyp", b"avif", bytes(4), b"mif1") + meta


def test_avif_is_turned_by_the_properties_of_its_primary_item() -> None:
    size = box(b"ispe", bytes(4), struct.pack(">II", 6, 4))
    stored = np.arange(24, dtype=np.uint8).reshape(4, 6, 1)
    for turns in range(4):
        for axis in (None, 0, 1):
            expected = np.rot90(stored, turns)  # numpy turns anticlockwise, as irot does
            properties = [size, box(b"irot", bytes([turns]))]
            if axis is not None:
                expected = np.flip(
                    expected, axis
                )  # numpy's axis 0 exchanges top and bottom, as imir's does
                properties.append(box(b"imir", bytes([axis])))
            used = tuple(range(1, len(properties) + 1))
            for wide in (False, True):
                orientation = orientation_of(avif_with(*properties, used=used, wide=wide))
                assert orientation is not None
                assert np.array_equal(turned(stored, orientation), expected)


def test_avif_without_usable_properties_is_not_turned() -> None:
    turn = box(b"irot", b"\1")
    assert orientation_of(avif_with(turn, used=(1,))) == 8
    assert orientation_of(avif_with(turn, used=())) == 1
    assert orientation_of(avif_with(turn, used=(2,))) == 1  # there is no second property
    assert (
        orientation_of(avif_with(turn, used=(1,), item=3)) == 1
    )  # of another item, such as a thumbnail
    assert orientation_of(avif_with(box(b"irot"), used=(1,))) == 1  # without its byte
    assert orientation_of(avif_with(box(b"free"), turn, used=(2,))) == 8  # an empty box counts too
    assert orientation_of(avif_with(box(b"free"), turn, used=(1,))) == 1
    whole = avif_with(turn, used=(1,))
    item = box(b"pitm", bytes(4), struct.pack(">H", 1))
    meta = whole[28:].replace(item, b"") + box(b"pitm")
    assert (
        orientation_of(whole[:20] + box(b"meta", meta)) == 1
    )  # the file ends where it should name its primary item
    for length in range(20, len(whole)):
        assert orientation_of(whole[:length]) == 1
