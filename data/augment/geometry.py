"""Map boxes and rectangles with matrices: the region of a tile on the canvas, and the visible parts
of its boxes.

Coordinate frames are those of data/augment/plan.py. A matrix [3, 3] maps base pixels to canvas
pixels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.augment import polygons
from data.augment.records import Augmentation, Matrix, Tile
from utils.images.letterbox import Region

MIN_SIDE = 2.0  # px that the sides of a kept box must exceed
MAX_ASPECT = 100.0
MAX_TILT = 0.6  # limit of the perspective at a corner of the canvas; the horizon is at 1
# boxes of the visible parts [N, 4]; factors of their areas [N]
Moved = tuple[NDArray[np.float64], NDArray[np.float64]]


def moved_boxes_upright(
    boxes: NDArray[np.float64], tiles: Sequence[Tile], owner: NDArray[np.int64], _: object
) -> Moved:
    """Move boxes [N, 4] with their upright tiles, and clip them to these. owner: the tile of each
    box, [N].
    """
    matrices = np.array([[*tile.matrix.diagonal()[:2], *tile.matrix[:2, 2]] for tile in tiles])[
        owner
    ]
    scale, shift = matrices[:, [0, 1, 0, 1]], matrices[:, [2, 3, 2, 3]]
    targets = np.array([tile.target for tile in tiles], np.float64)[owner]
    low, high = targets[:, [0, 1, 0, 1]], targets[:, [2, 3, 2, 3]]
    return np.minimum(np.maximum(boxes * scale + shift, low), high), scale[:, 0] * scale[:, 1]


def moved_boxes(
    boxes: NDArray[np.float64],
    tiles: Sequence[Tile],
    owner: NDArray[np.int64],
    size: tuple[int, int],
) -> Moved:
    """As `moved_boxes_upright`, for tiles with any matrix on a canvas of `size` (height, width)."""
    after, stretch = np.zeros_like(boxes), np.ones(len(boxes))
    for number, tile in enumerate(tiles):
        mask, window = owner == number, visible_window(tile, size)
        if mask.any() and len(window):
            after[mask], stretch[mask] = (
                visible_boxes(boxes[mask], tile, window),
                area_scale(boxes[mask], tile.matrix),
            )
    return after, stretch


def keep_mask(
    whole: NDArray[np.float64], boxes: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Which boxes to keep as targets, [N]: large enough, not too elongated, and visible enough.

    whole: the areas on the canvas before clipping, [N]. share: the fraction of it that must be
    visible, [N].
    """
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    aspect = np.maximum(width, height) / np.maximum(np.minimum(width, height), 1e-9)
    large = (width > MIN_SIDE) & (height > MIN_SIDE)
    return large & (aspect < MAX_ASPECT) & (width * height > share * whole)


def box_areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return (boxes[:, 2] - boxes[:, 0]).clip(0) * (boxes[:, 3] - boxes[:, 1]).clip(0)


def clipped_boxes(boxes: NDArray[np.float64], region: Region) -> NDArray[np.float64]:
    low, high = np.array(region[:2] * 2, np.float64), np.array(region[2:] * 2, np.float64)
    return np.minimum(np.maximum(boxes, low), high)


