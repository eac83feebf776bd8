"""Plan a training sample: its tiles, matrices and colours. Numbers and boxes only;
data/augment/draw.py draws it.

Every random number comes from a generator keyed by (seed, epoch, index), and by the repeat if an
epoch draws an image again. So a sample is the same in every worker, process and restarted run.
Coordinate frames: *source* pixels of the file (EXIF-rotated), *base* pixels of the image after its
long side was resized to the training size, *canvas* pixels of the finished sample. A matrix [3, 3]
maps base pixels to canvas pixels.
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
    keep_mask,
    moved_boxes,
    moved_boxes_upright,
    random_matrix,
    rectangle_to_rectangle,
    transformed,
    translation,
    visible_window,
    whole_pixels,
)
from data.augment.records import Augmentation, CanvasLayer, Matrix, Paste, Plan, Tile
from data.labels import Labels
from utils.images.letterbox import Placement, Region, base_sizes, centered, place

MIN_AREA_BOX, MIN_AREA_POLYGON = 0.10, 0.01  # fraction of its area that must stay visible
MAX_COPY_OVERLAP = 0.30
IGNORE_CLASS = -1


def generator_for(seed: int, epoch: int, index: int, repeat: int = 0) -> np.random.Generator:
    """Return the random generator of one sample. It is counter-based: its key alone determines
    every number.

    repeat: how often the epoch has drawn the sample before. Each repeat starts the counter 2^64
    blocks later, so all repeats differ, and the first draw has the same numbers as in an epoch
    without repeats.

    >>> number = generator_for(0, 1, 2).random()
    >>> number == generator_for(0, 1, 2).random() != generator_for(0, 2, 1).random()
    True
    """
    key = np.array([seed % 2**64, (epoch << 40) | index], np.uint64)
    return np.random.Generator(np.random.Philox(counter=repeat << 64, key=key))


class Planner:
    """Plans samples of one data set. Holds flat arrays only, and has no state between calls."""

    tile = 0  # side of the tiles that samples are, in source pixels; 0: samples are whole images
    # fraction of its area; a box of which less is visible becomes an ignore region
    min_visible = 0.0

    def __init__(
        self, labels: Labels, image_size: int, augmentation: Augmentation, seed: int
    ) -> None:
        self.labels, self.image_size, self.augmentation, self.seed = (
            labels,
            image_size,
            augmentation,
            seed,
        )
        self._base_sizes = base_sizes(labels.sizes, image_size, self.tile)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def image_of(self, index: int) -> int:
        """Return the image that sample `index` shows."""
        return index

    def plan(
        self, epoch: int, index: int, size: tuple[int, int], *, mosaic: bool, repeat: int = 0
    ) -> Plan:
        """Return the plan of sample `index` in `epoch` on a canvas of `size` (height, width).

        mosaic: whether the sample may contain tiles of other images (mosaic, mixup, copy-paste);
        square canvases only. repeat: how often the epoch has drawn the image before.
        """
        a, random = self.augmentation, generator_for(self.seed, epoch, index, repeat)
        mix = 1.0
        if mosaic and random.random() < a.mosaic:
            layer, targets = self._mosaic(random, index)
            layers = [layer]
            if random.random() < a.mixup:
                layer, more = self._mosaic(random, int(random.integers(len(self))))
                layers.append(layer)
                targets, mix = np.concatenate([targets, more]), float(random.beta(32.0, 32.0))
        else:
            layer, targets = self._single(random, index, size)
            layers = [layer]
        hue, saturation, value = (
            1 + random.uniform(-1, 1, 3) * [a.hsv_h, a.hsv_s, a.hsv_v]
        ).tolist()
        hsv = (hue, saturation, value) if a.hsv_h or a.hsv_s or a.hsv_v else None
        flip_up, flip_left = bool(random.random() < a.flipud), bool(random.random() < a.fliplr)
        targets = flipped_boxes(targets, size, flip_up, flip_left)
        return Plan(size, tuple(layers), targets.astype(np.float32), mix, hsv, flip_up, flip_left)

    def plain(self, index: int, size: tuple[int, int]) -> Plan:
        """Return the plan of the letterboxed image on a canvas of `size`, without augmentation, as
        in validation.
        """
        tile = self._letterboxed(index, (0, 0, *self.base_size(index)), size)
        return Plan(
            size,
            (CanvasLayer((tile,)),),
            self._targets([tile], [self.labels.rows(index)], size).astype(np.float32),
        )

    def placement(self, index: int, size: tuple[int, int]) -> Placement:
        """Return the scale and shift from source image to canvas in the plan that `plain`
        returns.
        """
        width, height = self.labels.sizes[index].tolist()
        return place((width, height), self.base_size(index), size)

    # ------------------------------------------------------------------ geometry

    def _crop(self, random: np.random.Generator, index: int) -> tuple[int, Region]:
        """Return the image of a sample and its region in base pixels: the whole image."""
        return index, (0, 0, *self.base_size(index))

    def _letterboxed(self, index: int, region: Region, size: tuple[int, int]) -> Tile:
        """Return a tile of the image in the centre of the canvas; it is shrunk if the canvas is
        smaller.
        """
        target = centered((region[2] - region[0], region[3] - region[1]), size)
        return Tile(index, region, rectangle_to_rectangle(region, target), target)

    def _single(
        self, random: np.random.Generator, index: int, size: tuple[int, int]
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        boxed = self._letterboxed(*self._crop(random, index), size)
        window = random_matrix(random, self.augmentation, (size[1] / 2, size[0] / 2), size)
        return self._layer([self._moved_tile(boxed, window, size)], [], size)

    def _mosaic(
        self, random: np.random.Generator, index: int
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """Return a layer of four images around a random point of a double canvas, moved at random,
        and its targets.
        """
        side = self.image_size
        size = (side, side)
        x, y = (int(v) for v in random.uniform(0.5 * side, 1.5 * side, 2))
        partners = random.integers(len(self), size=3)
        indices = random.permutation(np.array([index, *partners]))
        placed = [
            self._quadrant(*self._crop(random, int(i)), q, x, y) for q, i in enumerate(indices)
        ]
        copies = self._copies(random, placed) if self.augmentation.copy_paste > 0 else []
        window = random_matrix(random, self.augmentation, (side, side), size)
        tiles = [self._moved_tile(tile, window, size) for tile in placed]
        copies = [(row, Tile(t.index, t.region, window @ t.matrix)) for row, t in copies]
        return self._layer(tiles, copies, size)

    def _layer(
        self,
        tiles: Sequence[Tile | None],
        copies: Sequence[tuple[int, Tile]],
        size: tuple[int, int],
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """Return a layer of the visible tiles and copies, and their targets [T, 5]."""
        visible = tuple(t for t in tiles if t is not None)
        targets = [self._targets(visible, [self.labels.rows(t.index) for t in visible], size)]
        pastes = []
        for row, tile in copies:
            target = self._targets([tile], [slice(row, row + 1)], size)
            if len(target):  # a copy without a target is not drawn either
                targets.append(target)
                pastes.append(
                    Paste(tile.index, tile.region, self._outline(row, tile.index), tile.matrix)
                )
        return CanvasLayer(visible, tuple(pastes)), np.concatenate(targets)

    def _quadrant(self, index: int, region: Region, quadrant: int, x: int, y: int) -> Tile:
        """Return a tile of the region with a corner at (x, y) of a canvas of twice the training
        size, clipped to it.
        """
        limit = 2 * self.image_size
        x1, y1, x2, y2 = region
        wide, high = x2 - x1, y2 - y1
        left = x if quadrant % 2 else x - wide
        top = y if quadrant >= 2 else y - high
        visible = (max(0, -left), max(0, -top), min(wide, limit - left), min(high, limit - top))
        shifted = (x1 + visible[0], y1 + visible[1], x1 + visible[2], y1 + visible[3])
        return Tile(index, shifted, translation(left - x1, top - y1))

    def _moved_tile(self, tile: Tile, window: Matrix, size: tuple[int, int]) -> Tile | None:
        """Move the tile by the matrix `window`; return it as it will be drawn, None if it is not
        visible.

        Edges of upright tiles are rounded to whole pixels, and their matrix is adapted to the
        rounded edges.
        """
        region, matrix = tile.region, window @ tile.matrix
        if not self.augmentation.axis_aligned:
            moved = Tile(tile.index, region, matrix)
            return moved if len(visible_window(moved, size)) else None
        x1, x2, to_x1, to_x2 = whole_pixels(
            region[0], region[2], matrix[0, 0], matrix[0, 2], size[1]
        )
        y1, y2, to_y1, to_y2 = whole_pixels(
            region[1], region[3], matrix[1, 1], matrix[1, 2], size[0]
        )
        if min(x2 - x1, y2 - y1, to_x2 - to_x1, to_y2 - to_y1) <= 0:
            return None
        source, target = (x1, y1, x2, y2), (to_x1, to_y1, to_x2, to_y2)
        return Tile(tile.index, source, rectangle_to_rectangle(source, target), target)

    def _copies(
        self, random: np.random.Generator, placed: Sequence[Tile]
    ) -> list[tuple[int, Tile]]:
        """Return (row, mirrored tile) of polygon objects to copy to the other side of the double
        canvas.

        An object is copied if it hides less than 30 % of each box there. Source: Ghiasi et al.,
        Simple Copy-Paste (arXiv 2012.07177); the mirrored variant from the facts of YOLOv5.
        """
        limit = 2 * self.image_size
        mirror = np.array([[-1.0, 0, limit], [0, 1, 0], [0, 0, 1]])
        occupied = [np.zeros((0, 4))]
        for tile in placed:
            boxes = self._base_boxes(self.labels.rows(tile.index), tile.index)
            boxes = clipped_boxes(boxes, tile.region) + np.tile(tile.matrix[:2, 2], 2)
            occupied.append(boxes[box_areas(boxes) > 0])
        existing = np.concatenate(occupied)
        copies = []
        for tile in placed:
            rows = self.labels.rows(tile.index)
            wanted = random.random(rows.stop - rows.start) < self.augmentation.copy_paste
            copy = Tile(tile.index, tile.region, mirror @ tile.matrix)
            window = visible_window(copy, (limit, limit))
            for row in (rows.start + np.flatnonzero(wanted & ~self.labels.crowd[rows])).tolist():
                outline = transformed(self._outline(row, tile.index), copy.matrix)
                box = polygons.visible_box(outline, window)
                if (
                    box_areas(box[None])[0] > 0
                    and (hidden_share(existing, box) < MAX_COPY_OVERLAP).all()
                ):
                    copies.append((row, copy))
                    existing = np.concatenate([existing, box[None]])
        return copies

    # ------------------------------------------------------------------ labels

    def base_size(self, index: int) -> tuple[int, int]:
        """Return (width, height) of the base image."""
        width, height = self._base_sizes[index].tolist()
        return width, height

    def base_scale(self, index: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scale from source to base pixels in x and y, [2], or [N, 2] for N images."""
        return self._base_sizes[index] / self.labels.sizes[index]

    def _base_boxes(
        self, rows: slice | NDArray[np.int64], index: int | NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return [T, 4] x1, y1, x2, y2 in base pixels; index: the image of all rows, or that of
        each row, [T].
        """
        xywh = self.labels.boxes_xywh[rows]
        scale = self.base_scale(index)
        return np.concatenate([xywh[:, :2] * scale, (xywh[:, :2] + xywh[:, 2:]) * scale], 1)

    def _outline(self, row: int, index: int) -> NDArray[np.float64]:
        """Return the polygon of a row, [P, 2] in base pixels; empty for a plain box."""
        return self.labels.row_points(row) * self.base_scale(index)

    def _targets(
        self, tiles: Sequence[Tile], slices: Sequence[slice], size: tuple[int, int]
    ) -> NDArray[np.float64]:
        """Return the targets of the rows in `slices`, one slice per tile, clipped to tiles and
        canvas, [T, 5].

        For rows with a polygon, the box is computed from the polygon's visible part.
        """
        owner = np.repeat(
            np.arange(len(tiles)), [rows.stop - rows.start for rows in slices]
        )  # [N] tile of each row
        if not len(owner):
            return np.zeros((0, 5))
        rows = np.concatenate([np.arange(rows.start, rows.stop) for rows in slices])
        base = self._base_boxes(rows, np.array([tile.index for tile in tiles])[owner])
        upright = all(tile.target is not None for tile in tiles)
        after, stretch = (moved_boxes_upright if upright else moved_boxes)(base, tiles, owner, size)
        outlined = self.labels.point_offsets[rows + 1] > self.labels.point_offsets[rows]
        if outlined.any():
            for k in np.flatnonzero(outlined & (box_areas(after) > 0)).tolist():
                tile = tiles[owner[k]]
                outline = transformed(self._outline(int(rows[k]), tile.index), tile.matrix)
                after[k] = polygons.visible_box(outline, visible_window(tile, size))
        # rounding may have left them outside
        after = clipped_boxes(after, (0, 0, size[1], size[0]))

        crowd = self.labels.crowd[rows]
        fraction = np.where(outlined, MIN_AREA_POLYGON, MIN_AREA_BOX)
        whole, visible = box_areas(base) * stretch, box_areas(after)
        kept = np.where(crowd, visible > 0, keep_mask(whole, after, fraction))
        classes = np.where(
            crowd | (visible < self.min_visible * whole), IGNORE_CLASS, self.labels.classes[rows]
        )
        return np.concatenate([classes[kept, None], after[kept]], 1)
