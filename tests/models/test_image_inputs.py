"""models/image_inputs.py: the same pixels from a file, PIL, NumPy and torch; everything else is
rejected.
"""

import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.image_inputs import read_input, split_inputs

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
read = partial(read_input, channel_order=None, urls=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Image.fromarray(RGB).save(tmp_path / "a ä.png")
    return tmp_path / "a ä.png"


def test_all_forms_give_the_same_rgb_pixels(file):
    tensor = torch.from_numpy(RGB).permute(2, 0, 1)
    given = [str(file), file, Image.open(file), tensor, tensor.float() / 255, tensor.double() / 255]
    for each in given:
        pixels, _ = read(each)
        assert np.array_equal(pixels, RGB), each
        assert (pixels.dtype, pixels.flags.c_contiguous) == (np.uint8, True)
    assert np.array_equal(read(RGB, channel_order="rgb").pixels, RGB)
    assert np.array_equal(read(RGB[..., ::-1], channel_order="bgr").pixels, RGB)


def test_path_is_known_for_files_only(file):
    assert read(str(file)).path == read(file).path == read(Image.open(file)).path == str(file)
    assert read(RGB, channel_order="rgb").path == read(Image.fromarray(RGB)).path == ""


def test_half_precision_tensors_round_to_the_nearest_level():
    tensor = (torch.from_numpy(RGB).permute(2, 0, 1).float() / 255).half()
    assert np.array_equal(read(tensor).pixels, RGB)


def test_gray_arrays_need_no_channel_order():
    gray = RGB[..., 0]
    for each in (gray, gray[..., None]):
        assert np.array_equal(read(each).pixels, np.dstack([gray] * 3))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA", "YCbCr"])
def test_pil_modes_become_rgb(mode):
    image = Image.fromarray(RGB).convert(mode)
    assert np.array_equal(read(image).pixels, np.array(image.convert("RGB")))


def test_pil_image_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate 90 degrees clockwise
    Image.fromarray(RGB).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read(Image.open(tmp_path / "turned.png")).pixels, np.rot90(RGB, -1))
    assert np.array_equal(read(tmp_path / "turned.png").pixels, np.rot90(RGB, -1))


def test_lists_and_4d_tensors_are_several_images():
    batch = torch.zeros(2, 3, 4, 4)
    images, single = split_inputs(batch)
    assert ([tuple(image.shape) for image in images], single) == ([(3, 4, 4)] * 2, False)
    assert split_inputs(()) == ((), False)
    assert split_inputs(torch.zeros(3, 4, 4))[1] is True


SHAPE = r"it must be \[3, H, W\], RGB, uint8, or floating-point in \[0, 1\]"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            RGB,
            r"a NumPy array does not say its channel order: give channel_order='rgb' or 'bgr' "
            r"\(OpenCV\)",
        ),
        (
            RGB.astype(np.float32),
            r"the image is float32 \[5, 7, 3\]; it must be a NumPy array, uint8",
        ),
        (np.zeros((0, 4), np.uint8), r"the image has shape \[0, 4\], so it has no pixels"),
        (torch.zeros(4, 4, 3), rf"the tensor has shape \[4, 4, 3\]; {SHAPE}"),
        (torch.zeros(3, 0, 3), rf"the tensor has shape \[3, 0, 3\]; {SHAPE}"),
        (torch.full((3, 2, 2), 200.0), rf"the tensor has values from 200 to 200; {SHAPE}"),
        (torch.full((3, 2, 2), -0.1), rf"the tensor has values from -0.1 to -0.1; {SHAPE}"),
        (torch.full((3, 2, 2), torch.nan), rf"the tensor has values from nan to nan; {SHAPE}"),
        (torch.zeros(3, 2, 2, dtype=torch.int64), rf"the tensor is torch.int64; {SHAPE}"),
        (
            Image.new("I;16", (4, 4)),
            "the PIL image has mode I;16, more than 8 bits: give its path, or convert it",
        ),
        (Image.new("F", (4, 4)), "the PIL image has mode F, more than 8 bits"),
        (
            7,
            "the image is a int, but must be a path, a PIL image, a NumPy array, a tensor, or a "
            "list of these",
        ),
        (None, "the image is a NoneType, but must be a path"),
        ("no such.jpg", "no such.jpg cannot be read: No such file"),
        (".", "cannot be read: it is not a regular file"),
        (
            "https://example.org/a.jpg",
            r"https://example.org/a.jpg is a URL: load the model with urls=True to allow",
        ),
    ],
)
def test_other_inputs_are_rejected(given, text):
    with pytest.raises(ValueError, match=text):
        read(given)


@pytest.fixture
def server(file):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    (file.parent / "text.jpg").write_text("not an image")
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(file.parent))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_url_is_downloaded_if_allowed(server):
    url = f"{server}/a%20%C3%A4.png"
    image = read(url, urls=True)
    assert np.array_equal(image.pixels, RGB)
    assert image.path == url


def test_url_that_is_no_image_is_named_in_the_error(server):
    with pytest.raises(
        ValueError, match=rf"{server}/text.jpg is damaged, truncated or not an image"
    ):
        read(f"{server}/text.jpg", urls=True)
    for url in (
        "http://example.org/a.jpg",
        "ftp://example.org/a.jpg",
        "https://user:secret@example.org/a.jpg",
    ):
        with pytest.raises(ValueError, match="cannot be downloaded: "):
            read(url, urls=True)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs a device file")
def test_device_is_not_read():
    with pytest.raises(ValueError, match="/dev/zero cannot be read: it is not a regular file"):
        read("/dev/zero")
