"""The labels of a split as flat arrays: M images, N rows (boxes), P polygon points, K classes.

Flat arrays instead of lists of objects: a forked worker that only reads Python objects changes
their reference counts, which copies their memory page by page, until memory runs out.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from utils.images.letterbox import Region
from utils.metrics.records import GroundTruth

MIN_BOX_SIDE = 1e-3  # pixels; a smaller box counts as empty


class BadRowError(ValueError):
    """A row or annotation that cannot be used.

    The message is the reason; the code that catches it adds the place.
    """


class LabelRow(NamedTuple):
    """One box while labels are read, in pixels of the upright image."""

    class_index: int
    box_xywh: tuple[float, float, float, float]
    area: float
    crowd: bool
    points: np.ndarray | None  # float32 [k, 2], k >= 3, or None
    # its line or annotation id; for an annotation without id its place, such as "annotations[3]"
    number: int | str

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom."""
        left, top, width, height = self.box_xywh
        return left, top, left + width, top + height


@dataclass(frozen=True, eq=False)
class Labels:
    """The images and boxes of one split.

    Pixels are those of the upright image, x to the right, y down. Raises ValueError if the arrays
    do not fit together.
    """

    path_bytes: np.ndarray  # uint8 [B], see `path`
    path_offsets: np.ndarray  # int64 [M+1], see `path`
    sizes: np.ndarray  # int32 [M, 2], width and height after EXIF rotation
    image_ids: np.ndarray  # int64 [M], the ids in a COCO JSON, otherwise 1..M
    offsets: np.ndarray  # int64 [M+1], image i has the rows offsets[i]:offsets[i+1]
    classes: np.ndarray  # int32 [N], index into the data YAML's names
    # float64 [N, 4], left, top, width, height in pixels; a COCO JSON's values bit for bit
    boxes_xywh: np.ndarray
    areas: np.ndarray  # float64 [N], a COCO JSON's `area`, otherwise width * height
    crowd: np.ndarray  # bool [N], True for regions that evaluation and loss ignore
    points: np.ndarray  # float32 [P, 2], polygon vertices
    point_offsets: np.ndarray  # int64 [N+1], an empty range is a plain box
    # int64 [K], the id of class k in COCO results: the one in the JSON, otherwise 1..K
    category_ids: np.ndarray

    def __post_init__(self) -> None:
        M = len(self.sizes)
        N = len(self.classes)
        expected = {
            "path_bytes": (np.uint8, (len(self.path_bytes),)),
            "path_offsets": (np.int64, (M + 1,)),
            "sizes": (np.int32, (M, 2)),
            "image_ids": (np.int64, (M,)),
            "offsets": (np.int64, (M + 1,)),
            "classes": (np.int32, (N,)),
            "boxes_xywh": (np.float64, (N, 4)),
            "areas": (np.float64, (N,)),
            "crowd": (np.bool_, (N,)),
            "points": (np.float32, (len(self.points), 2)),
            "point_offsets": (np.int64, (N + 1,)),
            "category_ids": (np.int64, (len(self.category_ids),)),
        }
        for name, (dtype, shape) in expected.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                actual = f"{array.dtype} {array.shape}"
                raise ValueError(f"Labels.{name} is {actual}, must be {np.dtype(dtype)} {shape}")

        _check_offsets("path_offsets", self.path_offsets, len(self.path_bytes))
        _check_offsets("offsets", self.offsets, N)
        _check_offsets("point_offsets", self.point_offsets, len(self.points))
        if N and not 0 <= self.classes.min() <= self.classes.max() < len(self.category_ids):
            raise ValueError(f"Labels.classes must be in 0-{len(self.category_ids) - 1}")

    def __len__(self) -> int:
        """Return the number of images, M."""
        return len(self.sizes)

    def path(self, index: int) -> str:
        """Return the path of image `index`; a negative index counts from the end.

        Raises IndexError if out of range.
        """
        index = range(len(self))[index]
        start = self.path_offsets[index]
        stop = self.path_offsets[index + 1]
        return os.fsdecode(self.path_bytes[start:stop].tobytes())

    def rows(self, index: int) -> slice:
        """Return the slice of classes, boxes_xywh, areas and crowd of image `index`."""
        index = range(len(self))[index]
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    @property
    def row_images(self) -> np.ndarray:
        """The image of each row, int64 [N]."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def row_points(self, row: int) -> np.ndarray:
        """Return the polygon of one row, float32 [k, 2]; k is 0 for a plain box."""
        row = range(len(self.classes))[row]
        start = self.point_offsets[row]
        stop = self.point_offsets[row + 1]
        return self.points[start:stop]

    def objects_per_image(self) -> np.ndarray:
        """Return the number of objects in each image, int64 [M]; regions to ignore do not count."""
        objects_before_row = np.concatenate([[0], np.cumsum(~self.crowd)])  # [N+1]
        per_image: np.ndarray = np.diff(objects_before_row[self.offsets])
        return per_image

    @property
    def whole(self) -> "Labels":
        """The labels of whole images: these, unless they are those of tiles (data/tiles/)."""
        return self

    def part(self, index: int) -> tuple[int, Region]:
        """Return the id of the image that `index` shows, and the part: all, unless it is a tile."""
        width, height = self.sizes[index].tolist()
        return int(self.image_ids[index]), (0, 0, width, height)

    def subset(self, indices: Sequence[int] | np.ndarray) -> "Labels":
        """Return the images `indices`, in that order, with their rows and polygons."""
        chosen = np.arange(len(self))[np.asarray(indices, dtype=np.int64)]

        byte_index, path_offsets = _gather(self.path_offsets, chosen)
        row_index, offsets = _gather(self.offsets, chosen)
        point_index, point_offsets = _gather(self.point_offsets, row_index)

        return Labels(
            path_bytes=self.path_bytes[byte_index],
            path_offsets=path_offsets,
            sizes=self.sizes[chosen],
            image_ids=self.image_ids[chosen],
            offsets=offsets,
            classes=self.classes[row_index],
            boxes_xywh=self.boxes_xywh[row_index],
            areas=self.areas[row_index],
            crowd=self.crowd[row_index],
            points=self.points[point_index],
            point_offsets=point_offsets,
            category_ids=self.category_ids,
        )

    def box_sizes(self, image_size: int) -> np.ndarray:
        """Return the widths and heights of boxes in images resized to a long side of image_size.

        float64 [boxes, 2] in pixels, without ignore regions.
        """
        image_scale = image_size / self.sizes.max(1)  # [M]
        scale = image_scale[self.row_images]  # [N]
        resized = self.boxes_xywh[:, 2:] * scale[:, None]
        return resized[~self.crowd]

    def boxes_per_image(self, percent: float) -> int:
        """Return the percentile of the number of boxes per image, ignore regions included.

        percent: 0 to 100.
        """
        return int(np.percentile(np.diff(self.offsets), percent))

    def boxes_cxcywh_norm(self) -> np.ndarray:
        """Return center x, center y, width, height of all boxes, in fractions of images: [N, 4]."""
        sizes = self.sizes[self.row_images]  # of each box's image, [N, 2]
        boxes: np.ndarray = self.boxes_xywh / np.tile(sizes, 2)
        boxes[:, :2] += boxes[:, 2:] / 2  # corner to center
        return boxes

    def ground_truth(self) -> GroundTruth:
        """Return the boxes in the format of the evaluator."""
        image_ids = self.image_ids[self.row_images]
        classes = self.classes.astype(np.int64)
        return GroundTruth(image_ids, classes, self.boxes_xywh, self.areas, self.crowd)

    def with_single_class(self) -> "Labels":
        """Return the same boxes, all of class 0, which keeps its category id."""
        arrays = self.arrays()
        arrays["classes"] = np.zeros_like(self.classes)
        arrays["category_ids"] = self.category_ids[:1]
        return Labels(**arrays)

    def with_classes(self, classes: Sequence[int]) -> "Labels":
        """Return the same images with the rows of some classes only, which become 0, 1, ...

        classes: ascending. They keep their category ids.
        """
        chosen = np.array(classes, np.int64)
        is_kept = np.isin(self.classes, chosen)  # [N]
        rows = np.flatnonzero(is_kept)
        kept_before = range_offsets(is_kept)  # [N+1]
        points, point_offsets = _gather(self.point_offsets, rows)

        arrays = self.arrays()
        for name in ("boxes_xywh", "areas", "crowd"):
            arrays[name] = arrays[name][rows]
        arrays["classes"] = np.searchsorted(chosen, self.classes[rows]).astype(np.int32)
        arrays["offsets"] = kept_before[self.offsets]
        arrays["points"] = self.points[points]
        arrays["point_offsets"] = point_offsets
        arrays["category_ids"] = self.category_ids[chosen]
        return Labels(**arrays)

    def with_classes_before(self, count: int) -> "Labels":
        """Return the same images and rows, the classes with numbers after those of `count` others.

        The classes keep their category ids; the others have the ids that follow the largest.
        """
        first_free = int(self.category_ids.max(initial=0)) + 1
        arrays = self.arrays()
        arrays["classes"] = (self.classes + count).astype(np.int32)
        others = np.arange(first_free, first_free + count)
        arrays["category_ids"] = np.concatenate([others, self.category_ids])
        return Labels(**arrays)

    def digest(self) -> str:
        """Return a text that is equal on two machines if they read the same images and boxes.

        Folders do not matter.
        """
        file_names = [os.path.basename(self.path(i)) for i in range(len(self))]
        digest = hashlib.sha256(os.fsencode("/".join(file_names)))

        for name, array in self.arrays().items():
            if not name.startswith("path_"):
                digest.update(np.ascontiguousarray(array).data)
        return f"{len(self)} images with {len(self.classes)} boxes, {digest.hexdigest()[:8]}"

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name; `Labels(**arrays)` is the inverse."""
        return {field.name: getattr(self, field.name) for field in fields(Labels)}


