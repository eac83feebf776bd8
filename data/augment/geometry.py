"""Map boxes and rectangles with matrices: patches on the canvas, and the visible parts of boxes.

Boxes are x1, y1, x2, y2. Coordinate frames are those of data/augment/plan.py. A matrix [3, 3] maps
base pixels to canvas pixels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.augment import polygons
from data.augment.records import Augmentation, Matrix, Patch
from utils.images.boxes import box_areas
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
    # The matrix and the target of each box's own patch.
    matrices = np.array([patch.matrix for patch in patches])[owner]  # [N, 3, 3]
    targets = np.array([patch.target for patch in patches], np.float64)[owner]  # [N, 4]

    # An upright patch is only scaled and shifted.
    scale = matrices.diagonal(axis1=1, axis2=2)[:, :2]  # [N, 2] of x and y
    shift = matrices[:, :2, 2]
    upper_left = boxes[:, :2] * scale + shift
    lower_right = boxes[:, 2:] * scale + shift
    moved = np.concatenate([upper_left, lower_right], 1)

    low = np.tile(targets[:, :2], 2)  # x1, y1, x1, y1
    high = np.tile(targets[:, 2:], 2)
    clipped = np.minimum(np.maximum(moved, low), high)
    return clipped, scale[:, 0] * scale[:, 1]


def moved_boxes(
    boxes: NDArray[np.float64],
    patches: Sequence[Patch],
    owner: NDArray[np.int64],
    size: tuple[int, int],
) -> Moved:
    """Move boxes as `moved_boxes_upright` does, with patches of any matrices.

    owner: the patch of each box, [N]. size: height and width of the canvas.
    """
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
    longer = np.maximum(width, height)
    shorter = np.minimum(width, height)

    is_large = shorter > MIN_SIDE
    is_compact = longer / np.maximum(shorter, 1e-9) < MAX_ASPECT
    is_visible = width * height > share * whole
    return is_large & is_compact & is_visible


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
    from_x1, from_y1, from_x2, from_y2 = source
    to_x1, to_y1, to_x2, to_y2 = target
    scale_x = (to_x2 - to_x1) / (from_x2 - from_x1)
    scale_y = (to_y2 - to_y1) / (from_y2 - from_y1)

    matrix = np.eye(3)
    matrix[0] = scale_x, 0, to_x1 - from_x1 * scale_x
    matrix[1] = 0, scale_y, to_y1 - from_y1 * scale_y
    return matrix


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
    random: np.random.Generator,
    strengths: Augmentation,
    center: tuple[float, float],
    size: tuple[int, int],
) -> Matrix:
    """Return a random matrix: center, perspective, rotation and scale, shear, then a shift.

    The center of the image ends near the center of the canvas. The perspective is limited so that
    no pixel comes near the horizon: pixels beyond it would be drawn upside down. The images of a
    mosaic reach at most 1.5 times as far from the center as `center` is from the origin.

    Args:
        random: the generator of the sample.
        strengths: the largest perspective, angle, zoom, shear and shift.
        center: x and y of the center before the move.
        size: height and width of the canvas.
    """
    center_x, center_y = center
    to_origin = translation(-center_x, -center_y)

    # Perspective: the depth at the corners, which are at +-center, changes by at most MAX_TILT.
    tilt = random.uniform(-strengths.perspective, strengths.perspective, 2)
    corner_tilt = float(np.abs(tilt) @ center)
    tilt *= MAX_TILT / max(MAX_TILT, corner_tilt)
    perspective = np.eye(3)
    perspective[2, :2] = tilt

    # Rotation and zoom.
    angle = np.deg2rad(random.uniform(-strengths.degrees, strengths.degrees))
    zoom = random.uniform(1 - strengths.scale, 1 + strengths.scale)
    cos = np.cos(angle)
    sin = np.sin(angle)
    rotation = np.eye(3)
    rotation[0, :2] = cos, sin
    rotation[1, :2] = -sin, cos
    rotation[:2] *= zoom

    # Shear along x, and along y.
    shear_angles = np.deg2rad(random.uniform(-strengths.shear, strengths.shear, 2))
    slope_x, slope_y = np.tan(shear_angles)
    shear = np.eye(3)
    shear[0, 1] = slope_x
    shear[1, 0] = slope_y

    # The center of the image goes to a random position near that of the canvas.
    height, width = size
    position = random.uniform(0.5 - strengths.translate, 0.5 + strengths.translate, 2)
    shift = translation(*(position * [width, height]))

    matrix: Matrix = shift @ shear @ rotation @ perspective @ to_origin
    return matrix
