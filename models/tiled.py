"""Detect objects in images that are larger than a model's input: tile by tile, merged so that each
object counts once.

*Cut* boxes end at a border of their tile that is not a border of the image, all others are *whole*.
D detections.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.ops import nms

from models.backends import Backend
from models.image_inputs import ChannelOrder
from models.nms import MAX_CANDIDATES
from models.predict import Predictor, size_of
from utils.distributed.world import World
from utils.images.detections import ImageDetections
from utils.images.letterbox import Region
from utils.images.tiles import Tiling, clip, cut_by_tile
from utils.stopwatch import Stopwatch

Numbers = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]
# of a cut box's score: noise must not replace the visible part of a large object
MIN_WHOLE_SCORE = 0.5
MIN_PART_SCORE = 0.1  # of the other part's score: noise must not widen the box of an object


class TiledPredictor(Predictor):
    """A predictor that cuts images into tiles. It needs memory for `batch_size` tiles at a time,
    whatever their number.

    Images that are not larger than a tile are detected as by Predictor.
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
        """tiling: of the images; each tile is resized to image_size. max_detections: per tile, and
        per image.

        class_ids: return only these classes; those of tiles are merged with all classes, without a
        limit for a tile. The other arguments are those of Predictor. Raises ValueError as it does.
        """
        self.tiling, self._regions = tiling, tiling.regions
        shared: dict[str, Any] = {"iou": iou, "agnostic": agnostic}
        self._merging = {**shared, "max_detections": max_detections, "class_ids": class_ids}
        super().__init__(
            backend, max_detections=max_detections, class_ids=class_ids, **shared, **settings
        )

        if class_ids is not None:
            self._in_images = partial(
                self._in_images, max_detections=MAX_CANDIDATES, class_ids=None
            )

    def _detect(
        self, images: Sequence[NDArray[np.uint8]], channel_order: ChannelOrder, watch: Stopwatch
    ) -> list[ImageDetections]:
        sizes = [size_of(image) for image in images]
        regions = [self._regions(size) for size in sizes]
        tiles = [
            image[y1:y2, x1:x2]
            for image, own in zip(images, regions, strict=True)
            for x1, y1, x2, y2 in own
        ]
        found = iter(super()._detect(tiles, channel_order, watch))
        with watch("merging tiles"):
            return [
                merge_tiles(list(islice(found, len(own))), own, size, **self._merging)
                for own, size in zip(regions, sizes, strict=True)
            ]


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

    found: of each tile, in pixels of the tile, best score first. regions: the tiles, in pixels of
    the image. size:
    (width, height) of the image. max_detections: the best of the image; `left_out` counts the
    others, and those that were left out of a tile. class_ids: return only these classes.

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
    whole, parts = np.flatnonzero(~tiles.cut), np.flatnonzero(tiles.cut)
    whole = tiles.non_max_suppressed(whole)
    groups = tiles.groups(tiles.not_shown_by(whole, parts))
    joined = np.array([group[0] for group in groups if len(group) > 1], np.int64)
    single = np.array([group[0] for group in groups if len(group) == 1], np.int64)
    tiles.join(groups)
    single = tiles.not_shown_by(joined, single)
    kept = tiles.non_max_suppressed(np.sort(np.concatenate([whole, joined, single])))

    left_out = sum(tile.left_out for tile in found)
    capped = any(tile.capped for tile in found)
    every = ImageDetections(
        tiles.boxes[kept], tiles.scores[kept], tiles.classes[kept], left_out, capped
    )
    return every.best(max_detections, class_ids)


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
    """Return the detections of images as rows, see ImageDetections.rows, from those of all tiles of
    all processes.

    Each process merges every `size`-th image; all get the same rows. rows: [D, 7] with the number
    of the tile. regions:
    [M, 4] of the tiles. owners: [M], the image of each tile, ascending. sizes: [N, 2], width and
    height of the images.
    """
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    first_row = np.searchsorted(rows[:, 0], np.arange(len(owners) + 1))
    first_tile = np.searchsorted(owners, np.arange(len(sizes) + 1))
    merged = [np.zeros((0, 7))]
    for image in range(world.rank, len(sizes), world.size):
        own = range(first_tile[image], first_tile[image + 1])
        found = [
            ImageDetections.from_rows(rows[first_row[tile] : first_row[tile + 1]]) for tile in own
        ]
        shown: list[Region] = [
            (x1, y1, x2, y2) for x1, y1, x2, y2 in regions[own.start : own.stop].tolist()
        ]
        width, height = sizes[image].tolist()
        whole = merge_tiles(found, shown, (width, height), iou=iou, max_detections=max_detections)
        merged.append(whole.rows(image))
    return world.all_gather_rows(torch.from_numpy(np.concatenate(merged))).numpy()


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
        boxes = np.concatenate(
            [each.boxes_xyxy + np.tile(r[:2], 2) for each, r in zip(found, regions, strict=True)]
        )
        scores = np.concatenate([each.scores for each in found])
        classes = np.concatenate([each.class_ids for each in found])
        tiles = np.repeat(np.arange(len(found)), [len(each) for each in found])
        order = np.argsort(-scores, kind="stable")
        boxes, scores, classes, tiles = boxes[order], scores[order], classes[order], tiles[order]
        uncut_in = np.stack([~cut_by_tile(boxes, region, size) for region in regions], 1)
        cut = ~uncut_in[np.arange(len(tiles)), tiles]
        kinds = np.zeros_like(classes) if agnostic else classes
        is_image = np.array([region == (0, 0, *size) for region in regions])
        kept = ~(is_image[tiles] & uncut_in[:, ~is_image].any(1))
        left = (
            boxes[kept],
            scores[kept],
            classes[kept],
            kinds[kept],
            tiles[kept],
            cut[kept],
            uncut_in[kept],
        )
        return _TileBoxes(*left, regions, iou)

    def non_max_suppressed(self, chosen: Indices) -> Indices:
        """Return those of the chosen boxes, in ascending order, that non-maximum suppression
        keeps.
        """
        kept = [np.zeros(0, np.int64)]
        for kind in np.unique(self.kinds[chosen]).tolist():
            own = chosen[self.kinds[chosen] == kind]
            kept.append(
                own[
                    nms(
                        torch.from_numpy(self.boxes[own]),
                        torch.from_numpy(self.scores[own]),
                        self.iou,
                    ).numpy()
                ]
            )
        return np.sort(np.concatenate(kept))

    def not_shown_by(self, whole: Indices, parts: Indices) -> Indices:
        """Return those of the cut boxes `parts` that do not give way to one of the boxes `whole`,
        by rule 2.
        """
        kept = np.ones(len(parts), bool)
        for tile in np.unique(self.tiles[parts]).tolist():
            chosen = self.tiles[parts] == tile
            own, visible = parts[chosen], clip(self.boxes[whole], self.regions[tile])
            near = _areas(visible) > 0
            shared, areas = (
                _intersections(self.boxes[own], visible[near]),
                _areas(self.boxes[own])[:, None],
            )
            same = shared > self.iou * (areas + _areas(visible[near]) - shared)
            inside = (shared > self.iou * areas) & self.uncut_in[own][:, self.tiles[whole[near]]]
            sure = self.scores[whole[near]] >= MIN_WHOLE_SCORE * self.scores[own][:, None]
            kept[chosen] = ~((same | inside) & sure & self._same_kind(own, whole[near])).any(1)
        return parts[kept]

    def groups(self, parts: Indices) -> list[list[int]]:
        """Return the cut boxes in groups of one object, best score first: at most one of each tile,
        by rule 3.
        """
        agreeing = self._agreeing(parts)
        free, groups = set(parts.tolist()), []
        for first in parts.tolist():
            if first not in free:
                continue
            group, tiles = [first], {self.tiles[first]}
            for member in group:  # it grows meanwhile
                for other in sorted(agreeing[member] & free):
                    if self.tiles[other] not in tiles:
                        group.append(other)
                        tiles.add(self.tiles[other])
            free.difference_update(group)
            groups.append(group)
        return groups

    def _agreeing(self, parts: Indices) -> dict[int, set[int]]:
        """Return for each cut box those of other tiles that agree with it where both tiles
        overlap.
        """
        agreeing: dict[int, set[int]] = {part: set() for part in parts.tolist()}
        by_tile = {
            tile: parts[self.tiles[parts] == tile] for tile in np.unique(self.tiles[parts]).tolist()
        }
        for (one, own), (other, its) in combinations(by_tile.items(), 2):
            overlap = _intersection(self.regions[one], self.regions[other])
            if overlap is None:
                continue
            boxes, others = clip(self.boxes[own], overlap), clip(self.boxes[its], overlap)
            shared = _intersections(boxes, others)
            agree = shared > self.iou * (_areas(boxes)[:, None] + _areas(others) - shared)
            scores, other_scores = self.scores[own][:, None], self.scores[its]
            agree &= np.minimum(scores, other_scores) >= MIN_PART_SCORE * np.maximum(
                scores, other_scores
            )
            for i, j in np.argwhere(agree & self._same_kind(own, its)).tolist():
                agreeing[int(own[i])].add(int(its[j]))
                agreeing[int(its[j])].add(int(own[i]))
        return agreeing

    def join(self, groups: Sequence[Sequence[int]]) -> None:
        """Make the first box of each group the box around all of them."""
        for group in groups:
            boxes = self.boxes[list(group)]
            self.boxes[group[0]] = np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])

    def _same_kind(self, one: Indices, other: Indices) -> Mask:
        same: Mask = self.kinds[one][:, None] == self.kinds[other]
        return same


def _areas(boxes: Numbers) -> Numbers:
    areas: Numbers = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(1)
    return areas


def _intersections(one: Numbers, other: Numbers) -> Numbers:
    """Return the areas [N, M] that boxes [N, 4] and [M, 4] share."""
    low, high = (
        np.maximum(one[:, None, :2], other[:, :2]),
        np.minimum(one[:, None, 2:], other[:, 2:]),
    )
    areas: Numbers = (high - low).clip(0).prod(2)
    return areas


def _intersection(one: Region, other: Region) -> Region | None:
    """Return the region that two regions share, None if there is none.

    >>> _intersection((0, 0, 6, 6), (4, 1, 9, 9)), _intersection((0, 0, 6, 6), (6, 0, 9, 6))
    ((4, 1, 6, 6), None)
    """
    x1, y1, x2, y2 = (
        max(one[0], other[0]),
        max(one[1], other[1]),
        min(one[2], other[2]),
        min(one[3], other[3]),
    )
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None
