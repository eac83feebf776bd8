"""Map boxes and rectangles with matrices: patches on the canvas, and the visible parts of boxes.

Boxes are x1, y1, x2, y2. Coordinate frames are those of data/augment/plan.py. A matrix [3, 3] maps
base pixels to canvas pixels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.augment import polygons
from data.augment.records import Augmentation, Matrix, Patch
from utils.images.letterbox import Region

MIN_SIDE = 2.0  # px that the sides of a kept box must exceed
MAX_ASPECT = 100.0
MAX_TILT = 0.6  # limit of the perspective at a corner of the canvas; the horizon is at 1
# boxes of the visible parts [N, 4]; factors of their areas [N]
Moved = tuple[NDArray[np.float64], NDArray[np.float64]]


def moved_boxes_upright(
    boxes: NDArray[np.float64], patches: Sequence[Patch], owner: NDArray[np.int64], _: object
) -> Moved:
    """Move boxes [N, 4] with their upright patches, and clip them to these.

    owner: the patch of each box, [N].
    """
    # Scale, shift and target of each box's patch, as (x, y).  [N, 1, 2]
    scale = np.array([patch.matrix.diagonal()[:2] for patch in patches])[owner, None]
    shift = np.array([patch.matrix[:2, 2] for patch in patches])[owner, None]
    targets = np.array([patch.target for patch in patches], np.float64)[owner, None]
    low = targets[..., :2]
    high = targets[..., 2:]

    corners = boxes.reshape(-1, 2, 2) * scale + shift  # upper left, lower right
    clipped = np.minimum(np.maximum(corners, low), high)
    return clipped.reshape(-1, 4), scale[:, 0, 0] * scale[:, 0, 1]


def moved_boxes(
    boxes: NDArray[np.float64],
    patches: Sequence[Patch],
    owner: NDArray[np.int64],
    size: tuple[int, int],
) -> Moved:
    """As `moved_boxes_upright`, for any matrices; size: height and width of the canvas."""
    after = np.zeros_like(boxes)
    stretch = np.ones(len(boxes))
    for number, patch in enumerate(patches):
        mask = owner == number
        window = visible_window(patch, size)
        if mask.any() and len(window):
            after[mask] = visible_boxes(boxes[mask], patch, window)
            stretch[mask] = area_scale(boxes[mask], patch.matrix)
    return after, stretch


def keep_mask(
    whole: NDArray[np.float64], boxes: NDArray[np.float64], share: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Which boxes to keep as targets, [N]: large enough, not too elongated, and visible enough.

    whole: the areas on the canvas before clipping, [N]. share: the fraction of it that must be
    visible, [N].
    """
    width = boxes[:, 2] - boxes[:, 0]
    height = boxes[:, 3] - boxes[:, 1]
    large = (width > MIN_SIDE) & (height > MIN_SIDE)

    shorter = np.minimum(width, height)
    aspect = np.maximum(width, height) / np.maximum(shorter, 1e-9)
    visible = width * height > share * whole
    return large & (aspect < MAX_ASPECT) & visible


