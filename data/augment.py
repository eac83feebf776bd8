"""Plan a training sample: which tiles, which affine, which colours. Numbers and boxes only; data/draw.py draws them.

Every random number comes from a generator keyed by (seed, epoch, index), and by the repeat where an epoch draws an
image again, so a sample is the same whichever worker, process or restart makes it. Frames: *source* pixels of the file
(EXIF-rotated), *base* pixels of the image whose long side was resized to the training size, *canvas* pixels of the
finished sample. A matrix [3, 3] maps base to canvas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data import polygons
from data.base_images import base_sizes
from data.labels import Labels

Matrix = NDArray[np.float64]  # [3, 3]
Region = tuple[int, int, int, int]  # x1, y1, x2, y2

MIN_SIDE = 2.0  # px a box must keep
MAX_ASPECT = 100.0
MIN_AREA_BOX, MIN_AREA_POLYGON = 0.10, 0.01  # share of its area that must stay visible
MAX_COPY_OVERLAP = 0.30
MAX_TILT = 0.6  # how much nearer perspective may bring a corner of the canvas, of 1 at the horizon
IGNORE_CLASS = -1


@dataclass(frozen=True)
class Augmentation:
    """Strengths and probabilities, named as in the hyper-parameter files; all zero draws the plain image."""

    hsv_h: float = 0.0
    hsv_s: float = 0.0
    hsv_v: float = 0.0
    degrees: float = 0.0
    translate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    perspective: float = 0.0
    flipud: float = 0.0
    fliplr: float = 0.0
    mosaic: float = 0.0
    mixup: float = 0.0
    copy_paste: float = 0.0

    @property
    def axis_aligned(self) -> bool:
        """Whether every tile stays an upright rectangle, so that a crop and a resize draw it."""
        return self.degrees == self.shear == self.perspective == 0


@dataclass(frozen=True)
class Tile:
    """The part `region` (base pixels) of image `index`, mapped to the canvas by `matrix`."""

    index: int
    region: Region
    matrix: Matrix
    target: Region | None = None  # canvas rectangle that a crop and resize fills; None: draw by a warp


@dataclass(frozen=True)
class Paste:
    """The pixels of image `index` inside both `region` and `outline` (base pixels, [P, 2]), mapped by `matrix`."""

    index: int
    region: Region
    outline: NDArray[np.float64]
    matrix: Matrix


@dataclass(frozen=True)
class Layer:
    """One canvas: tiles, then what is pasted over them."""

    tiles: tuple[Tile, ...]
    pastes: tuple[Paste, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All there is to know of a sample. `targets` float32 [T, 5]: class (-1 ignore region), x1, y1, x2, y2 in px."""

    size: tuple[int, int]  # canvas height, width
    layers: tuple[Layer, ...]  # two when mixed
    targets: NDArray[np.float32]
    mix: float = 1.0  # weight of the first layer
    hsv: tuple[float, float, float] | None = None  # gains of hue, saturation, value
    flip_up: bool = False
    flip_left: bool = False


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
        targets = _flipped(targets, size, flip_up, flip_left)
        return Plan(size, tuple(layers), targets.astype(np.float32), mix, hsv, flip_up, flip_left)

    def plain(self, index: int, size: tuple[int, int]) -> Plan:
        """The letterboxed image on a canvas of `size`, nothing random: as validation sees it."""
        tile = self._letterboxed(index, size)
        return Plan(size, (Layer((tile,)),), self._targets([tile], [self.labels.rows(index)], size).astype(np.float32))

    # ------------------------------------------------------------------ geometry

    def _letterboxed(self, index: int, size: tuple[int, int]) -> Tile:
        """The image in the middle of the canvas; a canvas smaller than the base image shrinks it."""
        wide, high = self.base_size(index)
        ratio = min(size[0] / high, size[1] / wide, 1.0)
        fit_w, fit_h = max(1, round(wide * ratio)), max(1, round(high * ratio))
        left, top = (size[1] - fit_w) // 2, (size[0] - fit_h) // 2
        target = (left, top, left + fit_w, top + fit_h)
        return Tile(index, (0, 0, wide, high), _between((0, 0, wide, high), target), target)

    def _single(
        self, random: np.random.Generator, index: int, size: tuple[int, int]
    ) -> tuple[Layer, NDArray[np.float64]]:
        boxed = self._letterboxed(index, size)
        window = _random_matrix(random, self.augmentation, (size[1] / 2, size[0] / 2), size)
        return self._layer([self._settled(boxed, window, size)], [], size)

    def _mosaic(self, random: np.random.Generator, index: int) -> tuple[Layer, NDArray[np.float64]]:
        """Four images around a random point of a canvas twice the size, seen through a window of the training size."""
        side = self.image_size
        size = (side, side)
        x, y = (int(v) for v in random.uniform(0.5 * side, 1.5 * side, 2))
        partners = random.integers(len(self.labels), size=3)
        indices = random.permutation(np.array([index, *partners]))
        placed = [self._quadrant(int(i), q, x, y) for q, i in enumerate(indices)]
        copies = self._copies(random, placed) if self.augmentation.copy_paste > 0 else []
        window = _random_matrix(random, self.augmentation, (side, side), size)
        tiles = [self._settled(tile, window, size) for tile in placed]
        copies = [(row, Tile(t.index, t.region, window @ t.matrix)) for row, t in copies]
        return self._layer(tiles, copies, size)

    def _layer(
        self, tiles: Sequence[Tile | None], copies: Sequence[tuple[int, Tile]], size: tuple[int, int]
    ) -> tuple[Layer, NDArray[np.float64]]:
        """The tiles and copies that can be seen, and their targets [T, 5]."""
        shown = tuple(t for t in tiles if t is not None)
        targets = [self._targets(shown, [self.labels.rows(t.index) for t in shown], size)]
        pastes = []
        for row, tile in copies:
            target = self._targets([tile], [slice(row, row + 1)], size)
            if len(target):  # what is not worth a target is not drawn either
                targets.append(target)
                pastes.append(Paste(tile.index, tile.region, self._outline(row, tile.index), tile.matrix))
        return Layer(shown, tuple(pastes)), np.concatenate(targets)

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
            return moved if len(_window(moved, size)) else None
        x1, x2, to_x1, to_x2 = _whole_pixels(region[0], region[2], matrix[0, 0], matrix[0, 2], size[1])
        y1, y2, to_y1, to_y2 = _whole_pixels(region[1], region[3], matrix[1, 1], matrix[1, 2], size[0])
        if min(x2 - x1, y2 - y1, to_x2 - to_x1, to_y2 - to_y1) <= 0:
            return None
        source, target = (x1, y1, x2, y2), (to_x1, to_y1, to_x2, to_y2)
        return Tile(tile.index, source, _between(source, target), target)

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
            boxes = _clipped(boxes, tile.region) + np.tile(tile.matrix[:2, 2], 2)
            occupied.append(boxes[_areas(boxes) > 0])
        there = np.concatenate(occupied)
        copies = []
        for tile in placed:
            rows = self.labels.rows(tile.index)
            wanted = random.random(rows.stop - rows.start) < self.augmentation.copy_paste
            copy = Tile(tile.index, tile.region, mirror @ tile.matrix)
            window = _window(copy, (limit, limit))
            for row in (rows.start + np.flatnonzero(wanted & ~self.labels.crowd[rows])).tolist():
                outline = transformed(self._outline(row, tile.index), copy.matrix)
                box = polygons.box_seen(outline, window)
                if _areas(box[None])[0] > 0 and (_hidden_share(there, box) < MAX_COPY_OVERLAP).all():
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
        after, stretch = (_moved_upright if upright else _moved)(base, tiles, owner, size)
        outlined = self.labels.point_offsets[rows + 1] > self.labels.point_offsets[rows]
        if outlined.any():
            for k in np.flatnonzero(outlined & (_areas(after) > 0)).tolist():
                tile = tiles[owner[k]]
                outline = transformed(self._outline(int(rows[k]), tile.index), tile.matrix)
                after[k] = polygons.box_seen(outline, _window(tile, size))
        after = _clipped(after, (0, 0, size[1], size[0]))  # of what rounding left outside

        crowd = self.labels.crowd[rows]
        share = np.where(outlined, MIN_AREA_POLYGON, MIN_AREA_BOX)
        kept = np.where(crowd, _areas(after) > 0, _worth_keeping(_areas(base) * stretch, after, share))
        classes = np.where(crowd, IGNORE_CLASS, self.labels.classes[rows])
        return np.concatenate([classes[kept, None], after[kept]], 1)


