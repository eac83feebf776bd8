"""Base images: images of a split, resized to a long side of the training size; uint8 [h, w, 3], blue green red."""

from collections.abc import Callable

from data.labels import Labels
from utils.images.decode import read_image
from utils.images.letterbox import Image, base_sizes, resized
from utils.printable import printable

Reader = Callable[[int], Image]  # index -> base image; callers must not write to it


class DecodedImages:
    """Base images decoded from their files on every call."""

    def __init__(self, labels: Labels, image_size: int) -> None:
        self.labels, self.image_size = labels, image_size
        self.sizes = base_sizes(labels.sizes, image_size)

    def __call__(self, index: int) -> Image:
        """Return base image `index`. Raises ValueError if it is damaged, or not of the size that its labels are for."""
        path = self.labels.path(index)
        image = read_image(path)
        size, known = (image.shape[1], image.shape[0]), tuple(self.labels.sizes[index].tolist())
        if size != known:
            sizes = f"{known[0]} x {known[1]} pixels, now it has {size[0]} x {size[1]}"
            raise ValueError(f"{printable(path)}: has changed since its labels were read: it had {sizes}")
        return resized(image, *self.sizes[index].tolist())
