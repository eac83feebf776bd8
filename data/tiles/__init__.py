"""Large images in tiles: the labels of the tiles, and training samples cut at random positions."""

from data.tiles.labels import TiledLabels, tile_labels
from data.tiles.plan import TilePlanner

__all__ = ["TilePlanner", "TiledLabels", "tile_labels"]