@dataclass
class LabelsBuilder:
    """Collects images and their rows, then builds the flat arrays of `Labels`."""

    paths: list[bytes] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    image_ids: list[int] = field(default_factory=list)
    row_counts: list[int] = field(default_factory=list)
    rows: list[LabelRow] = field(default_factory=list)

    def add_image(
        self, path: str, size: tuple[int, int], image_id: int, rows: Sequence[LabelRow]
    ) -> None:
        """Add one image of `size` (width, height) with its rows."""
        self.paths.append(os.fsencode(path))
        self.sizes.append(size)
        self.image_ids.append(image_id)
        self.row_counts.append(len(rows))
        self.rows.extend(rows)

    def build(self, category_ids: Sequence[int]) -> Labels:
        """Return the Labels of everything added so far."""
        no_points = np.zeros((0, 2), np.float32)
        polygons = [no_points if row.points is None else row.points for row in self.rows]

        boxes = np.array([row.box_xywh for row in self.rows], np.float64)
        path_bytes = np.frombuffer(b"".join(self.paths), np.uint8)

        return Labels(
            path_bytes=path_bytes.copy(),  # which can be written to, as the other arrays
            path_offsets=range_offsets([len(path) for path in self.paths]),
            sizes=np.array(self.sizes, np.int32).reshape(-1, 2),
            image_ids=np.array(self.image_ids, np.int64),
            offsets=range_offsets(self.row_counts),
            classes=np.array([row.class_index for row in self.rows], np.int32),
            boxes_xywh=boxes.reshape(-1, 4),
            areas=np.array([row.area for row in self.rows], np.float64),
            crowd=np.array([row.crowd for row in self.rows], np.bool_),
            points=np.concatenate([no_points, *polygons]),
            point_offsets=range_offsets([len(polygon) for polygon in polygons]),
            category_ids=np.array(category_ids, np.int64),
        )


def range_offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the starts of consecutive ranges, and the end of the last, int64 [len(counts) + 1].

    >>> range_offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _gather(offsets: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all elements of the ranges `chosen`, and the new offsets.

    The new offsets are those of the chosen ranges when concatenated.

    >>> [array.tolist() for array in _gather(np.array([0, 2, 2, 5]), np.array([2, 0]))]
    [[2, 3, 4, 0, 1], [0, 3, 5]]
    """
    old_starts = offsets[chosen]
    counts = offsets[chosen + 1] - old_starts
    new_offsets = range_offsets(counts)

    shift = np.repeat(old_starts - new_offsets[:-1], counts)
    indices = np.arange(new_offsets[-1]) + shift
    return indices, new_offsets


def _check_offsets(name: str, offsets: np.ndarray, total: int) -> None:
    if offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise ValueError(f"Labels.{name} must increase from 0 to {total}")
