"""Match detections to ground truths, as COCO does.

All arrays are flat: one row per ground truth, detection or pair. A detection can match only ground
truths of its own group, which is one class in one image. All groups are matched at once, in turns:
turn n matches the n-th most confident detection of every group.

Legend: G ground truths, D detections, P pairs of the two, K classes, A area ranges, T IoU
thresholds. Boxes are xywh in pixels, float64, as in COCO's files.

Source: cocodataset/cocoapi, PythonAPI/pycocotools/cocoeval.py and common/maskApi.c (bbIou),
Simplified BSD License.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from utils.metrics.records import Detections, GroundTruth, Ids

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
# all, small, medium, large; ends included
AREA_RANGES = ((0.0, 1e10), (0.0, 1024.0), (1024.0, 9216.0), (9216.0, 1e10))
MAX_DETECTIONS = (1, 10, 100)
PAIRS_AT_ONCE = 1 << 20  # bounds the memory of one block of box pairs to about 100 MB


@dataclass(frozen=True)
class DetectionMatches:
    """The match of each detection, ordered by class, then descending score, then image id, then
    input order.

    rows: int64 [D], the detection's row in the given Detections. classes: int64 [D], index into the
    sorted class ids. ranks: int64 [D], 0 for the most confident of its image and class. scores:
    float64 [D]. true_positive, counted: bool [A, T, D]; one that is counted and not a true positive
    is a false positive. truths: int64 [A, K], number of ground truths to find. images: int64 [K],
    number of images with one of the first area range.
    """

    rows: np.ndarray
    classes: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    true_positive: np.ndarray
    counted: np.ndarray
    truths: np.ndarray
    images: np.ndarray

    def top_k(self, limit: int) -> DetectionMatches:
        """These matches with at most `limit` detections per image and class; the same object if
        there are no more.
        """
        kept = self.ranks < limit
        if kept.all():
            return self
        rows, classes, ranks, scores = (
            self.rows[kept],
            self.classes[kept],
            self.ranks[kept],
            self.scores[kept],
        )
        true_positive, counted = self.true_positive[..., kept], self.counted[..., kept]
        return DetectionMatches(
            rows, classes, ranks, scores, true_positive, counted, self.truths, self.images
        )


def match_detections(
    truth: GroundTruth,
    detections: Detections,
    *,
    image_ids: Ids,
    class_ids: Ids,
    iou_thresholds: Sequence[float] = IOU_THRESHOLDS,
    area_ranges: Sequence[tuple[float, float]] = AREA_RANGES,
    max_detections: int = MAX_DETECTIONS[-1],
) -> DetectionMatches:
    """Match the `max_detections` most confident detections of each image and class, as in
    COCOeval.evaluateImg.

    The most confident detection is matched first, to the unmatched ground truth of highest IoU; of
    equal IoUs, to the last one. A ground truth to be ignored (a crowd, or its area is out of range)
    is taken only if there is no other, and then the detection is not counted. A crowd may be
    matched any number of times. A detection without a match that is itself out of range is not
    counted either.
    """
    images, classes = np.unique(image_ids), np.unique(class_ids)
    truth_rows, truth_groups = _sorted_groups(truth.image_ids, truth.class_ids, images, classes)
    rows, groups = _sorted_groups(
        detections.image_ids, detections.class_ids, images, classes, detections.scores
    )
    ranks = _position_in_run(groups)
    rows, groups, ranks = (column[ranks < max_detections] for column in (rows, groups, ranks))

    boxes, truth_boxes, crowd = (
        detections.boxes_xywh[rows],
        truth.boxes_xywh[truth_rows],
        truth.crowd[truth_rows],
    )
    ignored = crowd | _out_of_range(truth.areas[truth_rows], area_ranges)  # [A, G]
    pairs = overlapping_pairs(boxes, groups, truth_boxes, truth_groups, crowd, min(iou_thresholds))
    found, uncounted = _match_in_turns(
        pairs, groups, crowd, ignored, np.asarray(iou_thresholds)
    )  # [A, T, D]
    counted = found | ~(uncounted | _out_of_range(boxes[:, 2] * boxes[:, 3], area_ranges)[:, None])

    class_of = groups // max(len(images), 1)
    scores = detections.scores[rows]
    # stable, so equal scores stay in order of image, then rank
    order = np.lexsort((-scores, class_of))
    truths, truth_images = _count_truths(truth_groups, ignored, len(images), len(classes))
    return DetectionMatches(
        rows=rows[order],
        classes=class_of[order],
        ranks=ranks[order],
        scores=scores[order],
        true_positive=found[..., order],
        counted=counted[..., order],
        truths=truths,
        images=truth_images,
    )


class Pairs(NamedTuple):
    """Boxes that overlap, ordered by detection: detection int64 [P], truth int64 [P], iou float64
    [P].
    """

    detection: np.ndarray
    truth: np.ndarray
    iou: np.ndarray


def overlapping_pairs(
    boxes_xywh: np.ndarray,
    groups: np.ndarray,
    truth_boxes_xywh: np.ndarray,
    truth_groups: np.ndarray,
    truth_crowd: np.ndarray,
    least_iou: float,
) -> Pairs:
    """Pairs of equal group with an IoU of at least `least_iou`, which is above 0.

    groups: int64 [D], in any order. truth_groups: int64 [G], sorted. boxes: float64 [D, 4] and [G,
    4].
    """
    first = np.searchsorted(truth_groups, groups, side="left")
    count = np.searchsorted(truth_groups, groups, side="right") - first
    # columns: contiguous, faster to index
    corners, truth_corners = boxes_xywh.T.copy(), truth_boxes_xywh.T.copy()
    blocks = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for start, stop in _blocks(count):
        detection, member = _expand(count[start:stop])
        truth = member + np.repeat(first[start:stop], count[start:stop])
        iou = box_iou(corners[:, detection + start], truth_corners[:, truth], truth_crowd[truth])
        near = np.flatnonzero(iou >= least_iou)
        blocks.append((detection[near] + start, truth[near], iou[near]))
    return Pairs(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def box_iou(boxes_xywh: np.ndarray, truth_xywh: np.ndarray, truth_crowd: np.ndarray) -> np.ndarray:
    """IoU of each pair, float64 [P] in [0, 1]; with a crowd, the fraction of the detection inside
    it.

    Boxes are [4, P], one column a pair. The operations and their order are bbIou's of maskApi.c, so
    that an IoU exactly at a threshold falls on the same side.

    >>> box, truth = np.array([[0.0], [0], [2], [2]]), np.array([[1.0], [0], [2], [2]])
    >>> box_iou(box, truth, np.array([False]))  # 2 / 6
    array([0.33333333])
    """
    left, top, width, height = boxes_xywh
    truth_left, truth_top, truth_width, truth_height = truth_xywh
    across = np.minimum(width + left, truth_width + truth_left) - np.maximum(left, truth_left)
    down = np.minimum(height + top, truth_height + truth_top) - np.maximum(top, truth_top)
    intersection = np.where((across > 0) & (down > 0), across * down, 0.0)
    area = width * height
    union = np.where(truth_crowd, area, area + truth_width * truth_height - intersection)
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=intersection > 0)


def _sorted_groups(
    image_ids: np.ndarray,
    class_ids: np.ndarray,
    images: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """rows and groups, int64 [n]: the rows of known image and class, ordered by group, then
    descending score.

    group = class index * number of images + image index.
    """
    image, image_known = _index_in(images, image_ids)
    kind, class_known = _index_in(classes, class_ids)
    rows = np.flatnonzero(image_known & class_known)
    groups = kind[rows] * len(images) + image[rows]
    order = (
        np.argsort(groups, kind="stable") if scores is None else np.lexsort((-scores[rows], groups))
    )
    return rows[order], groups[order]


def _index_in(sorted_ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of each value in sorted_ids, int64 [n], and whether sorted_ids contains it, bool
    [n].
    """
    if len(sorted_ids) == 0:
        return np.zeros(len(values), np.int64), np.zeros(len(values), bool)
    index = np.minimum(np.searchsorted(sorted_ids, values), len(sorted_ids) - 1)
    return index, sorted_ids[index] == values


