"""Image files: decoded to upright 8-bit BGR from any format, rejected with one error message if
damaged.
"""

import os
import time
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.support.fuzzing import result_or_error
from utils.images.decode import has_end, read_image

HEIGHT, WIDTH = 24, 40


def gradient_image() -> np.ndarray:
    """Return a smooth image, uint8 [24, 40, 3], different in all corners."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.dstack([x * 6, y * 10, 255 - x * 3 - y * 5]).astype(np.uint8)


def save(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, image)[1].tobytes())
    return path


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif", ".ppm"])
def test_lossless_formats_give_the_same_pixels(tmp_path: Path, suffix: str) -> None:
    assert np.array_equal(
        read_image(save(tmp_path / f"ä {suffix}", gradient_image())), gradient_image()
    )


def test_gray_alpha_and_16_bit_images_become_8_bit_bgr(tmp_path: Path) -> None:
    image = gradient_image()
    gray = read_image(save(tmp_path / "gray.png", image[..., 0]))
    assert np.array_equal(gray, np.dstack([image[..., 0]] * 3))
    alpha = np.dstack(
        [image, np.zeros_like(image[..., 0])]
    )  # fully transparent, but the colors are kept
    assert np.array_equal(read_image(save(tmp_path / "alpha.png", alpha)), image)
    # 257 * v is the 16-bit value equal to v / 255; its high byte is v
    for suffix in (".png", ".tif"):
        assert np.array_equal(
            read_image(save(tmp_path / f"deep{suffix}", image.astype(np.uint16) * 257)), image
        )


def test_cmyk_is_converted(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    Image.new("CMYK", (8, 8), (255, 0, 0, 0)).save(tmp_path / "cyan.jpg", quality=95)
    blue, green, red = read_image(tmp_path / "cyan.jpg")[4, 4].tolist()
    assert red < 60 < 150 < min(blue, green)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate 90 degrees clockwise
    Image.fromarray(gradient_image()[..., ::-1]).save(
        tmp_path / "turned.jpg", exif=exif, quality=100, subsampling=0
    )
    turned = read_image(tmp_path / "turned.jpg")
    assert turned.shape == (WIDTH, HEIGHT, 3)
    assert np.abs(turned.astype(int) - np.rot90(gradient_image(), -1)).max() <= 8


def test_jpeg_lacking_only_the_end_marker_is_read_but_shorter_is_rejected(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = save(tmp_path / "a.jpg", noise)
    data, expected = file.read_bytes(), read_image(file)
    assert has_end(data)
    file.write_bytes(data[:-2])
    assert not has_end(data[:-2])
    assert np.array_equal(read_image(file), expected)
    for missing in (3, 10, len(data) // 2):
        file.write_bytes(data[:-missing])
        with pytest.raises(ValueError, match=r"a.jpg is damaged, truncated or not an image"):
            read_image(file)


def test_image_without_memory_for_its_pixels_is_not_called_damaged(
    tmp_path: Path, monkeypatch
) -> None:
    def no_memory(*_: object) -> None:
        error = cv2.error("Insufficient memory")
        error.code = cv2.Error.StsNoMem
        raise error

    file = save(tmp_path / "a.png", gradient_image())
    monkeypatch.setattr(cv2, "imdecode", no_memory)
    with pytest.raises(MemoryError, match=r"cannot decode .*a\.png"):
        read_image(file)


def test_invalid_images_are_rejected_with_file_name(tmp_path: Path) -> None:
    png = save(tmp_path / "a.png", gradient_image())
    png.write_bytes(png.read_bytes()[:100])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello")
    for name, reason in (
        ("a.png", "damaged"),
        ("empty.jpg", "is empty"),
        ("text.jpg", "damaged"),
        ("no.jpg", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=f"{name} .*{reason}"):
            read_image(tmp_path / name)
    with pytest.raises(ValueError, match="cannot be read"):
        read_image("a\0b.jpg")


def test_jpeg_cut_in_stuffed_byte_or_padded_with_zeros_is_rejected(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data, file = save(tmp_path / "a.jpg", noise).read_bytes(), tmp_path / "b.jpg"
    inside = [i + 1 for i in range(len(data) // 2, len(data) - 2) if data[i : i + 2] == b"\xff\x00"]
    assert (
        inside
    )  # 0xFF is written as two bytes, and the first alone looks like the start of a marker
    for cut in (data[: inside[0]], data[: inside[-1]], data[:-100] + bytes(100)):
        file.write_bytes(cut)
        with pytest.raises(ValueError, match=r"b.jpg is damaged, truncated"):
            read_image(file)
    for complete in (data[:-1], data[:-2] + bytes(500)):
        file.write_bytes(complete)
        assert np.array_equal(read_image(file), read_image(tmp_path / "a.jpg"))


def test_progressive_jpeg_without_end_marker_is_rejected(tmp_path: Path) -> None:
    progressive = cv2.imencode(".jpg", gradient_image(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[
        1
    ].tobytes()
    scans = [i for i in range(len(progressive)) if progressive[i : i + 2] == b"\xff\xda"]
    assert len(scans) > 3
    for cut in (progressive[: scans[-1]], progressive[:-2]):
        (tmp_path / "a.jpg").write_bytes(cut)
        with pytest.raises(ValueError, match=r"a.jpg is damaged, truncated"):
            read_image(tmp_path / "a.jpg")


def test_jpeg_claiming_too_many_pixels_is_rejected_quickly(tmp_path: Path) -> None:
    data = bytearray(save(tmp_path / "a.jpg", gradient_image()).read_bytes())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = (65500).to_bytes(2, "big") + (16000).to_bytes(
        2, "big"
    )  # 3 GB of gray
    for coding in (0xC0, 0xC1, 0xC2, 0xC9):
        data[frame + 1] = coding
        (tmp_path / "a.jpg").write_bytes(data)
        began = time.thread_time()
        with pytest.raises(ValueError, match=r"a.jpg is damaged, truncated"):
            read_image(tmp_path / "a.jpg")
        assert time.thread_time() - began < 0.5
    flat = save(
        tmp_path / "flat.jpg", np.full((4000, 4000, 3), 9, np.uint8)
    )  # the most pixels per byte
    assert read_image(flat).shape == (4000, 4000, 3)


def test_png_chunk_longer_than_file_is_rejected_within_memory_limit(tmp_path: Path) -> None:
    data = save(tmp_path / "a.png", gradient_image()).read_bytes()
    end = data.index(b"IEND") - 4
    for length in (1, 2**20, 2**30, 2**31 - 1, 2**32 - 1):
        (tmp_path / "a.png").write_bytes(data[:end] + length.to_bytes(4, "big") + data[end + 4 :])
        assert isinstance(
            result_or_error(lambda: read_image(tmp_path / "a.png"), tmp_path / "a.png"), str
        )


def test_damaged_animated_png_is_rejected(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    first = Image.fromarray(gradient_image()[..., ::-1])
    file = tmp_path / "a.png"
    first.save(file, save_all=True, append_images=[first.rotate(180)])
    data = file.read_bytes()
    assert np.array_equal(read_image(file), gradient_image())
    for offset in (data.index(b"IDAT") + 20, data.index(b"fdAT") + 20, data.index(b"acTL") + 5):
        file.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(
            ValueError, match=r"a.png is damaged"
        ):  # OpenCV would return uninitialized memory
            read_image(file)
    for length in (len(data) - 4, len(data) - 12, data.index(b"fdAT")):
        file.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"a.png is damaged"):
            read_image(file)


@pytest.mark.parametrize("suffix", [".hdr", ".pfm"])
def test_floating_point_images_are_rejected_under_any_suffix(tmp_path: Path, suffix: str) -> None:
    data = cv2.imencode(suffix, gradient_image().astype(np.float32) / 255)[1].tobytes()
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(ValueError, match=r"a.png has floating-point values"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize("kind", ["float32", "float64", "int8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tiff_values_that_have_no_range_are_named(tmp_path: Path, kind: str, channels: int) -> None:
    """OpenCV decodes some of these and not others; the reason is the same, and none of them is
    damaged.
    """
    values = np.zeros((8, 8, channels), kind)
    written, data = cv2.imencode(".tif", values)
    if not written:
        pytest.skip(f"this OpenCV writes no {kind} TIFF")
    (tmp_path / "a.tif").write_bytes(data.tobytes())
    reason = "has floating-point values, whose range is unknown"
    if "int" in kind:
        reason = f"has {kind} values, allowed are unsigned ones of 8 and 16 bits"
    with pytest.raises(ValueError, match=rf"a\.tif {reason}$"):
        read_image(tmp_path / "a.tif")


def test_heic_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200))
    with pytest.raises(
        ValueError, match=r"a\.jpg is a HEIC image, which OpenCV cannot decode; convert it to JPEG"
    ):
        read_image(tmp_path / "a.jpg")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices in the file system")
def test_pipes_and_devices_as_images_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    (tmp_path / "broken.jpg").symlink_to("nowhere")
    for name in ("pipe.jpg", "endless.jpg", "."):
        with pytest.raises(ValueError, match="cannot be read: it is not a regular file"):
            read_image(tmp_path / name)


def test_image_with_more_pixels_than_opencv_reads_is_not_called_damaged(tmp_path: Path) -> None:
    """The header of a PNG states 40,000 x 30,000."""
    path = save(tmp_path / "big.png", gradient_image())
    data = path.read_bytes()
    size = (40_000).to_bytes(4, "big") + (30_000).to_bytes(4, "big")
    header = b"IHDR" + size + data[24:29]
    path.write_bytes(data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:])
    with pytest.raises(
        ValueError,
        match=r"has 1,200,000,000 pixels by its header, more than OpenCV reads \(2\^30\)",
    ):
        read_image(path)
