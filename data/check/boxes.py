"""Box sizes against the strides of a model; boxes outside, tiny, twice, or of extreme shape."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.check.findings import (
    LABEL,
    WARNING,
    Box,
    Example,
    Finding,
    Mark,
    Picture,
    Table,
    share,
)
from data.check.reading import Examined, Split
from utils.metrics.equal_boxes import first_equal
from utils.printable import excerpt

MOST_LISTED = 1000  # places of a finding in the JSON file
SMALLEST_STRIDE = 8  # px: the cells of the finest level of most models
TINY_PX = 2.0  # augmentation drops boxes with a shorter side (utils/metrics/anchors.py)
OUTSIDE_PX = 1.0  # boxes of files that are not clipped, as COCO JSON, reach out further than that
SAME_IOU = 0.9  # of two boxes that are one
EXTREME_RATIO = 20.0  # of the long side to the short one
PERCENTILES = (5, 25, 50, 75, 95)


class Row(NamedTuple):
    """A box of a split: the number of its image, and its own among those of the image."""

    split: Split
    image: int
    row: int

    @property
    def number(self) -> int:
        """Its number among all boxes of the split."""
        return int(self.split.labels.offsets[self.image]) + self.row

    @property
    def path(self) -> str:
        return self.split.labels.path(self.image)

    @property
    def box_xywh(self) -> Box:
        x, y, width, height = self.split.labels.boxes_xywh[self.number].tolist()
        return x, y, width, height

    @property
    def class_id(self) -> int:
        return int(self.split.labels.classes[self.number])

    def class_name(self, examined: Examined) -> str:
        """Return the name of its class, ready to print."""
        return excerpt(examined.names[self.class_id])


def box_example(
    examined: Examined, row: Row, what: str, *marks: Mark, score: float | None = None
) -> Example:
    """Return an example that shows a box.

    Args:
        examined: the data set.
        row: the box.
        what: is said of it.
        marks: further boxes in the picture.
        score: how sure the finding is.
    """
    picture = Picture(row.path, (Mark(row.box_xywh, LABEL), *marks))
    where = examined.place_of(row.split, row.image, row.row)
    return Example(where, what, row.path, row.box_xywh, score, (picture,))


# ---------------------------------------------------------------------------------------- sizes


def size_table(examined: Examined) -> Table:
    """Return the box sizes of each split at the size of training, against the finest stride."""
    rows = []
    for split in examined.splits:
        sides = sides_at(split, examined.image_size)
        if not len(sides):
            continue

        percentiles = [f"{value:.0f}" for value in np.percentile(sides, PERCENTILES)]

        bounds = [0, SMALLEST_STRIDE, 2 * SMALLEST_STRIDE, 4 * SMALLEST_STRIDE, np.inf]
        counts, _ = np.histogram(sides, bounds)
        shares = [share(count, len(sides)) for count in counts.tolist()]

        rows.append((split.name, *percentiles, *shares))

    percentile_names = [f"{percent}%" for percent in PERCENTILES]
    share_names = ("< 8 px", "8-16", "16-32", "> 32")
    header = ("split", *percentile_names, *share_names)

    title = f"Box sizes at {examined.image_size} px"
    note = (
        "Square roots of areas, in pixels: percentiles, and shares. A cell of the finest level of "
        "most models has 8 px, so that a smaller box has less than one cell."
    )
    return Table(title, header, tuple(rows), note)


def sides_at(split: Split, image_size: int) -> NDArray[np.float64]:
    """Return the square roots of the areas of boxes, in pixels of images resized to a long side."""
    sides: NDArray[np.float64] = np.sqrt(split.labels.box_sizes(image_size).prod(1))
    return sides


# ------------------------------------------------------------------------------------ bad boxes


def check_boxes(examined: Examined) -> list[Finding]:
    """Return findings about single boxes, and about pairs of boxes in one image."""
    findings = [
        _outside(examined),
        _tiny(examined),
        _extreme(examined),
        *_twice(examined),
    ]
    return [finding for finding in findings if finding.count]


def _outside(examined: Examined) -> Finding:
    """Return the boxes that reach out of their images: readers clip those of most formats."""
    count = 0
    chosen = []
    for split in examined.splits:
        labels = split.labels
        sizes = labels.sizes[labels.row_images]
        ends = labels.boxes_xywh[:, :2] + labels.boxes_xywh[:, 2:]
        beyond = np.maximum(-labels.boxes_xywh[:, :2], ends - sizes).max(1, initial=0)
        numbers = np.flatnonzero((beyond > OUTSIDE_PX) & ~labels.crowd)
        count += len(numbers)
        for row in _rows(split, numbers[:MOST_LISTED]):
            chosen.append((row, f"reaches {beyond[row.number]:.0f} px out of the image"))
    return _box_finding(
        examined,
        "boxes-outside",
        "that may belong to another image: out of it by more than a pixel",
        "clip them, or look whether the labels are those of an image of another size",
        count,
        chosen,
    )


def _tiny(examined: Examined) -> Finding:
    """Return the boxes that augmentation drops because of their size."""
    count = 0
    chosen = []
    for split in examined.splits:
        labels = split.labels
        scale = examined.image_size / labels.sizes.max(1)
        resized = labels.boxes_xywh[:, 2:] * scale[labels.row_images, None]
        short = np.minimum(labels.boxes_xywh[:, 2:], resized).min(1, initial=np.inf)
        numbers = np.flatnonzero((short < TINY_PX) & ~labels.crowd)
        count += len(numbers)
        for row in _rows(split, numbers[:MOST_LISTED]):
            _, _, width, height = row.box_xywh
            size = f"{row.class_name(examined)}, {width:.1f} x {height:.1f} px"
            chosen.append((row, f"{size} in the image, {_size_text(resized[row.number])} resized"))
    return _box_finding(
        examined,
        "boxes-tiny",
        f"with a side below {TINY_PX:.0f} px, in the image or at {examined.image_size} px",
        "often slips of the mouse: remove them; if they are objects, use a larger --img or --tile",
        count,
        chosen,
    )


def _size_text(size: NDArray[np.float64]) -> str:
    width, height = size.tolist()
    return f"{width:.1f} x {height:.1f}"


def _extreme(examined: Examined) -> Finding:
    """Return the boxes that are much longer than wide, or wider."""
    count = 0
    chosen = []
    for split in examined.splits:
        labels = split.labels
        sides = labels.boxes_xywh[:, 2:]
        longer = sides.max(1, initial=0)
        shorter = sides.min(1, initial=np.inf)
        ratio = longer / np.maximum(shorter, 1e-9)
        is_tiny = shorter < TINY_PX  # reported as such

        extreme = (ratio > EXTREME_RATIO) & ~is_tiny & ~labels.crowd
        numbers = np.flatnonzero(extreme)
        count += len(numbers)
        for row in _rows(split, numbers[:MOST_LISTED]):
            _, _, width, height = row.box_xywh
            size = f"{width:.0f} x {height:.0f} px"
            what = f"{row.class_name(examined)}, {size}, 1 to {ratio[row.number]:.0f}"
            chosen.append((row, what))

    return _box_finding(
        examined,
        "boxes-extreme",
        f"more than {EXTREME_RATIO:.0f} times as long as wide",
        "look at them: upright boxes around slanted lines, or slips; few models find such boxes",
        count,
        chosen,
    )


def _box_finding(
    examined: Examined,
    check: str,
    title: str,
    advice: str,
    count: int,
    chosen: list[tuple[Row, str]],
) -> Finding:
    """Return a warning about boxes, each with what is said of it.

    Args:
        examined: the data set.
        check, title, advice, count: of the finding.
        chosen: the first boxes.
    """
    listed = chosen[:MOST_LISTED]
    examples = tuple(box_example(examined, row, what) for row, what in listed)
    return Finding(check, WARNING, "box", title, count, advice, examples)


# ----------------------------------------------------------------------------------- pairs of boxes


def _twice(examined: Examined) -> list[Finding]:
    """Return the boxes that are nearly equal to an earlier one of their image."""
    same: list[Example] = []
    other: list[Example] = []
    same_count = other_count = 0

    for split in examined.splits:
        for earlier, row, overlap in _equal_pairs(split):
            is_same = row.class_id == earlier.class_id
            same_count += is_same
            other_count += not is_same

            examples = same if is_same else other
            if len(examples) < MOST_LISTED:
                before = examined.place_of(split, earlier.image, earlier.row)
                what = f"{row.class_name(examined)}, IoU {overlap:.2f} with {before}"
                if not is_same:
                    what += f", {earlier.class_name(examined)}"
                examples.append(box_example(examined, row, what, Mark(earlier.box_xywh, LABEL)))

    iou = f"IoU above {SAME_IOU}"
    return [
        Finding(
            "boxes-twice",
            WARNING,
            "box",
            f"nearly equal to one of the same class ({iou}): an object that is labeled twice",
            same_count,
            "remove one of each pair: a model is punished for finding the object once",
            tuple(same),
        ),
        Finding(
            "boxes-of-two-classes",
            WARNING,
            "box",
            f"nearly equal to one of another class ({iou})",
            other_count,
            "remove the wrong one, unless an object may have two classes",
            tuple(other),
        ),
    ]


def _equal_pairs(split: Split) -> Iterator[tuple[Row, Row, float]]:
    """Yield earlier row, later row and IoU of boxes of one image that are nearly equal.

    Each later box comes once, with the first that it is equal to.
    """
    labels = split.labels
    objects = np.flatnonzero(~labels.crowd)
    boxes = labels.boxes_xywh[objects]
    image_of = labels.row_images[objects]
    found = first_equal(boxes, image_of, SAME_IOU)
    firsts = objects[found.earlier]
    seconds = objects[found.box]
    ious = found.iou.tolist()
    yield from zip(_rows(split, firsts), _rows(split, seconds), ious, strict=True)


def _rows(split: Split, numbers: NDArray[np.int64]) -> Iterator[Row]:
    """Yield boxes, given their numbers among all of the split."""
    offsets = split.labels.offsets
    images = np.searchsorted(offsets, numbers, side="right") - 1
    for number, image in zip(numbers.tolist(), images.tolist(), strict=True):
        yield Row(split, image, number - int(offsets[image]))