def _position_in_run(values: np.ndarray) -> np.ndarray:
    """0, 1, 2 ... within each run of equal values, int64 [n].

    >>> _position_in_run(np.array([4, 4, 4, 7, 9, 9]))
    array([0, 1, 2, 0, 0, 1])
    """
    return np.arange(len(values)) - np.searchsorted(values, values, side="left")


def _expand(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Owner and position of each member, if owner i has count[i] members, both int64 [sum of
    count].

    >>> _expand(np.array([2, 0, 3]))
    (array([0, 0, 2, 2, 2]), array([0, 1, 0, 1, 2]))
    """
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)


def _blocks(count: np.ndarray) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of owners that cover all of them and have about PAIRS_AT_ONCE members
    each.
    """
    members = np.cumsum(count)
    total = int(members[-1]) if len(members) else 0
    edges = np.searchsorted(members, np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE)).tolist()
    start = 0
    for stop in [*edges, len(count)]:
        if stop > start:
            yield start, stop
            start = stop


def _out_of_range(areas: np.ndarray, area_ranges: Sequence[tuple[float, float]]) -> np.ndarray:
    """Whether each area is outside each range, bool [A, n]; both ends belong to a range."""
    low, high = (
        np.asarray(area_ranges, dtype=np.float64).reshape(-1, 2).T[:, :, None]
    )  # [A, 1] each
    return (areas < low) | (areas > high)


