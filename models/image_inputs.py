"""Images in any form that a program has them: files, URLs, PIL, NumPy, torch.

All are converted to uint8 RGB arrays [H, W, 3].
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from utils.files.download import DownloadSource, fetch
from utils.images.decode import read_image
from utils.images.opencv import cv2
from utils.printable import excerpt, printable

ChannelOrder = Literal["rgb", "bgr"]
MAX_URL_BYTES = 2**28  # largest image that is downloaded
ALLOWED = "a path, a PIL image, a NumPy array, a tensor, or a list of these"


class InputImage(NamedTuple):
    """An image and its file."""

    pixels: NDArray[np.uint8]  # [H, W, 3], RGB
    path: str  # "" if it was not a file


def read_input(given: Any, *, channel_order: ChannelOrder | None, urls: bool) -> InputImage:
    """Return one image, whatever its form.

    given: a path, a URL, a PIL image, a NumPy array uint8 [H, W, 3] or [H, W], or a tensor [3, H,
    W], RGB, uint8 or floating-point in [0, 1]. channel_order: of arrays, which must say it; files,
    PIL images and tensors know theirs. urls: whether a URL may be downloaded. Raises ValueError for
    anything else.
    """
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        return _from_url(path, urls) if "://" in path else _from_file(path)

    if isinstance(given, np.ndarray):
        return InputImage(_from_array(given, channel_order), "")

    if isinstance(given, Tensor):
        return InputImage(_from_tensor(given), "")

    if _is_pil(given):
        return InputImage(_from_pil(given), str(getattr(given, "filename", "")))
    raise ValueError(f"the image is a {type(given).__name__}, but must be {ALLOWED}")


def split_inputs(given: Any) -> tuple[Sequence[Any], bool]:
    """Return the single images of an input, and whether it was one image.

    A list or a 4-dimensional tensor is several.

    >>> split_inputs("a.jpg"), split_inputs(["a.jpg"])
    ((['a.jpg'], True), (['a.jpg'], False))
    """
    if isinstance(given, (list, tuple)):
        return given, False
    if isinstance(given, Tensor) and given.ndim == 4:
        return list(given), False
    return [given], True


def three_channels(image: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
    """Return the image as uint8 [H, W, 3].

    A gray image, [H, W] or [H, W, 1], gets three equal channels.

    Raises ValueError, starting with `name`, for any other dtype or shape.
    """
    wanted = "it must be a NumPy array, uint8 [H, W, 3], or [H, W] or [H, W, 1] if it is gray"
    if not isinstance(image, np.ndarray):
        raise ValueError(f"{name} is a {type(image).__name__}; {wanted}")

    channels = image.shape[2:] or (1,)
    has_shape = image.ndim in (2, 3) and channels in ((1,), (3,))
    if image.dtype != np.uint8 or not has_shape:
        raise ValueError(f"{name} is {image.dtype} {list(image.shape)}; {wanted}")
    if image.size == 0:
        raise ValueError(f"{name} has shape {list(image.shape)}, so it has no pixels")

    if channels == (1,):
        return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    return np.ascontiguousarray(image)


def _from_file(path: str) -> InputImage:
    """Return the image in a file."""
    return InputImage(_bgr_to_rgb(read_image(path)), path)


def _from_url(url: str, allowed: bool) -> InputImage:
    """Return the image at a URL, downloaded to a temporary file."""
    shown = excerpt(url, 200)
    if not allowed:
        raise ValueError(f"{shown} is a URL: load the model with urls=True to allow downloads")

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "image"
        try:
            fetch(DownloadSource(url), target, limit=MAX_URL_BYTES)
        except ValueError as error:
            raise ValueError(f"{shown} cannot be downloaded: {error}") from None
        try:
            return InputImage(_bgr_to_rgb(read_image(target)), url)
        except ValueError as error:
            raise ValueError(str(error).replace(printable(target), shown)) from None


def _from_array(image: NDArray[np.uint8], channel_order: ChannelOrder | None) -> NDArray[np.uint8]:
    """Return the RGB pixels of an array, which must come with its channel order unless gray."""
    pixels = three_channels(image, "the image")
    if channel_order is None and image.shape[2:] == (3,):
        raise ValueError(
            "a NumPy array does not say its channel order: give channel_order='rgb' or 'bgr' "
            "(OpenCV)"
        )
    return _bgr_to_rgb(pixels) if channel_order == "bgr" else pixels


def _bgr_to_rgb(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)


def _from_tensor(image: Tensor) -> NDArray[np.uint8]:
    """Return the pixels of a tensor [3, H, W]."""
    wanted = "it must be [3, H, W], RGB, uint8, or floating-point in [0, 1]"
    if image.ndim != 3 or image.shape[0] != 3 or not image.numel():
        raise ValueError(f"the tensor has shape {list(image.shape)}; {wanted}")

    values = image.detach().cpu()
    if values.is_floating_point():
        low = values.min().item()
        high = values.max().item()
        if not (low >= 0 and high <= 1):  # also for nan
            raise ValueError(f"the tensor has values from {low:g} to {high:g}; {wanted}")
        values = (values.float() * 255).round().byte()
    elif str(values.dtype) != "torch.uint8":
        raise ValueError(f"the tensor is {values.dtype}; {wanted}")

    return np.ascontiguousarray(values.permute(1, 2, 0).numpy())


def _is_pil(given: Any) -> bool:
    """Whether it is a PIL image, without importing PIL."""
    classes = {(kind.__module__, kind.__name__) for kind in type(given).__mro__}
    return ("PIL.Image", "Image") in classes


def _from_pil(image: Any) -> NDArray[np.uint8]:
    """Return the pixels of a PIL image, upright.

    16-bit and floating-point images are refused, as their range is unknown.
    """
    from PIL import ImageOps

    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"the PIL image has mode {image.mode}, more than 8 bits: give its path, or convert it "
            "to RGB"
        )

    upright = ImageOps.exif_transpose(image)
    return np.array(upright.convert("RGB"))
