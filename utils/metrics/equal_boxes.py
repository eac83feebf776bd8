"""Find boxes that are nearly equal to an earlier one of their image.

In an image with many boxes, each is compared only with those of about its place and size, and only
until one is found: the time and the memory do not grow with the square of the boxes, as a thousand
copies of one box would make them.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from utils.metrics.matching import blocks_of, box_iou, overlapping_pairs

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

CROWD = 300  # boxes of an image; up to here all pairs are compared, which is faster
AT_ONCE = 32  # boxes that a box is compared with, before it is known whether one was found
MARGIN = 1 + 1e-6  # for rounding: cells are a little larger than they have to be
SMALLEST_SIDE = 1e-9  # smaller ones have the cells of this one
PRIMES = (73856093, 19349663, 83492791, 2654435761)  # to mix four whole numbers


class EqualBoxes(NamedTuple):
    """Boxes that are nearly equal to an earlier one of their image, K of them."""

    box: Ids  # [K], ascending
    earlier: Ids  # [K], the first that it is equal to
    iou: Floats  # [K]


def first_equal(boxes_xywh: Floats, images: Ids, least_iou: float) -> EqualBoxes:
    """Return the boxes that are nearly equal to an earlier one, with the first that they equal.

    Args:
        boxes_xywh: float64 [N, 4].
        images: int64 [N], sorted.
        least_iou: of nearly equal boxes, above 0.
    """
    starts = np.flatnonzero(np.diff(images, prepend=-1))
    counts = np.diff(starts, append=len(images))
    rows = np.arange(len(images))

    # Images with few boxes, many at once; the others one after another.
    is_crowd = counts > CROWD
    groups = list(_groups(rows[~np.repeat(is_crowd, counts)], counts[~is_crowd]))
    found = [_among_all(boxes_xywh[group], images[group], least_iou) for group in groups]
    for start, count in zip(starts[is_crowd].tolist(), counts[is_crowd].tolist(), strict=True):
        group = rows[start : start + count]
        groups.append(group)
        found.append(_in_crowd(boxes_xywh[group], least_iou))

    # In the numbers of all boxes.
    no_box = np.empty(0, np.int64)
    box = [group[part.box] for group, part in zip(groups, found, strict=True)]
    earlier = [group[part.earlier] for group, part in zip(groups, found, strict=True)]
    box_of_all = np.concatenate([no_box, *box])
    order = np.argsort(box_of_all)
    return EqualBoxes(
        box_of_all[order],
        np.concatenate([no_box, *earlier])[order],
        np.concatenate([np.empty(0), *(part.iou for part in found)])[order],
    )


def _groups(rows: Ids, counts: Ids) -> Iterator[Ids]:
    """Yield the rows of some images at a time. counts: the number of rows of each image."""
    ends = np.concatenate([[0], np.cumsum(counts)])
    for start, stop in blocks_of(counts * counts):
        yield rows[ends[start] : ends[stop]]


def _among_all(boxes_xywh: Floats, images: Ids, least_iou: float) -> EqualBoxes:
    """Return what `first_equal` does, from all pairs."""
    no_crowd = np.zeros(len(images), bool)
    pairs = overlapping_pairs(boxes_xywh, images, boxes_xywh, images, no_crowd, least_iou)
    later = np.flatnonzero(pairs.detection > pairs.truth)
    box, first = np.unique(pairs.detection[later], return_index=True)
    chosen = later[first]
    return EqualBoxes(box, pairs.truth[chosen], pairs.iou[chosen])


# ------------------------------------------------------------------------- an image with many boxes


def _in_crowd(boxes_xywh: Floats, least_iou: float) -> EqualBoxes:
    """Return what `first_equal` does, of one image."""
    count = len(boxes_xywh)
    columns = boxes_xywh.T.copy()  # [4, N], contiguous, faster to index
    earlier = np.arange(count)  # of each box the first that it is equal to; itself for none
    iou = np.zeros(count)

    for candidates in _neighbors(boxes_xywh, least_iou):
        # Candidates are in order: those from the box itself on, or from the one found, are no use.
        place = candidates.start.copy()
        active = np.flatnonzero(place < candidates.stop)
        while len(active):
            positions = place[active, None] + np.arange(AT_ONCE)  # [A, AT_ONCE]
            inside = positions < candidates.stop[active, None]
            other = candidates.boxes[np.where(inside, positions, 0)]
            useful = inside & (other < earlier[active, None])

            row, column = np.nonzero(useful)
            compared = np.zeros(useful.shape)
            pair = active[row], other[row, column]
            no_crowd = np.zeros(len(row), bool)
            compared[row, column] = box_iou(columns[:, pair[0]], columns[:, pair[1]], no_crowd)

            is_equal = compared >= least_iou
            is_found = is_equal.any(1)
            first = is_equal.argmax(1)[is_found]
            earlier[active[is_found]] = other[is_found, first]
            iou[active[is_found]] = compared[is_found, first]

            place[active] += AT_ONCE
            active = active[~is_found & useful[:, -1]]

    box = np.flatnonzero(earlier < np.arange(count))
    return EqualBoxes(box, earlier[box], iou[box])


class _Candidates(NamedTuple):
    """For each of N boxes those in one of the cells around it: boxes[start:stop], ascending."""

    boxes: Ids  # [N]
    start: Ids  # [N]
    stop: Ids  # [N]


def _neighbors(boxes_xywh: Floats, least_iou: float) -> Iterator[_Candidates]:
    """Yield the boxes in the cell of each box, then in its neighbors, of a grid over four numbers.

    They are the levels of width and of height, whose cells grow by 1 / least_iou, and the left and
    the upper edge, whose cells are as large as edges of equal boxes differ at most. With an
    intersection of at least least_iou of both boxes, neither side of one is shorter than least_iou
    of the other's, and the edges differ by at most (1 - least_iou) of the longer one. So equal
    boxes are in the same cell, or in neighbors. Boxes of cells further away may come along, where
    mixed numbers are equal.
    """
    growth = MARGIN / least_iou
    sides = np.maximum(boxes_xywh[:, 2:], SMALLEST_SIDE)
    level = np.floor(np.log(sides) / np.log(growth)).astype(np.int64)  # [N, 2]

    def cell(level: Ids) -> Ids:
        """Return the cell of the edges, [N, 2], in the grid for boxes of these levels."""
        longest = growth ** (level + 2.0)  # a side of this level, or of the next one
        return np.floor(boxes_xywh[:, :2] / ((1 - least_iou) * longest)).astype(np.int64)

    def key(level: Ids, edge: Ids) -> Ids:
        numbers = np.concatenate([level, edge], 1)
        return (numbers * np.array(PRIMES)).sum(1)

    keys = key(level, cell(level))
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    steps = sorted(product((0, -1, 1), repeat=4), key=np.count_nonzero)
    for step in steps:
        near = level + step[:2]
        wanted = key(near, cell(near) + step[2:])
        start = np.searchsorted(sorted_keys, wanted, side="left")
        stop = np.searchsorted(sorted_keys, wanted, side="right")
        yield _Candidates(order, start, stop)
