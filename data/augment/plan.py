"""Plan a training sample: its patches, matrices and colors.

Numbers and boxes, no pixels.

data/augment/draw.py and draw_device.py draw the plans. Every random number comes from a generator
keyed by (seed, epoch, index), and by the repeat if an epoch draws an image again. So a sample is
the same in every worker, process and restarted run.

Coordinate frames: *source* pixels of the file (EXIF-rotated), *base* pixels of the image after its
long side was resized to the training size, *canvas* pixels of the finished sample. A matrix [3, 3]
maps base pixels to canvas pixels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.augment import polygons
from data.augment.geometry import (
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
from data.augment.records import Augmentation, CanvasLayer, Matrix, Paste, Patch, Plan
from data.balance.draws import Draws
from data.labels import Labels
from utils.boxes import IGNORE_CLASS
from utils.images.boxes import box_areas, clip_boxes
from utils.images.letterbox import Letterbox, Placement, Region, base_sizes, canvas_region, place

MIN_AREA_BOX, MIN_AREA_POLYGON = 0.10, 0.01  # fraction of its area that must stay visible
MAX_COPY_OVERLAP = 0.30


def generator_for(seed: int, epoch: int, index: int, repeat: int = 0) -> np.random.Generator:
    """Return the random generator of one sample.

    It is counter-based: its key alone determines every number. repeat: how often the epoch has
    drawn the sample before. Each repeat starts the counter 2^64 blocks later, so all repeats
    differ, and the first draw has the same numbers as in an epoch without repeats.

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
        self,
        labels: Labels,
        image_size: int,
        augmentation: Augmentation,
        seed: int,
        draws: Draws | None = None,
        letterbox: Letterbox = "center",
        canvas: tuple[int, int] | None = None,
    ) -> None:
        """Plan samples.

        Args:
            labels: of whole images.
            image_size: the training size in pixels.
            augmentation: its strengths.
            seed: of all random numbers.
            draws: how often each sample is chosen as a part of another; None: all alike.
            letterbox: where `plain` puts the images; augmented samples start in the center.
            canvas: the (height, width) of all samples, if there is only one.
        """
        self.labels = labels
        self.image_size = image_size
        self.augmentation = augmentation
        self.seed = seed
        self._draws = draws
        self._letterbox = letterbox
        self.canvas = canvas
        self._base_sizes = base_sizes(labels.sizes, image_size, self.tile, canvas)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def image_of(self, index: int) -> int:
        """Return the image that sample `index` shows."""
        return index

    def plan(
        self, epoch: int, index: int, size: tuple[int, int], *, mosaic: bool, repeat: int = 0
    ) -> Plan:
        """Return the plan of sample `index` in `epoch` on a canvas of `size`.

        Args:
            epoch: number of the epoch, part of the key of the random numbers.
            index: number of the sample.
            size: height and width of the canvas.
            mosaic: whether the sample may contain patches of other images (mosaic, mixup,
                copy-paste); square canvases only.
            repeat: how often the epoch has drawn the image before.
        """
        strengths = self.augmentation
        random = generator_for(self.seed, epoch, index, repeat)

        # One image, or a mosaic, to which another mosaic may be added.
        mix = 1.0
        if mosaic and random.random() < strengths.mosaic:
            layer, targets = self._mosaic(random, index)
            layers = [layer]
            if random.random() < strengths.mixup:
                (other,) = self._others(random, 1).tolist()
                second_layer, second_targets = self._mosaic(random, other)
                layers.append(second_layer)
                targets = np.concatenate([targets, second_targets])
                mix = float(random.beta(32.0, 32.0))
        else:
            layer, targets = self._single(random, index, size)
            layers = [layer]

        # Colors. The numbers are drawn even if they are not used.
        color_strengths = [strengths.hsv_h, strengths.hsv_s, strengths.hsv_v]
        gains = 1 + random.uniform(-1, 1, 3) * color_strengths
        hue, saturation, value = gains.tolist()
        hsv = (hue, saturation, value) if any(color_strengths) else None

        flip_up = bool(random.random() < strengths.flipud)
        flip_left = bool(random.random() < strengths.fliplr)
        targets = flipped_boxes(targets, size, flip_up, flip_left)

        # Drawn last, so that the other numbers are the same with and without own transforms.
        seed = int(random.integers(2**63))
        return Plan(
            size, tuple(layers), targets.astype(np.float32), mix, hsv, flip_up, flip_left, seed
        )

    def plain(self, index: int, size: tuple[int, int]) -> Plan:
        """Return the plan of the letterboxed image on a canvas of `size`, without augmentation.

        Validation uses it.
        """
        whole = (0, 0, *self.base_size(index))
        patch = self._letterboxed(index, whole, size, self._letterbox)
        targets = self._targets([patch], [self.labels.rows(index)], size)
        return Plan(size, (CanvasLayer((patch,)),), targets.astype(np.float32))

    def placement(self, index: int, size: tuple[int, int]) -> Placement:
        """Return the scale and shift from source image to canvas in the result of `plain`."""
        width, height = self.labels.sizes[index].tolist()
        return place((width, height), self.base_size(index), size, self._letterbox)

    def _others(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Return samples to be parts of another one, [count], by how often each is drawn."""
        if self._draws is None:
            return random.integers(len(self), size=count)
        return self._draws.choose(random, count)

    # ------------------------------------------------------------------ geometry

    def _crop(self, random: np.random.Generator, index: int) -> tuple[int, Region]:
        """Return the image of a sample and its region in base pixels: the whole image."""
        return index, (0, 0, *self.base_size(index))

    def _letterboxed(
        self, index: int, region: Region, size: tuple[int, int], at: Letterbox = "center"
    ) -> Patch:
        """Return a patch placed on the canvas, shrunk if the canvas is smaller."""
        x1, y1, x2, y2 = region
        target = canvas_region((x2 - x1, y2 - y1), size, at)
        return Patch(index, region, rectangle_to_rectangle(region, target), target)

    def _single(
        self, random: np.random.Generator, index: int, size: tuple[int, int]
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """Return a layer of one image, moved at random, and its targets."""
        image, region = self._crop(random, index)
        boxed = self._letterboxed(image, region, size)

        height, width = size
        center = (width / 2, height / 2)
        window = random_matrix(random, self.augmentation, center, size)
        moved = self._moved_patch(boxed, window, size)
        return self._layer([moved], [], size)

    def _mosaic(
        self, random: np.random.Generator, index: int
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """Return a layer of four images, moved at random, and its targets.

        The images meet in a random point of the double canvas, of twice the training size.
        """
        side = self.image_size
        size = (side, side)

        # Four images, in random order around a random point of the double canvas.
        x, y = random.uniform(0.5 * side, 1.5 * side, 2).astype(int).tolist()
        partners = self._others(random, 3)
        samples = random.permutation(np.array([index, *partners]))
        quadrants = []
        for quadrant, sample in enumerate(samples.tolist()):
            image, region = self._crop(random, sample)
            quadrants.append(self._quadrant(image, region, quadrant, x, y))

        copies: list[tuple[int, Patch]] = []
        if self.augmentation.copy_paste > 0:
            copies = self._copies(random, quadrants)

        # The canvas is a random window of the double canvas.
        window = random_matrix(random, self.augmentation, (side, side), size)
        patches = [self._moved_patch(patch, window, size) for patch in quadrants]
        moved_copies = []
        for row, copy in copies:
            moved = Patch(copy.index, copy.region, window @ copy.matrix)
            moved_copies.append((row, moved))
        return self._layer(patches, moved_copies, size)

    def _layer(
        self,
        patches: Sequence[Patch | None],
        copies: Sequence[tuple[int, Patch]],
        size: tuple[int, int],
    ) -> tuple[CanvasLayer, NDArray[np.float64]]:
        """Return a layer of the visible patches and copies, and their targets [T, 5]."""
        visible = tuple(patch for patch in patches if patch is not None)
        rows = [self.labels.rows(patch.index) for patch in visible]
        targets = [self._targets(visible, rows, size)]

        pastes = []
        for row, patch in copies:
            target = self._targets([patch], [slice(row, row + 1)], size)
            if len(target):  # a copy without a target is not drawn either
                targets.append(target)
                outline = self._outline(row, patch.index)
                pastes.append(Paste(patch.index, patch.region, outline, patch.matrix))
        return CanvasLayer(visible, tuple(pastes)), np.concatenate(targets)

    def _quadrant(self, index: int, region: Region, quadrant: int, x: int, y: int) -> Patch:
        """Return a patch of the region with a corner at (x, y) of the double canvas, clipped to it.

        Args:
            index: the image.
            region: its region in base pixels.
            quadrant: 0 upper left of the point, 1 upper right, 2 lower left, 3 lower right.
            x: of the point on the canvas of twice the training size.
            y: of the point.
        """
        x1, y1, x2, y2 = region
        is_right = quadrant in (1, 3)
        is_lower = quadrant in (2, 3)

        # Shift the corner of the region that is nearest to the point onto it: the left edge of a
        # quadrant on the right, the upper edge of a lower quadrant.
        shift_x = x - x1 if is_right else x - x2
        shift_y = y - y1 if is_lower else y - y2

        # The double canvas in pixels of the image: what is outside is cut off.
        limit = 2 * self.image_size
        left, right = -shift_x, limit - shift_x
        top, bottom = -shift_y, limit - shift_y
        visible = (max(x1, left), max(y1, top), min(x2, right), min(y2, bottom))
        return Patch(index, visible, translation(shift_x, shift_y))

    def _moved_patch(self, patch: Patch, window: Matrix, size: tuple[int, int]) -> Patch | None:
        """Return the patch as it will be drawn, moved by the matrix `window`; None if not visible.

        Edges of upright patches are rounded to whole pixels, and their matrix is adapted to the
        rounded edges.
        """
        matrix = window @ patch.matrix
        if not self.augmentation.axis_aligned:
            warped = Patch(patch.index, patch.region, matrix)
            is_visible = len(visible_window(warped, size)) > 0
            return warped if is_visible else None

        # The visible part, in pixels of the image and of the canvas.
        height, width = size
        x1, y1, x2, y2 = patch.region
        scale_x, _, shift_x = matrix[0]
        _, scale_y, shift_y = matrix[1]
        x1, x2, canvas_x1, canvas_x2 = whole_pixels(x1, x2, scale_x, shift_x, width)
        y1, y2, canvas_y1, canvas_y2 = whole_pixels(y1, y2, scale_y, shift_y, height)

        region_is_empty = x1 >= x2 or y1 >= y2
        target_is_empty = canvas_x1 >= canvas_x2 or canvas_y1 >= canvas_y2
        if region_is_empty or target_is_empty:
            return None
        region = (x1, y1, x2, y2)
        target = (canvas_x1, canvas_y1, canvas_x2, canvas_y2)
        return Patch(patch.index, region, rectangle_to_rectangle(region, target), target)

    def _copies(
        self, random: np.random.Generator, patches: Sequence[Patch]
    ) -> list[tuple[int, Patch]]:
        """Return (row, mirrored patch) of the polygon objects to copy.

        A copy goes to the other side of the double canvas, if it hides less than 30 % of each box
        there. Source: Ghiasi et al., Simple Copy-Paste (arXiv 2012.07177); the mirrored variant
        from the facts of YOLOv5.
        """
        limit = 2 * self.image_size
        mirror = np.array([[-1.0, 0, limit], [0, 1, 0], [0, 0, 1]])

        # The visible boxes of all objects on the double canvas, where patches are only shifted.
        occupied = [np.zeros((0, 4))]
        for patch in patches:
            boxes = self._base_boxes(self.labels.rows(patch.index), patch.index)
            shift = np.tile(patch.matrix[:2, 2], 2)
            boxes = clip_boxes(boxes, patch.region) + shift
            occupied.append(boxes[box_areas(boxes) > 0])
        existing = np.concatenate(occupied)

        copies = []
        for patch in patches:
            rows = self.labels.rows(patch.index)
            wanted = random.random(rows.stop - rows.start) < self.augmentation.copy_paste
            chosen = np.flatnonzero(wanted & ~self.labels.crowd[rows])

            copy = Patch(patch.index, patch.region, mirror @ patch.matrix)
            window = visible_window(copy, (limit, limit))
            for row in (rows.start + chosen).tolist():
                outline = transformed(self._outline(row, patch.index), copy.matrix)
                box = polygons.visible_box(outline, window)
                visible = box_areas(box[None])[0] > 0
                if visible and (hidden_share(existing, box) < MAX_COPY_OVERLAP).all():
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
        """Return x1, y1, x2, y2 of the rows in base pixels, [T, 4].

        index: the image of all rows, or that of each row, [T].
        """
        xywh = self.labels.boxes_xywh[rows]
        scale = self.base_scale(index)
        upper_left = xywh[:, :2]
        lower_right = upper_left + xywh[:, 2:]
        return np.concatenate([upper_left * scale, lower_right * scale], 1)

    def _outline(self, row: int, index: int) -> NDArray[np.float64]:
        """Return the polygon of a row, [P, 2] in base pixels; empty for a plain box."""
        return self.labels.row_points(row) * self.base_scale(index)

    def _targets(
        self, patches: Sequence[Patch], slices: Sequence[slice], size: tuple[int, int]
    ) -> NDArray[np.float64]:
        """Return the targets of the rows in `slices`, clipped to patches and canvas, [T, 5].

        For rows with a polygon, the box is computed from the polygon's visible part.

        Args:
            patches: the patches of one layer, or one copy.
            slices: the rows of each patch.
            size: height and width of the canvas.
        """
        # The rows of all patches, the patch of each row, and its image.  [N]
        counts = [rows.stop - rows.start for rows in slices]
        if sum(counts) == 0:
            return np.zeros((0, 5))
        rows = np.concatenate([np.arange(rows.start, rows.stop) for rows in slices])
        owner = np.repeat(np.arange(len(patches)), counts)
        images = np.array([patch.index for patch in patches])[owner]

        # The visible parts of the boxes on the canvas, and the factors of their areas.
        base_boxes = self._base_boxes(rows, images)
        upright = all(patch.target is not None for patch in patches)
        move = moved_boxes_upright if upright else moved_boxes
        boxes, area_factors = move(base_boxes, patches, owner, size)

        # Boxes of polygons fit their visible parts.
        points = self.labels.point_offsets
        has_outline = points[rows + 1] > points[rows]
        for k in np.flatnonzero(has_outline & (box_areas(boxes) > 0)).tolist():
            patch = patches[owner[k]]
            outline = self._outline(int(rows[k]), patch.index)
            moved_outline = transformed(outline, patch.matrix)
            boxes[k] = polygons.visible_box(moved_outline, visible_window(patch, size))

        # Rounding may have left them outside.
        height, width = size
        boxes = clip_boxes(boxes, (0, 0, width, height))

        # Drop what is hardly visible; of a crowd, any part counts.
        whole = box_areas(base_boxes) * area_factors
        visible = box_areas(boxes)
        crowd = self.labels.crowd[rows]
        min_share = np.where(has_outline, MIN_AREA_POLYGON, MIN_AREA_BOX)
        kept = np.where(crowd, visible > 0, keep_mask(whole, boxes, min_share))

        # Ignore crowds, and objects that are visible only in part.
        ignored = crowd | (visible < self.min_visible * whole)
        classes = np.where(ignored, IGNORE_CLASS, self.labels.classes[rows])
        return np.concatenate([classes[kept, None], boxes[kept]], 1)
