"""Plan a training sample: which tiles, which affine, which colours. Numbers and boxes only; data/augment/draw.py draws.

Every random number comes from a generator keyed by (seed, epoch, index), and by the repeat where an epoch draws an
image again, so a sample is the same whichever worker, process or restart makes it. Frames: *source* pixels of the file
(EXIF-rotated), *base* pixels of the image whose long side was resized to the training size, *canvas* pixels of the
finished sample. A matrix [3, 3] maps base to canvas.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.augment import polygons
from data.augment.geometry import (
    box_areas,
    clipped_boxes,
    flipped_boxes,
    hidden_share,
    moved_boxes,
    moved_boxes_upright,
    random_matrix,
    rectangle_to_rectangle,
    transformed,
    translation,
    visible_window,
    whole_pixels,
    worth_keeping,
)
from data.augment.records import Augmentation, CanvasLayer, Matrix, Paste, Plan, Tile
from data.labels import Labels
from utils.letterbox import Placement, base_sizes, centered, place

MIN_AREA_BOX, MIN_AREA_POLYGON = 0.10, 0.01  # share of its area that must stay visible
MAX_COPY_OVERLAP = 0.30
IGNORE_CLASS = -1


def generator_for(seed: int, epoch: int, index: int, repeat: int = 0) -> np.random.Generator:
    """The generator of one sample: counter-based, so that its key alone fixes every number.

    repeat: how often the epoch has drawn the sample before. It starts the counter 2^64 blocks further on, so that any
    number of repeats differ and the first draw has the numbers of an epoch without any.

    >>> generator_for(0, 1, 2).random() == generator_for(0, 1, 2).random() != generator_for(0, 2, 1).random()
    True
    """
    key = np.array([seed % 2**64, (epoch << 40) | index], np.uint64)
    return np.random.Generator(np.random.Philox(counter=repeat << 64, key=key))


class Planner:
    """Plans samples of one data set. Holds flat arrays only; a call changes nothing."""

    def __init__(self, labels: Labels, image_size: int, augmentation: Augmentation, seed: int) -> None:
        self.labels, self.image_size, self.augmentation, self.seed = labels, image_size, augmentation, seed
        self._base_sizes = base_sizes(labels.sizes, image_size)

    def plan(self, epoch: int, index: int, size: tuple[int, int], *, mosaic: bool, repeat: int = 0) -> Plan:
        """The plan of sample `index` in `epoch` on a canvas of `size` (height, width).

        mosaic: whether tiles of other images may join (mosaic, mixup, copy-paste); square canvases only. repeat: how
        often the epoch has drawn the image before.
        """
        a, random = self.augmentation, generator_for(self.seed, epoch, index, repeat)
        mix = 1.0
        if mosaic and random.random() < a.mosaic:
            layer, targets = self._mosaic(random, index)
            layers = [layer]
            if random.random() < a.mixup:
                layer, more = self._mosaic(random, int(random.integers(len(self.labels))))
                layers.append(layer)
                targets, mix = np.concatenate([targets, more]), float(random.beta(32.0, 32.0))
        else:
            layer, targets = self._single(random, index, size)
            layers = [layer]
        hue, saturation, value = (1 + random.uniform(-1, 1, 3) * [a.hsv_h, a.hsv_s, a.hsv_v]).tolist()
        hsv = (hue, saturation, value) if a.hsv_h or a.hsv_s or a.hsv_v else None
        flip_up, flip_left = bool(random.random() < a.flipud), bool(random.random() < a.fliplr)
        targets = flipped_boxes(targets, size, flip_up, flip_left)
        return Plan(size, tuple(layers), targets.astype(np.float32), mix, hsv, flip_up, flip_left)

    def plain(self, index: int, size: tuple[int, int]) -> Plan:
        """The letterboxed image on a canvas of `size`, nothing random: as validation sees it."""
        tile = self._letterboxed(index, size)
        return Plan(
            size, (CanvasLayer((tile,)),), self._targets([tile], [self.labels.rows(index)], size).astype(np.float32)
        )

    def placement(self, index: int, size: tuple[int, int]) -> Placement:
        """Where the source image lies on the canvas of `plain`."""
        width, height = self.labels.sizes[index].tolist()
        return place((width, height), self.base_size(index), size)

    # ------------------------------------------------------------------ geometry

    def _letterboxed(self, index: int, size: tuple[int, int]) -> Tile:
        """The image in the middle of the canvas; a canvas smaller than the base image shrinks it."""
        region, target = (0, 0, *self.base_size(index)), centered(self.base_size(index), size)
        return Tile(index, region, rectangle_to_rectangle(region, target), target)

    def _single(
        self, random: np.random.Generator, index: int, size: tuple[int, int]
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        boxed = self._letterboxed(index, size)
        window = random_matrix(random, self.augmentation, (size[1] / 2, size[0] / 2), size)
        return self._layer([self._settled(boxed, window, size)], [], size)

    def _mosaic(self, random: np.random.Generator, index: int) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """Four images around a random point of a canvas twice the size, seen through a window of the training size."""
        side = self.image_size
        size = (side, side)
        x, y = (int(v) for v in random.uniform(0.5 * side, 1.5 * side, 2))
        partners = random.integers(len(self.labels), size=3)
        indices = random.permutation(np.array([index, *partners]))
        placed = [self._quadrant(int(i), q, x, y) for q, i in enumerate(indices)]
        copies = self._copies(random, placed) if self.augmentation.copy_paste > 0 else []
        window = random_matrix(random, self.augmentation, (side, side), size)
        tiles = [self._settled(tile, window, size) for tile in placed]
        copies = [(row, Tile(t.index, t.region, window @ t.matrix)) for row, t in copies]
        return self._layer(tiles, copies, size)

    def _layer(
        self, tiles: Sequence[Tile | None], copies: Sequence[tuple[int, Tile]], size: tuple[int, int]
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """The tiles and copies that can be seen, and their targets [T, 5]."""
        shown = tuple(t for t in tiles if t is not None)
        targets = [self._targets(shown, [self.labels.rows(t.index) for t in shown], size)]
        pastes = []
        for row, tile in copies:
            target = self._targets([tile], [slice(row, row + 1)], size)
            if len(target):  # what is not worth a target is not drawn either
                targets.append(target)
                pastes.append(Paste(tile.index, tile.region, self._outline(row, tile.index), tile.matrix))
        return CanvasLayer(shown, tuple(pastes)), np.concatenate(targets)

    def _quadrant(self, index: int, quadrant: int, x: int, y: int) -> Tile:
        """The image with a corner at (x, y) of the double canvas, cut at its borders."""
        limit = 2 * self.image_size
        wide, high = self.base_size(index)
        left = x if quadrant % 2 else x - wide
        top = y if quadrant >= 2 else y - high
        region = (max(0, -left), max(0, -top), min(wide, limit - left), min(high, limit - top))
        return Tile(index, region, translation(left, top))

    def _settled(self, tile: Tile, window: Matrix, size: tuple[int, int]) -> Tile | None:
        """The tile moved by `window` as it will be drawn, None if it is out of sight.

        Upright tiles get whole-pixel edges, and the matrix that really holds then.
        """
        region, matrix = tile.region, window @ tile.matrix
        if not self.augmentation.axis_aligned:
            moved = Tile(tile.index, region, matrix)
            return moved if len(visible_window(moved, size)) else None
        x1, x2, to_x1, to_x2 = whole_pixels(region[0], region[2], matrix[0, 0], matrix[0, 2], size[1])
        y1, y2, to_y1, to_y2 = whole_pixels(region[1], region[3], matrix[1, 1], matrix[1, 2], size[0])
        if min(x2 - x1, y2 - y1, to_x2 - to_x1, to_y2 - to_y1) <= 0:
            return None
        source, target = (x1, y1, x2, y2), (to_x1, to_y1, to_x2, to_y2)
        return Tile(tile.index, source, rectangle_to_rectangle(source, target), target)

    def _copies(self, random: np.random.Generator, placed: Sequence[Tile]) -> list[tuple[int, Tile]]:
        """(row, mirrored tile) of outlined objects to repeat on the other side of the double canvas.

        An object is repeated where less than 30 % of each box there would be hidden.
        Source: Ghiasi et al., Simple Copy-Paste (arXiv 2012.07177); the mirrored variant from the facts of YOLOv5.
        """
        limit = 2 * self.image_size
        mirror = np.array([[-1.0, 0, limit], [0, 1, 0], [0, 0, 1]])
        occupied = [np.zeros((0, 4))]
        for tile in placed:
            boxes = self._base_boxes(self.labels.rows(tile.index), tile.index)
            boxes = clipped_boxes(boxes, tile.region) + np.tile(tile.matrix[:2, 2], 2)
            occupied.append(boxes[box_areas(boxes) > 0])
        there = np.concatenate(occupied)
        copies = []
        for tile in placed:
            rows = self.labels.rows(tile.index)
            wanted = random.random(rows.stop - rows.start) < self.augmentation.copy_paste
            copy = Tile(tile.index, tile.region, mirror @ tile.matrix)
            window = visible_window(copy, (limit, limit))
            for row in (rows.start + np.flatnonzero(wanted & ~self.labels.crowd[rows])).tolist():
                outline = transformed(self._outline(row, tile.index), copy.matrix)
                box = polygons.box_seen(outline, window)
                if box_areas(box[None])[0] > 0 and (hidden_share(there, box) < MAX_COPY_OVERLAP).all():
                    copies.append((row, copy))
                    there = np.concatenate([there, box[None]])
        return copies

    # ------------------------------------------------------------------ labels

    def base_size(self, index: int) -> tuple[int, int]:
        """(width, height) of the base image."""
        width, height = self._base_sizes[index].tolist()
        return width, height

    def base_scale(self, index: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """Base over source pixels across and down, [2], or [N, 2] for N images."""
        return self._base_sizes[index] / self.labels.sizes[index]

    def _base_boxes(self, rows: slice | NDArray[np.int64], index: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """[T, 4] x1, y1, x2, y2 in base pixels; index: the image of all rows, or [T] of each."""
        xywh = self.labels.boxes_xywh[rows]
        scale = self.base_scale(index)
        return np.concatenate([xywh[:, :2] * scale, (xywh[:, :2] + xywh[:, 2:]) * scale], 1)

    def _outline(self, row: int, index: int) -> NDArray[np.float64]:
        """[P, 2] in base pixels, empty for a box."""
        return self.labels.row_points(row) * self.base_scale(index)

    def _targets(self, tiles: Sequence[Tile], of: Sequence[slice], size: tuple[int, int]) -> NDArray[np.float64]:
        """[T, 5] what each tile shows of its rows on the canvas; boxes of polygons are taken anew from what is left."""
        owner = np.repeat(np.arange(len(tiles)), [rows.stop - rows.start for rows in of])  # [N] tile of each row
        if not len(owner):
            return np.zeros((0, 5))
        rows = np.concatenate([np.arange(rows.start, rows.stop) for rows in of])
        base = self._base_boxes(rows, np.array([tile.index for tile in tiles])[owner])
        upright = all(tile.target is not None for tile in tiles)
        after, stretch = (moved_boxes_upright if upright else moved_boxes)(base, tiles, owner, size)
        outlined = self.labels.point_offsets[rows + 1] > self.labels.point_offsets[rows]
        if outlined.any():
            for k in np.flatnonzero(outlined & (box_areas(after) > 0)).tolist():
                tile = tiles[owner[k]]
                outline = transformed(self._outline(int(rows[k]), tile.index), tile.matrix)
                after[k] = polygons.box_seen(outline, visible_window(tile, size))
        after = clipped_boxes(after, (0, 0, size[1], size[0]))  # of what rounding left outside

        crowd = self.labels.crowd[rows]
        share = np.where(outlined, MIN_AREA_POLYGON, MIN_AREA_BOX)
        kept = np.where(crowd, box_areas(after) > 0, worth_keeping(box_areas(base) * stretch, after, share))
        classes = np.where(crowd, IGNORE_CLASS, self.labels.classes[rows])
        return np.concatenate([classes[kept, None], after[kept]], 1)
