"""Plan training samples that are tiles.

Crops of base images, at the positions of the grid plus a random shift.
"""

import numpy as np

from data.augment.plan import Planner
from data.augment.records import Augmentation
from data.balance.draws import Draws
from data.tiles.labels import MIN_VISIBLE, TiledLabels
from utils.images.letterbox import Region


class TilePlanner(Planner):
    """Plans samples of the tiles of a data set.

    Sample k is tile k, moved by up to half the distance to its neighbors.

    So each object is seen at every position of a tile, and over many epochs every crop of an image
    is equally likely, except that more end at its borders. The images of its plans and of `labels`
    are the whole ones.
    """

    min_visible = MIN_VISIBLE

    def __init__(
        self,
        tiles: TiledLabels,
        image_size: int,
        augmentation: Augmentation,
        seed: int,
        draws: Draws | None = None,
    ) -> None:
        self.tile = tiles.tiling.side
        super().__init__(tiles.images, image_size, augmentation, seed, draws)
        self._owners = tiles.owners
        self._starts = tiles.regions[:, :2]

        # The distance between neighboring tiles of each image, along x and y.  [images, 2]
        step = tiles.tiling.step
        sizes = self.labels.sizes.tolist()
        self._steps = np.array([(step(width), step(height)) for width, height in sizes])

    def __len__(self) -> int:
        return len(self._owners)

    def image_of(self, index: int) -> int:
        return int(self._owners[index])

    def _crop(self, random: np.random.Generator, index: int) -> tuple[int, Region]:
        """Return the image of a tile, and the tile's region in base pixels after a random move."""
        image = self.image_of(index)
        base_size = np.array(self.base_size(image))
        tile_size = np.minimum(self.image_size, base_size)

        # Its upper left corner, moved by up to half a step, but not out of the image.
        corner = self._starts[index] + random.uniform(-0.5, 0.5, 2) * self._steps[image]
        base_corner = np.round(corner * self.base_scale(image)).astype(int)
        inside = base_corner.clip(0, base_size - tile_size)

        x, y = inside.tolist()
        width, height = tile_size.tolist()
        return image, (x, y, x + width, y + height)
