"""Labels of tiles: each tile counts as an image of its own, with the boxes that it shows.

A box that a tile's border cuts is a target if at least MIN_VISIBLE of its area is visible. At an
overlap of 0.2, some tile shows at least 0.6 of each side, so 0.36 of the area, of every object that
is not larger than a tile: each is a target somewhere. A smaller part is an ignore region, since
neither "an object" nor "no object" would be a fair answer. Below MIN_AREA_BOX it is left out, as in
a mosaic.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data.augment.plan import MIN_AREA_BOX
from data.labels import Labels, range_offsets
from utils.images.boxes import box_areas, clip_boxes
from utils.images.letterbox import Region
from utils.images.tiles import Tiling

MIN_VISIBLE = 0.3  # fraction of its area


@dataclass(frozen=True, eq=False)
class TiledLabels(Labels):
    """Labels whose M images are tiles.

    Boxes are clipped to the tile, in its pixels, without polygons.
    """

    images: Labels  # the images that were cut
    tiling: Tiling  # how they were cut
    regions: np.ndarray  # int64 [M, 4]: each tile in pixels of its image
    owners: np.ndarray  # int64 [M]: the image of each tile, ascending unless `subset` mixed them

    @property
    def whole(self) -> Labels:
        return self.images

    def part(self, index: int) -> tuple[int, Region]:
        x1, y1, x2, y2 = self.regions[index].tolist()
        return int(self.images.image_ids[self.owners[index]]), (x1, y1, x2, y2)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "TiledLabels":
        """Return the tiles `indices`, in that order."""
        chosen = np.arange(len(self))[np.asarray(indices, dtype=np.int64)]
        return TiledLabels(
            **super().subset(chosen).arrays(),
            images=self.images,
            tiling=self.tiling,
            regions=self.regions[chosen],
            owners=self.owners[chosen],
        )

    def layout(self) -> dict[str, Any]:
        """Return the keyword arguments of models.tiled.merge_rows."""
        return {"regions": self.regions, "owners": self.owners, "sizes": self.images.sizes}


def tile_labels(labels: Labels, tiling: Tiling) -> TiledLabels:
    """Return the labels of all tiles of the images."""
    # The tiles of each image, and all in one list.
    by_image = [tiling.regions((width, height)) for width, height in labels.sizes.tolist()]
    all_regions = [region for of_image in by_image for region in of_image]
    regions = np.array(all_regions, np.int64).reshape(-1, 4)
    tiles_per_image = [len(of_image) for of_image in by_image]
    owners = np.repeat(np.arange(len(labels)), tiles_per_image)
    paths = [os.fsencode(labels.path(owner)) for owner in owners.tolist()]

    # The visible parts of the boxes.
    visible = _visible_rows(labels, by_image)
    upper_left = visible.boxes[:, :2]
    lower_right = visible.boxes[:, 2:]
    boxes_xywh = np.concatenate([upper_left, lower_right - upper_left], 1)
    is_small_part = visible.shares < MIN_VISIBLE

    return TiledLabels(
        path_bytes=np.frombuffer(b"".join(paths), np.uint8),
        path_offsets=range_offsets([len(path) for path in paths]),
        sizes=(regions[:, 2:] - regions[:, :2]).astype(np.int32),
        image_ids=np.arange(1, len(regions) + 1),
        offsets=range_offsets(visible.counts),
        classes=labels.classes[visible.rows],
        boxes_xywh=boxes_xywh,
        areas=boxes_xywh[:, 2:].prod(1),
        crowd=labels.crowd[visible.rows] | is_small_part,
        points=np.zeros((0, 2), np.float32),
        point_offsets=np.zeros(len(visible.rows) + 1, np.int64),
        category_ids=labels.category_ids,
        images=labels,
        tiling=tiling,
        regions=regions,
        owners=owners,
    )


class VisibleRows(NamedTuple):
    """The N rows that the tiles show, tile after tile."""

    rows: np.ndarray  # int64 [N]
    counts: list[int]  # of each tile
    boxes: np.ndarray  # the visible part of each box, x1, y1, x2, y2 in pixels of the tile, [N, 4]
    shares: np.ndarray  # the fraction of the box's area that it is, [N]


def _visible_rows(labels: Labels, by_image: Sequence[Sequence[Region]]) -> VisibleRows:
    """Return the rows that are visible in each tile; by_image: the tiles of each image."""
    rows = [np.zeros(0, np.int64)]
    boxes = [np.zeros((0, 4))]
    shares = [np.zeros(0)]
    counts = []
    for index, regions in enumerate(by_image):
        own = labels.rows(index)
        xywh = labels.boxes_xywh[own]
        whole = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
        min_share = np.where(labels.crowd[own], 0, MIN_AREA_BOX)

        for x1, y1, x2, y2 in regions:
            visible = clip_boxes(whole, (x1, y1, x2, y2))
            share = box_areas(visible) / np.maximum(box_areas(whole), 1e-9)
            kept = np.flatnonzero(share > min_share)
            rows.append(own.start + kept)
            counts.append(len(kept))
            boxes.append(visible[kept] - np.array([x1, y1, x1, y1]))
            shares.append(share[kept])
    return VisibleRows(np.concatenate(rows), counts, np.concatenate(boxes), np.concatenate(shares))
