"""Base images: images or tiles of a split, resized to the training size; uint8 [h, w, 3] BGR."""

import threading
import time
from functools import lru_cache
from typing import Any

from data.labels import Labels
from data.tiles import TiledLabels
from utils.images.decode import read_image
from utils.images.letterbox import Image, base_sizes, resized
from utils.printable import printable
from utils.terminal import FaultError

PAUSES_S = (0.1, 1.0, 5.0)  # before an image that cannot be read is tried again


class UnreadableImageError(FaultError):
    """An image of the data set cannot be read any more, or has changed."""


class DecodedImages:
    """Base images decoded from their files on every call."""

    def __init__(
        self,
        labels: Labels,
        image_size: int,
        tile: int = 0,
        canvas: tuple[int, int] | None = None,
    ) -> None:
        """tile, canvas: see `base_sizes`; tile is the side of what samples are cut from."""
        self.labels = labels
        self.image_size = image_size
        self.tile = tile
        self.canvas = canvas
        self.sizes = base_sizes(labels.sizes, image_size, tile, canvas)

    @property
    def key(self) -> list[Any]:
        """What the base images depend on besides the files, as plain values."""
        of_tiles = ["of-tiles-of", self.tile] if self.tile else []
        return [self.image_size, *of_tiles, *self._canvas_key]

    @property
    def _canvas_key(self) -> list[Any]:
        return ["on", *self.canvas] if self.canvas else []

    def __call__(self, index: int) -> Image:
        """Return base image `index`. Raises UnreadableImageError as `read_labeled` does."""
        width, height = self.sizes[index].tolist()
        return resized(read_labeled(self.labels, index), width, height)


class DecodedTiles(DecodedImages):
    """Base images of tiles, decoded from the files of their images.

    The last image is kept for its next tile.
    """

    def __init__(
        self, labels: TiledLabels, image_size: int, canvas: tuple[int, int] | None = None
    ) -> None:
        super().__init__(labels, image_size, canvas=canvas)
        self._tiles = labels
        self._read = lru_cache(maxsize=1)(lambda index: read_labeled(labels.images, index))
        self._reading = threading.Lock()  # or all threads would decode the image of their tile

    @property
    def key(self) -> list[Any]:
        tiling = self._tiles.tiling
        of_tiles = ["tiles", tiling.side, tiling.overlap, tiling.whole]
        return [self.image_size, *of_tiles, *self._canvas_key]

    def __call__(self, index: int) -> Image:
        with self._reading:
            image = self._read(int(self._tiles.owners[index]))
        x1, y1, x2, y2 = self._tiles.regions[index].tolist()
        width, height = self.sizes[index].tolist()
        return resized(image[y1:y2, x1:x2], width, height)

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedTiles, (self._tiles, self.image_size, self.canvas)


def decoded(
    labels: Labels, image_size: int, tile: int = 0, canvas: tuple[int, int] | None = None
) -> DecodedImages:
    """Return a reader of the base images of images or tiles.

    tile, canvas: as for DecodedImages.
    """
    if isinstance(labels, TiledLabels):
        return DecodedTiles(labels, image_size, canvas)
    return DecodedImages(labels, image_size, tile, canvas)


def read_labeled(labels: Labels, index: int) -> Image:
    """Return image `index`.

    The scan of the data set has decoded every image, so an error is a fault of a disk or a network,
    and may pass: the file is read again after each of PAUSES_S. Raises UnreadableImageError if it
    still cannot be decoded, or if it is not of the size that its labels are for.
    """
    path = labels.path(index)
    image = _read_patiently(path)
    height, width = image.shape[:2]
    known_width, known_height = labels.sizes[index].tolist()
    if (width, height) != (known_width, known_height):
        sizes = f"{known_width} x {known_height} pixels, now it has {width} x {height}"
        raise UnreadableImageError(
            f"{printable(path)}: has changed since its labels were read: it had {sizes}"
        )
    return image


def _read_patiently(path: str) -> Image:
    """Return an image, read again after each of PAUSES_S if it cannot be decoded.

    Raises UnreadableImageError if the last attempt fails too.
    """
    for pause_s in PAUSES_S:
        try:
            return read_image(path)
        except ValueError:
            time.sleep(pause_s)

    try:
        return read_image(path)
    except ValueError as error:
        attempts = (
            f"in {len(PAUSES_S) + 1} attempts; it could be read when the data set was scanned"
        )
        raise UnreadableImageError(f"{error}, {attempts}") from None