def box_areas(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the areas of boxes [N, 4], 0 for one whose corners are swapped."""
    width = (boxes[:, 2] - boxes[:, 0]).clip(0)
    height = (boxes[:, 3] - boxes[:, 1]).clip(0)
    return width * height


def clipped_boxes(boxes: NDArray[np.float64], region: Region) -> NDArray[np.float64]:
    """Return the boxes [N, 4], clipped to the region."""
    low = np.array(region[:2] * 2, np.float64)  # x1, y1, x1, y1
    high = np.array(region[2:] * 2, np.float64)
    return np.minimum(np.maximum(boxes, low), high)


def hidden_share(boxes: NDArray[np.float64], cover: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the fraction of each box that the box `cover` hides, [N] in [0, 1]."""
    low = np.maximum(boxes[:, :2], cover[:2])
    high = np.minimum(boxes[:, 2:], cover[2:])
    hidden = (high - low).clip(0).prod(1)
    return hidden / np.maximum(box_areas(boxes), 1e-9)


def transformed(points: NDArray[np.float64], matrix: Matrix) -> NDArray[np.float64]:
    """Apply a projective matrix to points [P, 2]."""
    moved = points @ matrix[:, :2].T + matrix[:, 2]  # homogeneous, [P, 3]
    return moved[:, :2] / moved[:, 2:]


def visible_window(patch: Patch, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return the corners [K, 2] of the part of the canvas that the patch covers; K is 0 for none.

    That part is convex. size: height and width of the canvas.
    """
    if patch.target is not None:
        return polygons.rectangle(*patch.target)

    height, width = size
    corners = transformed(polygons.rectangle(*patch.region), patch.matrix)
    return polygons.clip_convex(corners, width, height)


def visible_boxes(
    boxes: NDArray[np.float64], patch: Patch, window: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return upright boxes around the parts of the moved boxes inside `window`; zeros for none.

    Args:
        boxes: [N, 4] in base pixels of the patch's image.
        patch: the patch whose matrix moves them.
        window: corners of the patch's visible part, [K, 2].
    """
    # The four corners of each box on the canvas, and the upright box around them.
    points = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2)  # [N * 4, 2]
    moved = transformed(points, patch.matrix)
    corners = moved.reshape(-1, 4, 2)
    around = np.concatenate([corners.min(1), corners.max(1)], 1)

    # Boxes completely inside the window are done; the others are hidden or cut.
    distances = polygons.signed_distances(moved, window)
    inside = distances.reshape(len(boxes), 4, -1)  # [N, 4, sides]
    hidden = inside.max(1).min(1) < 0  # all four corners are outside one side
    cut = ~hidden & (inside < 0).any((1, 2))

    around[hidden] = 0
    for k in np.flatnonzero(cut).tolist():
        around[k] = polygons.visible_box(corners[k], window)
    return around


def area_scale(boxes: NDArray[np.float64], matrix: Matrix) -> NDArray[np.float64]:
    """Return the factor by which the matrix scales areas at the center of each box, [N].

    It is the determinant of the Jacobian of the projective map there.
    """
    center = (boxes[:, :2] + boxes[:, 2:]) / 2
    depth = center @ matrix[2, :2] + matrix[2, 2]
    return np.abs(np.linalg.det(matrix)) / depth**3


def flipped_boxes(
    targets: NDArray[np.float64], size: tuple[int, int], flip_up: bool, flip_left: bool
) -> NDArray[np.float64]:
    """Return the targets [T, 5] (class, x1, y1, x2, y2) on the flipped canvas of `size` (h, w)."""
    height, width = size
    flipped = targets.copy()
    if flip_left:
        flipped[:, [1, 3]] = width - targets[:, [3, 1]]
    if flip_up:
        flipped[:, [2, 4]] = height - targets[:, [4, 2]]
    return flipped


def translation(x: float, y: float) -> Matrix:
    """Return the matrix that moves points by x and y."""
    return np.array([[1.0, 0, x], [0, 1, y], [0, 0, 1]])


def rectangle_to_rectangle(source: Region, target: Region) -> Matrix:
    """Return the matrix that maps one rectangle to another by scaling and shifting."""
    scale_x = (target[2] - target[0]) / (source[2] - source[0])
    scale_y = (target[3] - target[1]) / (source[3] - source[1])
    shift_x = target[0] - source[0] * scale_x
    shift_y = target[1] - source[1] * scale_y
    return np.array([[scale_x, 0, shift_x], [0, scale_y, shift_y], [0, 0, 1]])


def whole_pixels(
    low: int, high: int, scale: float, shift: float, limit: int
) -> tuple[int, int, int, int]:
    """Return (source start, source end, canvas start, canvas end) of a patch's visible part.

    Along one axis, in whole pixels: an edge inside the canvas is rounded on the canvas, an edge
    outside is clipped to the canvas's border and rounded in the source.

    Args:
        low: start of the patch's region in the source.
        high: end of the region.
        scale: canvas pixels per source pixel.
        shift: canvas position of source position 0.
        limit: side of the canvas.

    >>> whole_pixels(0, 100, 0.5, -10.0, 320), whole_pixels(0, 100, 2.0, 10.2, 100)
    ((20, 100, 0, 40), (0, 45, 10, 100))
    """

    def edge(source: int) -> tuple[int, int]:
        """Return an edge of the visible part, in the source and on the canvas."""
        canvas = source * scale + shift
        if canvas < 0 or canvas > limit:
            border = 0 if canvas < 0 else limit
            at_border = round((border - shift) / scale)
            return min(max(at_border, low), high), border
        return source, round(canvas)

    source_low, canvas_low = edge(low)
    source_high, canvas_high = edge(high)
    return source_low, source_high, canvas_low, canvas_high


def random_matrix(
    random: np.random.Generator, a: Augmentation, center: tuple[float, float], size: tuple[int, int]
) -> Matrix:
    """Return a random matrix: center, perspective, rotation and scale, shear, then a shift.

    The center of the image ends near the center of the canvas. The perspective is limited so that
    no pixel comes near the horizon: pixels beyond it would be drawn upside down. The images of a
    mosaic reach at most 1.5 times as far from the center as `center` is from the origin.

    Args:
        random: the generator of the sample.
        a: the strengths.
        center: x and y of the center before the move.
        size: height and width of the canvas.
    """
    to_origin = translation(-center[0], -center[1])

    # Perspective: the depth at the corners, which are at +-center, changes by at most MAX_TILT.
    tilt = np.eye(3)
    tilt[2, :2] = random.uniform(-a.perspective, a.perspective, 2)
    corner_tilt = float(np.abs(tilt[2, :2]) @ center)
    tilt[2, :2] *= MAX_TILT / max(MAX_TILT, corner_tilt)

    angle = np.deg2rad(random.uniform(-a.degrees, a.degrees))
    zoom = random.uniform(1 - a.scale, 1 + a.scale)
    cos, sin = np.cos(angle), np.sin(angle)
    rotation = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]])
    rotation[:2] *= zoom

    shear = np.eye(3)
    shear[0, 1], shear[1, 0] = np.tan(np.deg2rad(random.uniform(-a.shear, a.shear, 2)))

    height, width = size
    position = random.uniform(0.5 - a.translate, 0.5 + a.translate, 2)  # 0 to 1: on the canvas
    shift = translation(*(position * [width, height]))

    matrix: Matrix = shift @ shear @ rotation @ tilt @ to_origin
    return matrix
