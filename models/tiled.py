"""Detect objects in images larger than a model's input, tile by tile.

The detections are merged so that each object counts once. *Cut* boxes end at a border of their tile
that is not a border of the image, all others are *whole*. D detections, R regions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.backends import Backend
from models.highest_score import HighestScore
from models.image_inputs import ChannelOrder
from models.nms import MAX_CANDIDATES
from models.predict import Predictor, size_of
from utils.distributed.world import World
from utils.images.boxes import box_areas, clip_boxes
from utils.images.detections import ImageDetections
from utils.images.letterbox import Region
from utils.images.tiles import Tiling, cut_by_tile
from utils.stopwatch import Stopwatch

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
# of a cut box's score: noise must not replace the visible part of a large object
MIN_WHOLE_SCORE = 0.5
MIN_PART_SCORE = 0.1  # of the other part's score: noise must not widen the box of an object


class TiledPredictor(Predictor):
    """A predictor that cuts images into tiles.

    It needs memory for `batch_size` tiles at a time, whatever their number. Images that are not
    larger than a tile are detected as by Predictor.
    """

    def __init__(
        self,
        backend: Backend,
        tiling: Tiling,
        *,
        iou: float = 0.45,
        max_detections: int = 300,
        class_ids: Sequence[int] | None = None,
        agnostic: bool = False,
        **settings: Any,
    ) -> None:
        """A predictor of tiles.

        Args:
            backend: as for Predictor.
            tiling: of the images; each tile is resized to image_size.
            iou, agnostic: as for Predictor, and for merging.
            max_detections: per tile, and per image.
            class_ids: return only these classes; those of tiles are merged with all classes,
                without a limit for a tile.
            settings: the other arguments of Predictor.

        Raises: ValueError as Predictor does.
        """
        self.tiling = tiling
        self._regions = tiling.regions
        self._merge = partial(
            merge_tiles,
            iou=iou,
            agnostic=agnostic,
            max_detections=max_detections,
            class_ids=class_ids,
        )
        super().__init__(
            backend,
            iou=iou,
            agnostic=agnostic,
            max_detections=max_detections,
            class_ids=class_ids,
            **settings,
        )
        if class_ids is not None:  # chosen after merging, in which all classes take part
            self._in_images = partial(
                self._in_images, max_detections=MAX_CANDIDATES, class_ids=None
            )

    def _detect(
        self,
        images: Sequence[NDArray[np.uint8]],
        channel_order: ChannelOrder,
        watch: Stopwatch,
        highest: HighestScore | None,
    ) -> list[ImageDetections]:
        """Return the detections of each image. Tiles of all images share batches."""
        sizes = [size_of(image) for image in images]
        regions = [self._regions(size) for size in sizes]
        tiles = []
        for image, own_regions in zip(images, regions, strict=True):
            for x1, y1, x2, y2 in own_regions:
                tiles.append(image[y1:y2, x1:x2])

        found = iter(super()._detect(tiles, channel_order, watch, highest))

        merged = []
        with watch("merging tiles"):
            for own_regions, size in zip(regions, sizes, strict=True):
                own_found = list(islice(found, len(own_regions)))
                merged.append(self._merge(own_found, own_regions, size))
        return merged


def merge_tiles(
    found: Sequence[ImageDetections],
    regions: Sequence[Region],
    size: tuple[int, int],
    *,
    iou: float,
    max_detections: int,
    class_ids: Sequence[int] | None = None,
    agnostic: bool = False,
) -> ImageDetections:
    """Return the detections of an image from those of its tiles.

    Args:
        found: of each tile, in pixels of the tile, best score first.
        regions: the tiles, in pixels of the image.
        size: (width, height) of the image.
        iou: the NMS IoU threshold.
        max_detections: the best of the image; `left_out` counts the others, and those that were
            left out of a tile.
        class_ids: return only these classes.
        agnostic: boxes of different classes are merged too.

    If the whole image is one of the regions, only those of its boxes count that no tile shows
    uncut, because tiles show the others better. The rules, for boxes of one class, or of all if
    `agnostic`:

    1. Whole boxes suppress each other, as in non-maximum suppression.
    2. A cut box gives way to a whole one that has at least half of its score, and with which it
       overlaps by more than the NMS IoU inside the cut box's tile. If the whole box's tile shows
       all of the cut box and beyond its cut, that share of the cut box's own area is enough.
    3. Remaining cut boxes of different tiles that overlap by more than the NMS IoU inside both
       tiles, with scores of one order of magnitude, are parts of one object. The box around them
       replaces them, with their highest score.
    4. The boxes of rule 3 count as whole: rule 2 applies again to them and the remaining cut boxes,
       then rule 1 to all.
    """
    if len(regions) == 1:
        return found[0].best(max_detections, class_ids)
    tiles = _TileBoxes.of(found, regions, size, iou, agnostic)
    whole = tiles.non_max_suppressed(np.flatnonzero(~tiles.cut))  # rule 1
    parts = tiles.not_shown_by(whole, np.flatnonzero(tiles.cut))  # rule 2

    # Rule 3: the first box of each group becomes the box around the group.
    groups = tiles.groups(parts)
    joined = np.array([group[0] for group in groups if len(group) > 1], np.int64)
    single = np.array([group[0] for group in groups if len(group) == 1], np.int64)
    tiles.join(groups)

    # Rule 4.
    single = tiles.not_shown_by(joined, single)
    remaining = np.sort(np.concatenate([whole, joined, single]))
    kept = tiles.non_max_suppressed(remaining)

    merged = ImageDetections(
        tiles.boxes[kept],
        tiles.scores[kept],
        tiles.classes[kept],
        left_out=sum(tile.left_out for tile in found),
        capped=any(tile.capped for tile in found),
    )
    return merged.best(max_detections, class_ids)


def merge_rows(
    rows: Numbers,
    world: World,
    *,
    regions: Indices,
    owners: Indices,
    sizes: Indices,
    iou: float,
    max_detections: int,
) -> Numbers:
    """Return the detections of images as rows from those of all tiles of all processes.

    Each process merges every `world.size`-th image; all get the same rows.

    Args:
        rows: [D, 7] as ImageDetections.rows returns them, with the number of the tile.
        world: the processes.
        regions: [M, 4] of the tiles.
        owners: [M], the image of each tile, ascending.
        sizes: [N, 2], width and height of the images.
        iou, max_detections: as for `merge_tiles`.
    """
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    first_row = np.searchsorted(rows[:, 0], np.arange(len(owners) + 1))  # of each tile
    first_tile = np.searchsorted(owners, np.arange(len(sizes) + 1))  # of each image

    merged = [np.zeros((0, 7))]
    for image in range(world.rank, len(sizes), world.size):
        tiles = range(first_tile[image], first_tile[image + 1])
        found = []
        for tile in tiles:
            tile_rows = rows[first_row[tile] : first_row[tile + 1]]
            found.append(ImageDetections.from_rows(tile_rows))

        tile_regions = regions[tiles.start : tiles.stop].tolist()
        shown: list[Region] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in tile_regions]
        width, height = sizes[image].tolist()
        whole = merge_tiles(found, shown, (width, height), iou=iou, max_detections=max_detections)
        merged.append(whole.rows(image))

    own_rows = torch.from_numpy(np.concatenate(merged))
    return world.all_gather_rows(own_rows).numpy()


@dataclass
class _TileBoxes:
    """The detections of all tiles of an image, best score first, ties in the order of the tiles.

    boxes: [D, 4] in pixels of the image. kinds: [D], only boxes of one kind are compared. tiles:
    [D], numbers of the regions. cut: [D]. uncut_in: [D, R], whether a region shows the box and
    beyond its sides.
    """

    boxes: Numbers
    scores: Numbers
    classes: Indices
    kinds: Indices
    tiles: Indices
    cut: Mask
    uncut_in: Mask
    regions: Sequence[Region]
    iou: float

    @staticmethod
    def of(
        found: Sequence[ImageDetections],
        regions: Sequence[Region],
        size: tuple[int, int],
        iou: float,
        agnostic: bool,
    ) -> "_TileBoxes":
        """Return the boxes of all tiles, without those of the whole image that a tile shows."""
        # Columns of all tiles, boxes moved to pixels of the image.
        moved = []
        for detections, region in zip(found, regions, strict=True):
            moved.append(detections.boxes_xyxy + np.tile(region[:2], 2))
        boxes = np.concatenate(moved)  # [D, 4]
        scores = np.concatenate([detections.scores for detections in found])
        classes = np.concatenate([detections.class_ids for detections in found])
        tiles = np.repeat(np.arange(len(found)), [len(detections) for detections in found])

        # Best score first.
        order = np.argsort(-scores, kind="stable")
        boxes = boxes[order]
        scores = scores[order]
        classes = classes[order]
        tiles = tiles[order]
        kinds = np.zeros_like(classes) if agnostic else classes

        uncut_in = np.stack([~cut_by_tile(boxes, region, size) for region in regions], 1)  # [D, R]
        cut = ~uncut_in[np.arange(len(tiles)), tiles]

        is_image = np.array([region == (0, 0, *size) for region in regions])  # [R]
        shown_by_tile = uncut_in[:, ~is_image].any(1)
        kept = ~(is_image[tiles] & shown_by_tile)
        return _TileBoxes(
            boxes=boxes[kept],
            scores=scores[kept],
            classes=classes[kept],
            kinds=kinds[kept],
            tiles=tiles[kept],
            cut=cut[kept],
            uncut_in=uncut_in[kept],
            regions=regions,
            iou=iou,
        )

    def non_max_suppressed(self, chosen: Indices) -> Indices:
        """Return those of the chosen boxes, ascending, that non-maximum suppression keeps."""
        kept = [np.zeros(0, np.int64)]
        for kind in np.unique(self.kinds[chosen]).tolist():
            own = chosen[self.kinds[chosen] == kind]
            boxes = torch.from_numpy(self.boxes[own])
            scores = torch.from_numpy(self.scores[own])
            kept.append(own[torch.ops.torchvision.nms(boxes, scores, self.iou).numpy()])
        return np.sort(np.concatenate(kept))

    def not_shown_by(self, whole: Indices, parts: Indices) -> Indices:
        """Return those of the cut boxes `parts` that do not give way to a box of `whole`: rule 2.

        N cut boxes of one tile, M whole boxes that the tile shows in part.
        """
        kept = np.ones(len(parts), bool)
        for tile in np.unique(self.tiles[parts]).tolist():
            in_tile = self.tiles[parts] == tile
            own = parts[in_tile]
            own_boxes = self.boxes[own]
            own_areas = box_areas(own_boxes)[:, None]  # [N, 1]

            # The parts of whole boxes inside this tile.
            visible = clip_boxes(self.boxes[whole], self.regions[tile])
            is_near = box_areas(visible) > 0
            near = whole[is_near]
            near_boxes = visible[is_near]
            intersection = _intersections(own_boxes, near_boxes)  # [N, M]

            # Inside this tile they overlap like boxes of one object,
            union = own_areas + box_areas(near_boxes) - intersection
            is_same = intersection > self.iou * union
            # or the cut box lies in the whole one, whose tile shows all of it and beyond its cut.
            covered = intersection > self.iou * own_areas
            is_inside = covered & self.uncut_in[own][:, self.tiles[near]]

            is_sure = self.scores[near] >= MIN_WHOLE_SCORE * self.scores[own][:, None]
            gives_way = (is_same | is_inside) & is_sure & self._same_kind(own, near)  # [N, M]
            kept[in_tile] = ~gives_way.any(1)
        return parts[kept]

    def groups(self, parts: Indices) -> list[list[int]]:
        """Return the cut boxes in groups of one object, best score first: rule 3.

        A group has at most one box of each tile.
        """
        agreeing = self._agreeing(parts)
        free = set(parts.tolist())
        groups = []
        for first in parts.tolist():
            if first not in free:
                continue

            group = [first]
            tiles = {self.tiles[first]}
            for member in group:  # it grows meanwhile
                for other in sorted(agreeing[member] & free):
                    if self.tiles[other] not in tiles:
                        group.append(other)
                        tiles.add(self.tiles[other])

            free.difference_update(group)
            groups.append(group)
        return groups

    def _agreeing(self, parts: Indices) -> dict[int, set[int]]:
        """Return for each cut box those of other tiles that agree with it where the tiles overlap.

        N cut boxes of one tile, M of another.
        """
        by_tile = {}
        for tile in np.unique(self.tiles[parts]).tolist():
            by_tile[tile] = parts[self.tiles[parts] == tile]

        agreeing: dict[int, set[int]] = {part: set() for part in parts.tolist()}
        for (tile, own), (other_tile, others) in combinations(by_tile.items(), 2):
            overlap = _intersection(self.regions[tile], self.regions[other_tile])
            if overlap is None:
                continue

            # Overlap of the boxes inside both tiles.  [N, M]
            own_boxes = clip_boxes(self.boxes[own], overlap)
            other_boxes = clip_boxes(self.boxes[others], overlap)
            intersection = _intersections(own_boxes, other_boxes)
            union = box_areas(own_boxes)[:, None] + box_areas(other_boxes) - intersection
            overlaps = intersection > self.iou * union

            # Scores of one order of magnitude.  [N, M]
            own_scores = self.scores[own][:, None]
            other_scores = self.scores[others]
            lower = np.minimum(own_scores, other_scores)
            higher = np.maximum(own_scores, other_scores)
            alike = lower >= MIN_PART_SCORE * higher

            agree = overlaps & alike & self._same_kind(own, others)
            for i, j in np.argwhere(agree).tolist():
                part = int(own[i])
                other_part = int(others[j])
                agreeing[part].add(other_part)
                agreeing[other_part].add(part)
        return agreeing

    def join(self, groups: Sequence[Sequence[int]]) -> None:
        """Make the first box of each group the box around all of them."""
        for group in groups:
            boxes = self.boxes[list(group)]
            low = boxes[:, :2].min(0)
            high = boxes[:, 2:].max(0)
            self.boxes[group[0]] = np.concatenate([low, high])

    def _same_kind(self, one: Indices, other: Indices) -> Mask:
        """Return which pairs of boxes are of one kind, [N, M]."""
        same: Mask = self.kinds[one][:, None] == self.kinds[other]
        return same


def _intersections(one: Numbers, other: Numbers) -> Numbers:
    """Return the areas [N, M] that boxes [N, 4] and [M, 4] share."""
    low = np.maximum(one[:, None, :2], other[:, :2])  # [N, M, 2]
    high = np.minimum(one[:, None, 2:], other[:, 2:])
    areas: Numbers = (high - low).clip(0).prod(2)
    return areas


def _intersection(one: Region, other: Region) -> Region | None:
    """Return the region that two regions share, None if there is none.

    >>> _intersection((0, 0, 6, 6), (4, 1, 9, 9)), _intersection((0, 0, 6, 6), (6, 0, 9, 6))
    ((4, 1, 6, 6), None)
    """
    x1 = max(one[0], other[0])
    y1 = max(one[1], other[1])
    x2 = min(one[2], other[2])
    y2 = min(one[3], other[3])
    if x1 >= x2 or y1 >= y2:
        return None
    return x1, y1, x2, y2
