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
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from utils.metrics.records import Detections, GroundTruth, Ids

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
# all, small, medium, large; square pixels, ends included
AREA_RANGES = ((0.0, 1e10), (0.0, 1024.0), (1024.0, 9216.0), (9216.0, 1e10))
MAX_DETECTIONS = (1, 10, 100)
PAIRS_AT_ONCE = 1 << 20  # bounds the memory of one block of box pairs to about 100 MB


@dataclass(frozen=True)
class DetectionMatches:
    """What became of each detection: a true positive, a false positive, or not counted.

    A false positive is counted and not a true positive. Detections are ordered by class, then
    descending score, then image id, then input order.
    """

    rows: np.ndarray  # int64 [D], the detection's row in the given Detections
    classes: np.ndarray  # int64 [D], index into the sorted class ids
    ranks: np.ndarray  # int64 [D], 0 for the most confident of its image and class
    scores: np.ndarray  # float64 [D]
    true_positive: np.ndarray  # bool [A, T, D]
    counted: np.ndarray  # bool [A, T, D]
    truths: np.ndarray  # int64 [A, K], number of ground truths to find
    images: np.ndarray  # int64 [K], number of images with one of the first area range

    def top_k(self, limit: int) -> DetectionMatches:
        """Return these matches with at most `limit` detections per image and class.

        They are the same object if there are no more.
        """
        kept = self.ranks < limit
        if kept.all():
            return self
        return DetectionMatches(
            rows=self.rows[kept],
            classes=self.classes[kept],
            ranks=self.ranks[kept],
            scores=self.scores[kept],
            true_positive=self.true_positive[..., kept],
            counted=self.counted[..., kept],
            truths=self.truths,
            images=self.images,
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
    """Match the most confident detections of each image and class, as in COCOeval.evaluateImg.

    For each area range and each IoU threshold:

    - A ground truth is ignored if it is a crowd, or if its area is out of range.
    - Detections choose in turn, the most confident first. Each takes the free ground truth of
      highest IoU, if that reaches the threshold; of equal IoUs the last one.
    - An ignored ground truth is taken only if there is no other. A crowd stays free: it may be
      taken any number of times.
    - A detection that took an ignored ground truth is not counted. Neither is one that took none
      and whose own area is out of range.

    Args:
        truth, detections: rows of other images or classes are left out.
        image_ids, class_ids: those to evaluate, in any order.
        iou_thresholds: [T], above 0.
        area_ranges: [A] of (lowest, highest) square pixels, ends included.
        max_detections: limit per image and class.
    """
    images = np.unique(image_ids)
    classes = np.unique(class_ids)

    # The ground truths of each group (a class in an image), and which to ignore.
    truth_rows, truth_groups = _sorted_groups(truth.image_ids, truth.class_ids, images, classes)
    truth_boxes = truth.boxes_xywh[truth_rows]
    crowd = truth.crowd[truth_rows]
    ignored = crowd | _out_of_range(truth.areas[truth_rows], area_ranges)  # [A, G]

    # The detections of each group, the most confident first, up to the limit.
    rows, groups = _sorted_groups(
        detections.image_ids, detections.class_ids, images, classes, detections.scores
    )
    ranks = _position_in_run(groups)
    within_limit = ranks < max_detections
    rows = rows[within_limit]
    groups = groups[within_limit]
    ranks = ranks[within_limit]
    boxes = detections.boxes_xywh[rows]
    scores = detections.scores[rows]

    # The match of each detection at each area range and threshold.  [A, T, D]
    thresholds = np.asarray(iou_thresholds)
    pairs = overlapping_pairs(boxes, groups, truth_boxes, truth_groups, crowd, min(iou_thresholds))
    true_positive, took_ignored = _match_in_turns(pairs, groups, crowd, ignored, thresholds)

    # Detections that count, right or wrong.
    box_areas = boxes[:, 2] * boxes[:, 3]
    out_of_range = _out_of_range(box_areas, area_ranges)[:, None]  # [A, 1, D]
    counted = true_positive | ~(took_ignored | out_of_range)

    # Order by class, then score; stable, so equal scores stay in order of image, then rank.
    class_of = groups // max(len(images), 1)
    order = np.lexsort((-scores, class_of))

    truths, truth_images = _count_truths(truth_groups, ignored, len(images), len(classes))
    return DetectionMatches(
        rows=rows[order],
        classes=class_of[order],
        ranks=ranks[order],
        scores=scores[order],
        true_positive=true_positive[..., order],
        counted=counted[..., order],
        truths=truths,
        images=truth_images,
    )


class OverlappingPairs(NamedTuple):
    """Boxes that overlap, ordered by detection."""

    detection: np.ndarray  # int64 [P]
    truth: np.ndarray  # int64 [P]
    iou: np.ndarray  # float64 [P]


def overlapping_pairs(
    boxes_xywh: np.ndarray,
    groups: np.ndarray,
    truth_boxes_xywh: np.ndarray,
    truth_groups: np.ndarray,
    truth_crowd: np.ndarray,
    least_iou: float,
) -> OverlappingPairs:
    """Return the pairs of equal group with an IoU of at least `least_iou`.

    Args:
        boxes_xywh: float64 [D, 4].
        groups: int64 [D], in any order.
        truth_boxes_xywh: float64 [G, 4].
        truth_groups: int64 [G], sorted.
        truth_crowd: bool [G].
        least_iou: above 0.
    """
    # The ground truths of each detection's group.
    first_truth = np.searchsorted(truth_groups, groups, side="left")
    truth_count = np.searchsorted(truth_groups, groups, side="right") - first_truth

    # columns: contiguous, faster to index
    columns = boxes_xywh.T.copy()  # [4, D]
    truth_columns = truth_boxes_xywh.T.copy()  # [4, G]

    detections = [np.empty(0, np.int64)]
    truths = [np.empty(0, np.int64)]
    ious = [np.empty(0)]
    for start, stop in blocks_of(truth_count):
        # Every pair of equal group of these detections.
        owner, member = _expand(truth_count[start:stop])
        detection = owner + start
        truth = first_truth[detection] + member

        iou = box_iou(columns[:, detection], truth_columns[:, truth], truth_crowd[truth])
        overlapping = np.flatnonzero(iou >= least_iou)
        detections.append(detection[overlapping])
        truths.append(truth[overlapping])
        ious.append(iou[overlapping])
    return OverlappingPairs(
        np.concatenate(detections), np.concatenate(truths), np.concatenate(ious)
    )


def box_iou(boxes_xywh: np.ndarray, truth_xywh: np.ndarray, truth_crowd: np.ndarray) -> np.ndarray:
    """Return the IoU of each pair, float64 [P] in [0, 1].

    Boxes are [4, P], one column a pair. The union with a crowd is the detection alone, so that the
    result is the share of the detection inside the crowd.

    Source: bbIou of maskApi.c: the same operations in the same order, so that an IoU exactly at a
    threshold falls on the same side.

    >>> box, truth = np.array([[0.0], [0], [2], [2]]), np.array([[1.0], [0], [2], [2]])
    >>> box_iou(box, truth, np.array([False]))  # 2 / 6
    array([0.33333333])
    """
    left, top, width, height = boxes_xywh
    truth_left, truth_top, truth_width, truth_height = truth_xywh

    # Intersection.
    overlap_right = np.minimum(width + left, truth_width + truth_left)
    overlap_left = np.maximum(left, truth_left)
    overlap_width = overlap_right - overlap_left

    overlap_bottom = np.minimum(height + top, truth_height + truth_top)
    overlap_top = np.maximum(top, truth_top)
    overlap_height = overlap_bottom - overlap_top

    overlaps = (overlap_width > 0) & (overlap_height > 0)
    intersection = np.where(overlaps, overlap_width * overlap_height, 0.0)

    # Union.
    area = width * height
    truth_area = truth_width * truth_height
    union = np.where(truth_crowd, area, area + truth_area - intersection)
    return np.divide(intersection, union, out=np.zeros_like(intersection), where=intersection > 0)


def _sorted_groups(
    image_ids: np.ndarray,
    class_ids: np.ndarray,
    images: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of known image and class, and their groups, both int64 [n], by group.

    group = class index * number of images + image index.

    Args:
        image_ids, class_ids: [N], of all rows.
        images, classes: the known ids, sorted.
        scores: [N]; rows of a group are ordered by descending score. Without them their order is
            kept.
    """
    image_index, image_known = _index_in(images, image_ids)
    class_index, class_known = _index_in(classes, class_ids)
    rows = np.flatnonzero(image_known & class_known)
    groups = class_index[rows] * len(images) + image_index[rows]

    if scores is None:
        order = np.argsort(groups, kind="stable")
    else:
        order = np.lexsort((-scores[rows], groups))
    return rows[order], groups[order]


def _index_in(sorted_ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each value is in sorted_ids, int64 [n], and whether it is there, bool [n]."""
    if len(sorted_ids) == 0:
        index = np.zeros(len(values), np.int64)
        return index, np.zeros(len(values), bool)

    index = np.searchsorted(sorted_ids, values)
    index = np.minimum(index, len(sorted_ids) - 1)  # above all ids: any index, as it is not there
    return index, sorted_ids[index] == values


def _position_in_run(values: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2 ... within each run of equal values, int64 [n].

    >>> _position_in_run(np.array([4, 4, 4, 7, 9, 9]))
    array([0, 1, 2, 0, 0, 1])
    """
    start_of_run = np.searchsorted(values, values, side="left")
    return np.arange(len(values)) - start_of_run


def _expand(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the owner of each member and its position there, both int64 [sum of count].

    Owner i has count[i] members.

    >>> _expand(np.array([2, 0, 3]))
    (array([0, 0, 2, 2, 2]), array([0, 1, 0, 1, 2]))
    """
    owner = np.repeat(np.arange(len(count)), count)
    first_member = np.cumsum(count) - count
    position = np.arange(len(owner)) - np.repeat(first_member, count)
    return owner, position


def blocks_of(count: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of owners that have about PAIRS_AT_ONCE members each.

    count: of the members of each owner.
    """
    members = np.cumsum(count)
    total = int(members[-1]) if len(members) else 0
    members_before = np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE)  # of each edge
    edges = np.searchsorted(members, members_before).tolist()

    start = 0
    for stop in [*edges, len(count)]:
        if stop > start:
            yield start, stop
            start = stop


def _out_of_range(areas: np.ndarray, area_ranges: Sequence[tuple[float, float]]) -> np.ndarray:
    """Return whether each area is outside each range, bool [A, n]; both ends belong to a range."""
    ranges = np.asarray(area_ranges, dtype=np.float64).reshape(-1, 2)  # [A, 2]
    lowest = ranges[:, :1]
    highest = ranges[:, 1:]
    return (areas < lowest) | (areas > highest)


def _count_truths(
    groups: np.ndarray, ignored: np.ndarray, num_images: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of ground truths to find, int64 [A, K], and of images with one, int64 [K].

    Those to find are not ignored. Images are counted for the first area range.

    groups: int64 [G]. ignored: bool [A, G].
    """
    groups_per_class = max(num_images, 1)
    class_of = groups // groups_per_class

    truths = []
    for is_ignored in ignored:  # of each area range
        truths.append(np.bincount(class_of[~is_ignored], minlength=num_classes))

    occupied_groups = np.unique(groups[~ignored[0]])
    images = np.bincount(occupied_groups // groups_per_class, minlength=num_classes)
    return np.array(truths), images


def match_pairs(pairs: OverlappingPairs, groups: np.ndarray, num_truths: int) -> np.ndarray:
    """Return the ground truth that each detection takes, int64 [D], -1 for none.

    As in `match_detections`, of pairs that all overlap enough, without ignored ground truths.

    Args:
        pairs: of equal group. Of equal IoUs of a detection the last one is taken.
        groups: int64 [D], sorted; the detections of a group are in the order in which they choose.
        num_truths: G.
    """
    none_ignored = np.zeros(num_truths, bool)
    every_iou = np.zeros(1)
    truth_of = np.full(len(groups), -1)
    for match in _matches_in_turns(pairs, groups, none_ignored, none_ignored[None], every_iou):
        truth_of[match.detection] = match.truth
    return truth_of


def _match_in_turns(
    pairs: OverlappingPairs,
    groups: np.ndarray,
    crowd: np.ndarray,
    ignored: np.ndarray,
    thresholds: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return which detections took a ground truth to find, and which an ignored one.

    Both are bool [A, T, D]. Arguments: those of `_matches_in_turns`.
    """
    shape = len(ignored), len(thresholds), len(groups)
    true_positive = np.zeros(shape, bool)
    took_ignored = np.zeros(shape, bool)
    for area, threshold, detection, truth in _matches_in_turns(
        pairs, groups, crowd, ignored, thresholds
    ):
        is_ignored = ignored[area, truth]
        true_positive[area, threshold, detection] = ~is_ignored
        took_ignored[area, threshold, detection] = is_ignored
    return true_positive, took_ignored


class TurnMatches(NamedTuple):
    """The matches of a turn, N of them."""

    area: np.ndarray  # int64 [N], index of the area range
    threshold: np.ndarray  # int64 [N], index of the IoU threshold
    detection: np.ndarray  # int64 [N]
    truth: np.ndarray  # int64 [N]


def _matches_in_turns(
    pairs: OverlappingPairs,
    groups: np.ndarray,
    crowd: np.ndarray,
    ignored: np.ndarray,
    thresholds: np.ndarray,
) -> Iterator[TurnMatches]:
    """Yield the matches of the first detection of every group, of the second, and so on.

    Args:
        pairs: of detections and ground truths that overlap enough.
        groups: int64 [D], sorted.
        crowd: bool [G].
        ignored: bool [A, G].
        thresholds: float64 [T].
    """
    taken = np.zeros((len(ignored), len(thresholds), len(crowd)), bool)
    for turn in _turns(pairs, groups):
        # The best preference of each detection of this turn, 0 without any.  [A, T, detections]
        preference = _preference(turn, taken, ignored, thresholds)
        first_pair = np.flatnonzero(np.diff(turn.detection, prepend=-1))  # of each detection
        best = np.maximum.reduceat(preference, first_pair, axis=2)

        # The pair that has it: a preference is the position of its pair + 1, or that + P.
        area, threshold, chooser = np.nonzero(best)
        pair = (best[area, threshold, chooser] - 1) % len(turn.iou)
        truth = turn.truth[pair]

        # Each match takes its ground truth, unless that is a crowd.
        taken[area, threshold, truth] = ~crowd[truth]
        yield TurnMatches(area, threshold, turn.detection[pair], truth)


def _turns(pairs: OverlappingPairs, groups: np.ndarray) -> Iterator[OverlappingPairs]:
    """Yield the pairs of the first detection of every group, of the second, and so on.

    The pairs of a detection are in order of ascending IoU, those of equal IoU in the order of their
    ground truths. Detections without an overlap get no turn: they have no match and do not affect
    other matches.
    """
    by_iou = np.lexsort((pairs.iou, pairs.detection))

    # A detection's turn is its rank among the detections of its group that overlap something.
    overlapping, owner = np.unique(pairs.detection[by_iou], return_inverse=True)
    turn_of_detection = _position_in_run(groups[overlapping])
    turn = turn_of_detection[owner]  # of each pair

    order = by_iou[np.argsort(turn, kind="stable")]
    pairs_in_turn = np.bincount(turn)
    stops = np.cumsum(pairs_in_turn).tolist()
    for start, stop in pairwise([0, *stops]):
        chosen = order[start:stop]
        yield OverlappingPairs(pairs.detection[chosen], pairs.truth[chosen], pairs.iou[chosen])


def _preference(
    turn: OverlappingPairs, taken: np.ndarray, ignored: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """Return how much each pair's detection prefers the pair, int32 [A, T, P].

    0 if the pair cannot match. A higher IoU is preferred; pairs are in order of ascending IoU, so
    the preference is the position, from 1. A ground truth that is not ignored comes before any that
    is: P is added.

    taken: bool [A, T, G]. ignored: bool [A, G]. thresholds: float64 [T].
    """
    P = len(turn.iou)
    position = np.arange(1, P + 1, dtype=np.int32)
    bonus = np.where(ignored[:, turn.truth], 0, P).astype(np.int32)  # [A, P]
    preference = position + bonus

    reaches_threshold = turn.iou >= thresholds[:, None]  # [T, P]
    is_free = ~taken[:, :, turn.truth]  # [A, T, P]
    can_match = reaches_threshold & is_free
    return np.where(can_match, preference[:, None], 0)
