"""Labels of tiles: each tile of an image counts as an image of its own, with the boxes that can be
seen in it.

A box that a tile's border cuts is a target if at least MIN_VISIBLE of its area is visible. At an
overlap of 0.2, some tile shows at least 0.6 of each side, so 0.36 of the area, of every object that
is not larger than a tile: each is a target somewhere. A smaller part is an ignore region, since
neither "an object" nor "no object" would be a fair answer. Below MIN_AREA_BOX it is left out, as in
a mosaic.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.augment.geometry import box_areas
from data.augment.plan import MIN_AREA_BOX
from data.labels import Labels
from utils.images.letterbox import Region
from utils.images.tiles import Tiling, clip

MIN_VISIBLE = 0.3  # fraction of its area


@dataclass(frozen=True, eq=False)
class TiledLabels(Labels):
    """Labels whose M images are tiles.

    Boxes are clipped to the tile, in its pixels, without polygons.

    images: the labels of the images that were cut. tiling: how. regions: int64 [M, 4], each tile in
    pixels of its image. owners: int64 [M], the image of each tile, ascending.
    """

    images: Labels
    tiling: Tiling
    regions: np.ndarray
    owners: np.ndarray

    @property
    def whole(self) -> Labels:
        return self.images

    def part(self, index: int) -> tuple[int, Region]:
        x1, y1, x2, y2 = self.regions[index].tolist()
        return int(self.images.image_ids[self.owners[index]]), (x1, y1, x2, y2)

    def layout(self) -> dict[str, Any]:
        """Return the keyword arguments of models.tiled.merge_rows."""
        return {"regions": self.regions, "owners": self.owners, "sizes": self.images.sizes}


def tile_labels(labels: Labels, tiling: Tiling) -> TiledLabels:
    """Return the labels of all tiles of the images."""
    by_image = [tiling.regions((width, height)) for width, height in labels.sizes.tolist()]
    owners = np.repeat(np.arange(len(labels)), [len(regions) for regions in by_image])
    regions = np.array([region for own in by_image for region in own], np.int64).reshape(-1, 4)
    rows, counts, boxes, shares = _visible_rows(labels, by_image)
    paths = [os.fsencode(labels.path(owner)) for owner in owners.tolist()]
    boxes_xywh = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
    return TiledLabels(
        path_bytes=np.frombuffer(b"".join(paths), np.uint8),
        path_offsets=_offsets([len(path) for path in paths]),
        sizes=(regions[:, 2:] - regions[:, :2]).astype(np.int32),
        image_ids=np.arange(1, len(regions) + 1),
        offsets=_offsets(counts),
        classes=labels.classes[rows],
        boxes_xywh=boxes_xywh,
        areas=boxes_xywh[:, 2:].prod(1),
        crowd=labels.crowd[rows] | (shares < MIN_VISIBLE),
        points=np.zeros((0, 2), np.float32),
        point_offsets=np.zeros(len(rows) + 1, np.int64),
        category_ids=labels.category_ids,
        images=labels,
        tiling=tiling,
        regions=regions,
        owners=owners,
    )


def _offsets(counts: Sequence[int]) -> np.ndarray:
    """Return the start of each of the consecutive ranges, and the end of the last.

    int64 [len(counts) + 1].
    """
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _visible_rows(
    labels: Labels, by_image: Sequence[Sequence[Region]]
) -> tuple[np.ndarray, list[int], np.ndarray, np.ndarray]:
    """Return the rows that the tiles show, tile after tile, [N], their number in each tile, the
    visible part of each box, [N, 4] in pixels of the tile, and its share of the box's area, [N].
    """
    rows, counts = [np.zeros(0, np.int64)], []
    boxes, shares = [np.zeros((0, 4))], [np.zeros(0)]
    for index, regions in enumerate(by_image):
        own = labels.rows(index)
        xywh = labels.boxes_xywh[own]
        whole = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
        for region in regions:
            visible = clip(whole, region)
            share = box_areas(visible) / np.maximum(box_areas(whole), 1e-9)
            kept = np.flatnonzero(share > np.where(labels.crowd[own], 0, MIN_AREA_BOX))
            rows.append(own.start + kept)
            counts.append(len(kept))
            boxes.append(visible[kept] - np.tile(region[:2], 2))
            shares.append(share[kept])
    return np.concatenate(rows), counts, np.concatenate(boxes), np.concatenate(shares)