def hidden_share(boxes: NDArray[np.float64], cover: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of each box that the box `cover` hides, [N] in [0, 1]."""
    low, high = np.maximum(boxes[:, :2], cover[:2]), np.minimum(boxes[:, 2:], cover[2:])
    return (high - low).clip(0).prod(1) / np.maximum(box_areas(boxes), 1e-9)


def transformed(points: NDArray[np.float64], matrix: Matrix) -> NDArray[np.float64]:
    """Apply a projective matrix to points [P, 2]."""
    moved = points @ matrix[:, :2].T + matrix[:, 2]
    return moved[:, :2] / moved[:, 2:]


def visible_window(tile: Tile, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return the corners [K, 2] of the convex part of the canvas that the tile covers; K is 0 if it
    covers none.
    """
    if tile.target is not None:
        return polygons.rectangle(*tile.target)
    return polygons.clip_convex(
        transformed(polygons.rectangle(*tile.region), tile.matrix), size[1], size[0]
    )


def visible_boxes(
    boxes: NDArray[np.float64], tile: Tile, window: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Move boxes with their tile; return upright boxes around their parts inside `window`, [N, 4];
    zeros for none.
    """
    corners = transformed(boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2), tile.matrix).reshape(
        -1, 4, 2
    )
    around = np.concatenate([corners.min(1), corners.max(1)], 1)
    inside = polygons.signed_distances(corners.reshape(-1, 2), window).reshape(
        len(boxes), 4, -1
    )  # [N, 4, sides]
    hidden = inside.max(1).min(1) < 0  # all four corners are outside one side
    around[hidden] = 0
    for k in np.flatnonzero(~hidden & (inside < 0).any((1, 2))).tolist():
        around[k] = polygons.visible_box(corners[k], window)
    return around


def area_scale(boxes: NDArray[np.float64], matrix: Matrix) -> NDArray[np.float64]:
    """Return the factor by which the matrix scales areas at the centre of each box, [N]: the
    Jacobian's determinant.
    """
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    depth = middle @ matrix[2, :2] + matrix[2, 2]
    return np.abs(np.linalg.det(matrix)) / depth**3


def flipped_boxes(
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


def rectangle_to_rectangle(source: Region, target: Region) -> Matrix:
    """Return the matrix that maps one rectangle to another by scaling and shifting."""
    scale_x = (target[2] - target[0]) / (source[2] - source[0])
    scale_y = (target[3] - target[1]) / (source[3] - source[1])
    return np.array(
        [
            [scale_x, 0, target[0] - source[0] * scale_x],
            [0, scale_y, target[1] - source[1] * scale_y],
            [0, 0, 1],
        ]
    )


def whole_pixels(
    low: int, high: int, scale: float, shift: float, limit: int
) -> tuple[int, int, int, int]:
    """Return (source start, source end, canvas start, canvas end) of the visible part of a tile
    along one axis.

    All are whole pixels: an edge inside the canvas is rounded on the canvas, an edge outside is
    clipped to the canvas's border and rounded in the source.

    >>> whole_pixels(0, 100, 0.5, -10.0, 320), whole_pixels(0, 100, 2.0, 10.2, 100)
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


def random_matrix(
    random: np.random.Generator, a: Augmentation, center: tuple[float, float], size: tuple[int, int]
) -> Matrix:
    """Return a random matrix: centre, perspective, rotation and scale, shear, then a shift to near
    the canvas's centre.

    The perspective is limited so that no pixel comes near the horizon: pixels beyond it would be
    drawn upside down. The images of a mosaic reach at most 1.5 times as far from the centre as
    `center` is from the origin.
    """
    tilt = np.eye(3)
    tilt[2, :2] = random.uniform(-a.perspective, a.perspective, 2)
    tilt[2, :2] *= MAX_TILT / max(MAX_TILT, float(np.abs(tilt[2, :2]) @ center))
    angle = np.deg2rad(random.uniform(-a.degrees, a.degrees))
    zoom = random.uniform(1 - a.scale, 1 + a.scale)
    rotation = np.array(
        [[np.cos(angle), np.sin(angle), 0], [-np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    )
    rotation[:2] *= zoom
    shear = np.eye(3)
    shear[0, 1], shear[1, 0] = np.tan(np.deg2rad(random.uniform(-a.shear, a.shear, 2)))
    shift = translation(
        *(random.uniform(0.5 - a.translate, 0.5 + a.translate, 2) * [size[1], size[0]])
    )
    matrix: Matrix = shift @ shear @ rotation @ tilt @ translation(-center[0], -center[1])
    return matrix
