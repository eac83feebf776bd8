"""Base images: those of a split with their long side at the training size, uint8 [h, w, 3], blue green red."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data.images import read_image
from data.labels import Labels
from utils.opencv import cv2
from utils.printable import shown

Image = np.ndarray  # uint8 [H, W, 3]
Reader = Callable[[int], Image]  # index -> base image; not to be written to


def base_sizes(sizes: NDArray[np.int32], image_size: int) -> NDArray[np.int32]:
    """[M, 2] width and height of base images, at least 1 px each, of source images of `sizes` [M, 2].

    >>> base_sizes(np.array([[640, 480], [20000, 10]], np.int32), 320).tolist()
    [[320, 240], [320, 1]]
    """
    ratios = image_size / sizes.max(1, initial=1, keepdims=True)
    return np.maximum(np.round(sizes * ratios), 1).astype(np.int32)


class DecodedImages:
    """Base images read from their files, each time they are asked for."""

    def __init__(self, labels: Labels, image_size: int) -> None:
        self.labels, self.image_size = labels, image_size
        self.sizes = base_sizes(labels.sizes, image_size)

    def __call__(self, index: int) -> Image:
        """Raises ValueError if the image is damaged, or not the one any more that its boxes were read for."""
        path = self.labels.path(index)
        image = read_image(path)
        size, known = (image.shape[1], image.shape[0]), tuple(self.labels.sizes[index].tolist())
        if size != known:
            was = f"{known[0]} x {known[1]} pixels, now it has {size[0]} x {size[1]}"
            raise ValueError(f"{shown(path)}: has changed since its labels were read: it had {was}")
        return resized(image, *self.sizes[index].tolist())


def resized(image: Image, width: int, height: int) -> Image:
    """The image at another size: averaged where it shrinks, interpolated where it grows."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = height < image.shape[0] or width < image.shape[1]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