Moved = tuple[NDArray[np.float64], NDArray[np.float64]]  # the upright boxes seen [N, 4]; how much larger areas got [N]


def _moved_upright(boxes: NDArray[np.float64], tiles: Sequence[Tile], owner: NDArray[np.int64], _: object) -> Moved:
    """What upright tiles show of their boxes [N, 4] on the canvas. owner: the tile of each box, [N]."""
    matrices = np.array([[*tile.matrix.diagonal()[:2], *tile.matrix[:2, 2]] for tile in tiles])[owner]
    scale, shift = matrices[:, [0, 1, 0, 1]], matrices[:, [2, 3, 2, 3]]
    targets = np.array([tile.target for tile in tiles], np.float64)[owner]
    low, high = targets[:, [0, 1, 0, 1]], targets[:, [2, 3, 2, 3]]
    return np.minimum(np.maximum(boxes * scale + shift, low), high), scale[:, 0] * scale[:, 1]


def _moved(boxes: NDArray[np.float64], tiles: Sequence[Tile], owner: NDArray[np.int64], size: tuple[int, int]) -> Moved:
    """As `_moved_upright`, of tiles with any matrix."""
    after, stretch = np.zeros_like(boxes), np.ones(len(boxes))
    for number, tile in enumerate(tiles):
        own, window = owner == number, _window(tile, size)
        if own.any() and len(window):
            after[own], stretch[own] = _seen_boxes(boxes[own], tile, window), _stretch(boxes[own], tile.matrix)
    return after, stretch


