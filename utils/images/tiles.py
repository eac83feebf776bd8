"""Tiles: overlapping regions that cover a large image, for a detector whose input is smaller.

Both data/ (loading) and models/ (prediction) use this module, because they must cut images
identically and do not import each other.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from utils.images.letterbox import Region

DEFAULT_OVERLAP = 0.2  # of a tile's side
MAX_OVERLAP = 0.9  # beyond it the number of tiles explodes
MIN_SIDE = 32  # pixels: smaller tiles would be many thousands
# Of a tile's side: a box that ends this close to the tile's border was probably cut there.
CUT_MARGIN = 0.01


@dataclass(frozen=True)
class Tiling:
    """How images are cut into tiles.

    Raises: ValueError for a number out of range.
    """

    side: int  # of a tile, in pixels of the image
    overlap: float = DEFAULT_OVERLAP  # least overlap of neighbors, as a fraction of the side
    whole: bool = False  # the whole image is one more region, for objects larger than a tile

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(
                f"tile {self.side}: choose a side of 1 pixel or more, or 0 to use whole images"
            )
        if not 0 <= self.overlap <= MAX_OVERLAP:
            allowed = f"choose a fraction of the side from 0 to {MAX_OVERLAP}"
            raise ValueError(f"tile overlap {self.overlap}: {allowed}")

    def starts(self, length: int) -> list[int]:
        """Return the first pixel of each tile along a side of the image.

        The tiles are evenly spaced, and the last one ends the image.

        >>> # neighbors may be up to 512 px apart, so 1500 - 640 = 860 takes two steps
        >>> Tiling(640, 0.2).starts(1500)
        [0, 430, 860]
        >>> Tiling(640, 0.2).starts(640), Tiling(640, 0.2).starts(641), Tiling(4, 0).starts(9)
        ([0], [0, 1], [0, 2, 5])
        """
        if length <= self.side:
            return [0]

        # The tolerance: a rounding error of the product must not add a pixel.
        min_overlap = math.ceil(self.side * self.overlap - 1e-9)  # in pixels
        longest_step = max(1, self.side - min_overlap)

        last_start = length - self.side
        steps = -(-last_start // longest_step)  # rounded up
        return [number * last_start // steps for number in range(steps + 1)]

    def step(self, length: int) -> float:
        """Return the distance from tile to tile along a side of the image, 0 if there is only one.

        >>> Tiling(640, 0.2).step(1500), Tiling(640, 0.2).step(640)
        (430.0, 0.0)
        """
        starts = self.starts(length)
        steps = len(starts) - 1
        return starts[-1] / max(1, steps)

    def grid(self, size: tuple[int, int]) -> list[Region]:
        """Return the tiles of an image of `size` (width, height), row by row.

        An image that is not larger than a tile is one tile. Tiles are smaller than `side` only
        where the image is.

        >>> Tiling(640).grid((1000, 300))
        [(0, 0, 640, 300), (360, 0, 1000, 300)]
        """
        width, height = size
        tiles = []
        for top in self.starts(height):
            for left in self.starts(width):
                right = min(left + self.side, width)
                bottom = min(top + self.side, height)
                tiles.append((left, top, right, bottom))
        return tiles

    def regions(self, size: tuple[int, int]) -> list[Region]:
        """Return the tiles of an image of `size` (width, height), then the whole image if `whole`.

        An image of one tile is not repeated.

        >>> tiling = Tiling(640, whole=True)
        >>> tiling.regions((1000, 300))[2:], tiling.regions((640, 300))
        ([(0, 0, 1000, 300)], [(0, 0, 640, 300)])
        """
        tiles = self.grid(size)
        if self.whole and len(tiles) > 1:
            tiles.append((0, 0, *size))
        return tiles

    def __str__(self) -> str:
        whole = " and whole images" if self.whole else ""
        return f"tiles of {self.side} px with an overlap of {self.overlap:.0%}{whole}"


def open_tiling(tile: int, tile_overlap: float, tile_whole: bool) -> Tiling | None:
    """Return the tiling with these settings; None if `tile` is 0: images are not cut.

    Raises: ValueError for a tile of less than MIN_SIDE pixels, and as Tiling does.
    """
    if not tile:
        return None
    if tile < MIN_SIDE:
        raise ValueError(
            f"tile {tile}: choose a side of {MIN_SIDE} pixels or more, or 0 to use whole images"
        )
    return Tiling(tile, tile_overlap, tile_whole)


def cut_by_tile(
    boxes_xyxy: NDArray[np.float64], region: Region, size: tuple[int, int]
) -> NDArray[np.bool_]:
    """Return which boxes end at a border of their tile that is not a border of the image, [N].

    boxes_xyxy: [N, 4] in pixels of the image. region: the tile. size: (width, height) of the image.

    >>> boxes = [[0.0, 10.0, 50.0, 50.0], [600.0, 10.0, 636.0, 50.0], [600.0, 10.0, 630.0, 50.0]]
    >>> cut_by_tile(np.array(boxes), (0, 0, 640, 640), (1000, 640)).tolist()  # the margin is 6.4 px
    [False, True, False]
    """
    x1, y1, x2, y2 = region
    margin = CUT_MARGIN * max(x2 - x1, y2 - y1)

    # Left and top border of the tile.  [N, 2]
    low = np.array([x1, y1])
    near_low = boxes_xyxy[:, :2] - low <= margin
    cut_low = near_low & (low > 0)

    # Right and bottom border.  [N, 2]
    high = np.array([x2, y2])
    near_high = high - boxes_xyxy[:, 2:] <= margin
    cut_high = near_high & (high < np.array(size))

    return (cut_low | cut_high).any(1)
