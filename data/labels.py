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
    """A row or annotation that cannot be used. The message is the reason; the code that catches it
    adds the place.
    """


class LabelRow(NamedTuple):
    """One box while labels are read, in pixels of the upright image.

    number: its line or annotation id; the place in the file, such as "annotations[3]", of an
    annotation without id.
    """

    class_index: int
    box_xywh: tuple[float, float, float, float]
    area: float
    crowd: bool
    points: np.ndarray | None  # float32 [k, 2], k >= 3, or None
    number: int | str


@dataclass(frozen=True, eq=False)
class Labels:
    """The images and boxes of one split. Pixels are those of the upright image, x to the right, y
    down.

    path_bytes, path_offsets:  uint8 [B], int64 [M+1]; see `path` sizes:          int32 [M, 2],
    width and height after EXIF rotation image_ids:      int64 [M], the ids in a COCO JSON,
    otherwise 1..M offsets:        int64 [M+1], image i has the rows offsets[i]:offsets[i+1]
    classes:        int32 [N], index into the data YAML's names boxes_xywh:     float64 [N, 4], left
    top width height in pixels; a COCO JSON's values bit for bit areas:          float64 [N], a COCO
    JSON's `area`, otherwise width * height crowd:          bool [N], True for regions that
    evaluation and loss ignore points:         float32 [P, 2], polygon vertices point_offsets:
    int64 [N+1], an empty range is a plain box category_ids:   int64 [K], the id of class k in COCO
    results: the one in the JSON, otherwise 1..K

    Raises ValueError if the arrays do not fit together.
    """

    path_bytes: np.ndarray
    path_offsets: np.ndarray
    sizes: np.ndarray
    image_ids: np.ndarray
    offsets: np.ndarray
    classes: np.ndarray
    boxes_xywh: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray
    points: np.ndarray
    point_offsets: np.ndarray
    category_ids: np.ndarray

    def __post_init__(self) -> None:
        M, N = len(self.sizes), len(self.classes)
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
                raise ValueError(
                    f"Labels.{name} is {array.dtype} {array.shape}, must be {np.dtype(dtype)} "
                    f"{shape}"
                )
        _check_offsets("path_offsets", self.path_offsets, len(self.path_bytes))
        _check_offsets("offsets", self.offsets, N)
        _check_offsets("point_offsets", self.point_offsets, len(self.points))
        if N and not 0 <= self.classes.min() <= self.classes.max() < len(self.category_ids):
            raise ValueError(f"Labels.classes must be in 0-{len(self.category_ids) - 1}")

    def __len__(self) -> int:
        """The number of images, M."""
        return len(self.sizes)

    def path(self, index: int) -> str:
        """Return the path of image `index`. A negative index counts from the end. Raises IndexError
        if out of range.
        """
        index = range(len(self))[index]
        start, stop = self.path_offsets[index], self.path_offsets[index + 1]
        return os.fsdecode(self.path_bytes[start:stop].tobytes())

    def rows(self, index: int) -> slice:
        """Return the slice of classes, boxes_xywh, areas and crowd that belongs to image
        `index`.
        """
        index = range(len(self))[index]
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def row_points(self, row: int) -> np.ndarray:
        """Return the polygon of one row, float32 [k, 2]; k is 0 for a plain box."""
        row = range(len(self.classes))[row]
        return self.points[self.point_offsets[row] : self.point_offsets[row + 1]]

    def objects_per_image(self) -> np.ndarray:
        """Return the number of objects in each image, int64 [M]; regions to ignore do not count."""
        counted = np.concatenate([[0], np.cumsum(~self.crowd)])
        per_image: np.ndarray = np.diff(counted[self.offsets])
        return per_image

    @property
    def whole(self) -> "Labels":
        """The labels of whole images: these, unless they are those of tiles (data/tiles/)."""
        return self

    def part(self, index: int) -> tuple[int, Region]:
        """Return the id of the image that `index` shows, and the part: all of it, unless it is a
        tile.
        """
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
        """Return box widths and heights, float64 [N, 2], in pixels of images resized to a long side
        of image_size.

        Ignore regions are left out.
        """
        scale = np.repeat(image_size / self.sizes.max(1), np.diff(self.offsets))
        return (self.boxes_xywh[:, 2:] * scale[:, None])[~self.crowd]

    def boxes_per_image(self, percent: float) -> int:
        """Return the percentile of the number of boxes per image, ignore regions included. percent:
        0 to 100.
        """
        return int(np.percentile(np.diff(self.offsets), percent))

    def boxes_cxcywh_norm(self) -> np.ndarray:
        """Return all boxes as [N, 4] centre x, centre y, width, height, as fractions of the image's
        sides.
        """
        boxes: np.ndarray = self.boxes_xywh / np.tile(
            np.repeat(self.sizes, np.diff(self.offsets), 0), 2
        )
        boxes[:, :2] += boxes[:, 2:] / 2  # corner to centre
        return boxes

    def ground_truth(self) -> GroundTruth:
        """Return the boxes in the format of the evaluator."""
        image_ids = np.repeat(self.image_ids, np.diff(self.offsets))
        return GroundTruth(
            image_ids, self.classes.astype(np.int64), self.boxes_xywh, self.areas, self.crowd
        )

    def with_single_class(self) -> "Labels":
        """Return the same boxes, all of class 0, which keeps its category id."""
        values = self.arrays() | {
            "classes": np.zeros_like(self.classes),
            "category_ids": self.category_ids[:1],
        }
        return Labels(**values)

    def digest(self) -> str:
        """Return a text that is equal on two machines if they read the same images and boxes;
        folders do not matter.
        """
        digest = hashlib.sha256(
            os.fsencode("/".join(os.path.basename(self.path(i)) for i in range(len(self))))
        )
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
        points = [
            np.zeros((0, 2), np.float32) if row.points is None else row.points for row in self.rows
        ]
        return Labels(
            path_bytes=np.frombuffer(b"".join(self.paths), np.uint8).copy(),
            path_offsets=_offsets([len(path) for path in self.paths]),
            sizes=np.array(self.sizes, np.int32).reshape(-1, 2),
            image_ids=np.array(self.image_ids, np.int64),
            offsets=_offsets(self.row_counts),
            classes=np.array([row.class_index for row in self.rows], np.int32),
            boxes_xywh=np.array([row.box_xywh for row in self.rows], np.float64).reshape(-1, 4),
            areas=np.array([row.area for row in self.rows], np.float64),
            crowd=np.array([row.crowd for row in self.rows], np.bool_),
            points=np.concatenate(points) if points else np.zeros((0, 2), np.float32),
            point_offsets=_offsets([len(polygon) for polygon in points]),
            category_ids=np.array(category_ids, np.int64),
        )


def _offsets(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the start of each of the consecutive ranges, and the end of the last: int64
    [len(counts) + 1].

    >>> _offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _gather(offsets: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all elements of the ranges `chosen`, and the offsets of these ranges
    when concatenated.

    >>> [array.tolist() for array in _gather(np.array([0, 2, 2, 5]), np.array([2, 0]))]
    [[2, 3, 4, 0, 1], [0, 3, 5]]
    """
    counts = offsets[chosen + 1] - offsets[chosen]
    starts = _offsets(counts)
    shift = np.repeat(offsets[chosen] - starts[:-1], counts)
    return np.arange(starts[-1]) + shift, starts


def _check_offsets(name: str, offsets: np.ndarray, total: int) -> None:
    if offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise ValueError(f"Labels.{name} must increase from 0 to {total}")