def _worth_keeping(
    whole: NDArray[np.float64], boxes: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Which boxes are still large and square enough to learn from, given their `whole` area on the canvas."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    aspect = np.maximum(width, height) / np.maximum(np.minimum(width, height), 1e-9)
    large = (width > MIN_SIDE) & (height > MIN_SIDE)
    return large & (aspect < MAX_ASPECT) & (width * height > share * whole)


def _areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return (boxes[:, 2] - boxes[:, 0]).clip(0) * (boxes[:, 3] - boxes[:, 1]).clip(0)


def _clipped(boxes: NDArray[np.float64], region: Region) -> NDArray[np.float64]:
    low, high = np.array(region[:2] * 2, np.float64), np.array(region[2:] * 2, np.float64)
    return np.minimum(np.maximum(boxes, low), high)


def _hidden_share(boxes: NDArray[np.float64], cover: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of each box `cover` hides, [N] in [0, 1]."""
    low, high = np.maximum(boxes[:, :2], cover[:2]), np.minimum(boxes[:, 2:], cover[2:])
    return (high - low).clip(0).prod(1) / np.maximum(_areas(boxes), 1e-9)


def transformed(points: NDArray[np.float64], matrix: Matrix) -> NDArray[np.float64]:
    """Points [P, 2] through a projective matrix."""
    moved = points @ matrix[:, :2].T + matrix[:, 2]
    return moved[:, :2] / moved[:, 2:]


def _window(tile: Tile, size: tuple[int, int]) -> NDArray[np.float64]:
    """The convex part of the canvas where the tile is, corners [K, 2]; none if it is out of sight."""
    if tile.target is not None:
        return polygons.rectangle(*tile.target)
    return polygons.clip_convex(transformed(polygons.rectangle(*tile.region), tile.matrix), size[1], size[0])


def _seen_boxes(boxes: NDArray[np.float64], tile: Tile, window: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upright boxes around what `window` shows of boxes moved with their tile, [N, 4]; zeros for nothing."""
    corners = transformed(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2), tile.matrix).reshape(-1, 4, 2)
    around = np.concatenate([corners.min(1), corners.max(1)], 1)
    inside = polygons.depths(corners.reshape(-1, 2), window).reshape(len(boxes), 4, -1)  # [N, 4, sides]
    hidden = inside.max(1).min(1) < 0  # all four corners beyond one side
    around[hidden] = 0
    for k in np.flatnonzero(~hidden & (inside < 0).any((1, 2))).tolist():
        around[k] = polygons.box_seen(corners[k], window)
    return around


def _stretch(boxes: NDArray[np.float64], matrix: Matrix) -> NDArray[np.float64]:
    """How much larger the matrix makes areas at the middle of each box, [N]: its Jacobian's determinant."""
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    depth = middle @ matrix[2, :2] + matrix[2, 2]
    return np.abs(np.linalg.det(matrix)) / depth**3


def _flipped(
    targets: NDArray[np.float64], size: tuple[int, int], flip_up: bool, flip_left: bool
) -> NDArray[np.float64]:
    flipped = targets.copy()
    if flip_left:
        flipped[:, [1, 3]] = size[1] - targets[:, [3, 1]]
    if flip_up:
        flipped[:, [2, 4]] = size[0] - targets[:, [4, 2]]
    return flipped


def translation(x: float, y: float) -> Matrix:
    return np.array([[1.0, 0, x], [0, 1, y], [0, 0, 1]])


def _between(source: Region, target: Region) -> Matrix:
    """The scaling and shift that takes one rectangle to another."""
    scale_x = (target[2] - target[0]) / (source[2] - source[0])
    scale_y = (target[3] - target[1]) / (source[3] - source[1])
    return np.array(
        [[scale_x, 0, target[0] - source[0] * scale_x], [0, scale_y, target[1] - source[1] * scale_y], [0, 0, 1]]
    )


def _whole_pixels(low: int, high: int, scale: float, shift: float, limit: int) -> tuple[int, int, int, int]:
    """(source from, to, canvas from, to) along one axis: the visible part of a tile, every edge a whole pixel.

    An edge inside the canvas is rounded there; one outside is cut at the canvas's border and rounded in the source.

    >>> _whole_pixels(0, 100, 0.5, -10.0, 320), _whole_pixels(0, 100, 2.0, 10.2, 100)
    ((20, 100, 0, 40), (0, 45, 10, 100))
    """

    def edge(source: int) -> tuple[int, int]:
        canvas = source * scale + shift
        if canvas < 0 or canvas > limit:
            border = 0 if canvas < 0 else limit
            return min(max(round((border - shift) / scale), low), high), border
        return source, round(canvas)

    (source_low, canvas_low), (source_high, canvas_high) = edge(low), edge(high)
    return source_low, source_high, canvas_low, canvas_high


def _random_matrix(
    random: np.random.Generator, a: Augmentation, center: tuple[float, float], size: tuple[int, int]
) -> Matrix:
    """Centre, perspective, rotation and scale, shear, and a shift to somewhere near the canvas's middle, in that order.

    The perspective is limited so that no pixel comes near the horizon: what lies beyond it would be drawn upside down.
    A mosaic's images end at most 1.5 times as far from the centre as `center` is from the origin.
    """
    lens = np.eye(3)
    lens[2, :2] = random.uniform(-a.perspective, a.perspective, 2)
    lens[2, :2] *= MAX_TILT / max(MAX_TILT, float(np.abs(lens[2, :2]) @ center))
    angle = np.deg2rad(random.uniform(-a.degrees, a.degrees))
    zoom = random.uniform(1 - a.scale, 1 + a.scale)
    turn = np.array([[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    turn[:2] *= zoom
    lean = np.eye(3)
    lean[0, 1], lean[1, 0] = np.tan(np.deg2rad(random.uniform(-a.shear, a.shear, 2)))
    place = translation(*(random.uniform(0.5 - a.translate, 0.5 + a.translate, 2) * [size[1], size[0]]))
    matrix: Matrix = place @ lean @ turn @ lens @ translation(-center[0], -center[1])
    return matrix