def _count_truths(
    groups: np.ndarray, ignored: np.ndarray, num_images: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Number of ground truths to find, int64 [A, K], and of images with one in the first area
    range, int64 [K].
    """
    class_of = groups // max(num_images, 1)
    truths = np.array([np.bincount(class_of[~row], minlength=num_classes) for row in ignored])
    occupied = np.unique(groups[~ignored[0]])
    return truths, np.bincount(occupied // max(num_images, 1), minlength=num_classes)


def _match_in_turns(
    pairs: Pairs, groups: np.ndarray, crowd: np.ndarray, ignored: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """found and uncounted, bool [A, T, D]: the detection matches a ground truth to find, or one to
    ignore.
    """
    A, T, D = len(ignored), len(thresholds), len(groups)
    found, uncounted = np.zeros((A, T, D), bool), np.zeros((A, T, D), bool)
    taken = np.zeros((A, T, len(crowd)), bool)
    for turn in _turns(pairs, groups):
        # where the pairs of one detection begin
        first = np.flatnonzero(np.diff(turn.detection, prepend=-1))
        best = np.maximum.reduceat(
            _preference(turn, taken, crowd, ignored, thresholds), first, axis=2
        )  # [A, T, turn's detections]
        area, threshold, owner = np.nonzero(best)
        pair = (best[area, threshold, owner] - 1) % len(turn.iou)
        truth, detection = turn.truth[pair], turn.detection[pair]
        taken[area, threshold, truth] = ~crowd[truth]
        found[area, threshold, detection] = ~ignored[area, truth]
        uncounted[area, threshold, detection] = ignored[area, truth]
    return found, uncounted


def _turns(pairs: Pairs, groups: np.ndarray) -> Iterator[Pairs]:
    """The pairs of turn 0, 1 ...: at most one detection of each group, its pairs by ascending IoU,
    then order of truth.

    Detections without an overlap get no turn: they have no match and do not affect other matches.
    """
    by_iou = np.lexsort((pairs.iou, pairs.detection))
    overlapping, owner = np.unique(pairs.detection[by_iou], return_inverse=True)
    turn = _position_in_run(groups[overlapping])[owner]
    order = by_iou[np.argsort(turn, kind="stable")]
    stops = np.cumsum(np.bincount(turn)).tolist()
    for start, stop in zip([0, *stops], stops, strict=False):
        yield Pairs(*(column[order[start:stop]] for column in pairs))


def _preference(
    turn: Pairs, taken: np.ndarray, crowd: np.ndarray, ignored: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """The preference of each pair's detection for the pair, int32 [A, T, P]: 0 if it cannot match,
    higher is better.

    Pairs are in order of ascending IoU, so the position is the preference; a ground truth that is
    not ignored comes before any that is.
    """
    P = len(turn.iou)
    near = turn.iou >= thresholds[:, None]  # [T, P]
    rank = np.arange(1, P + 1, dtype=np.int32) + np.where(ignored[:, turn.truth], 0, P).astype(
        np.int32
    )  # [A, P]
    return np.where(near & ~taken[:, :, turn.truth], rank[:, None], 0)
