"""COCO's average precision and average recall for boxes: the numbers of pycocotools' COCOeval, without its loops.

    python -m utils.metrics GT.json DT.json [--json]

Everything is flat: one row per ground truth, detection or pair. A detection meets only the ground truths of its own
group, which is one class in one image. All groups are matched at once, in turns: in turn n every group decides on its
n-th most confident detection.

Legend: G ground truths, D detections, P pairs of the two, K classes, A area ranges, T IoU thresholds, R recall points,
M limits on detections per image and class. Boxes are xywh in pixels, float64, as in COCO's files.

Source: cocodataset/cocoapi, PythonAPI/pycocotools/cocoeval.py and common/maskApi.c (bbIou), Simplified BSD License.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from utils.printable import shown

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
RECALL_POINTS = tuple(np.linspace(0.0, 1.0, 101).tolist())
AREA_RANGES = ((0.0, 1e10), (0.0, 1024.0), (1024.0, 9216.0), (9216.0, 1e10))  # all, small, medium, large; ends included
MAX_DETECTIONS = (1, 10, 100)
PAIRS_AT_ONCE = 1 << 20  # bounds the memory of one block of box pairs to about 100 MB

Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class GroundTruth:
    """The boxes that should be found. Crowd boxes are regions: what is found in them is neither right nor wrong.

    image_ids, class_ids: int64 [G]. boxes_xywh: float64 [G, 4], pixels. areas: float64 [G], square pixels, which sort
    the boxes into small, medium and large, and may differ from width times height. crowd: bool [G].
    Raises: ValueError if the lengths differ or a number is not finite.
    """

    image_ids: np.ndarray
    class_ids: np.ndarray
    boxes_xywh: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray

    def __post_init__(self) -> None:
        _settle_columns(self, {"areas": np.float64, "crowd": np.bool_})


@dataclass(frozen=True)
class Detections:
    """The boxes that were found.

    image_ids, class_ids: int64 [D]. boxes_xywh: float64 [D, 4], pixels. scores: float64 [D], higher is surer.
    Raises: ValueError if the lengths differ or a number is not finite.
    """

    image_ids: np.ndarray
    class_ids: np.ndarray
    boxes_xywh: np.ndarray
    scores: np.ndarray

    def __post_init__(self) -> None:
        _settle_columns(self, {"scores": np.float64})


@dataclass(frozen=True)
class Matches:
    """What became of each detection, ordered by class, then falling score, then image id, then the order they came in.

    rows: int64 [D], the detection's row in the Detections given. classes: int64 [D], index into the sorted class ids.
    ranks: int64 [D], 0 for the surest of its image and class. scores: float64 [D].
    true_positive, counted: bool [A, T, D]; what is counted and not a true positive is a false positive.
    truths: int64 [A, K], how many ground truths ask to be found.
    images: int64 [K], how many images hold one of the first area range.
    """

    rows: np.ndarray
    classes: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    true_positive: np.ndarray
    counted: np.ndarray
    truths: np.ndarray
    images: np.ndarray

    def surest(self, limit: int) -> Matches:
        """These matches with at most `limit` detections per image and class; the same object if there are no more."""
        kept = self.ranks < limit
        if kept.all():
            return self
        rows, classes, ranks, scores = self.rows[kept], self.classes[kept], self.ranks[kept], self.scores[kept]
        true_positive, counted = self.true_positive[..., kept], self.counted[..., kept]
        return Matches(rows, classes, ranks, scores, true_positive, counted, self.truths, self.images)


@dataclass(frozen=True)
class CocoResult:
    """COCO's numbers; -1 where there was no ground truth to find.

    stats: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl in [0, 1] or -1.
    class_ids: int64 [K], sorted. precision: float64 [T, R, K, A, M]. recall: float64 [T, K, A, M]. As COCOeval.eval.
    images, instances: int64 [K], images with a ground truth of the class, and those ground truths, crowds left out.
    """

    stats: dict[str, float]
    class_ids: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    images: np.ndarray
    instances: np.ndarray

    @property
    def ap_per_iou(self) -> list[float]:
        """AP at each of the ten IoU thresholds .50, .55 ... .95."""
        return [_mean_of_known(at_threshold[:, :, 0, -1]) for at_threshold in self.precision]

    @property
    def per_class(self) -> dict[int, dict[str, float]]:
        """The twelve numbers of each class, by class id, with `images` and `instances` beside them."""
        table = {}
        for k, class_id in enumerate(self.class_ids.tolist()):
            numbers = summarize(self.precision[:, :, k : k + 1], self.recall[:, k : k + 1])
            table[class_id] = numbers | {"images": int(self.images[k]), "instances": int(self.instances[k])}
        return table


def evaluate_boxes(truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids) -> CocoResult:
    """COCO's numbers of the detections against the truth, over the images and classes named; other rows are left out.

    >>> truth = GroundTruth([7], [0], [[10, 10, 50, 50]], [2500], [False])
    >>> found = Detections([7, 7], [0, 0], [[10, 10, 50, 50], [300, 300, 9, 9]], [0.8, 0.9])
    >>> evaluate_boxes(truth, found, image_ids=[7], class_ids=[0]).stats["AP"]  # the false one came first
    0.5
    """
    matches = match_detections(truth, detections, image_ids=image_ids, class_ids=class_ids)
    precision, recall = precision_and_recall(matches)
    stats = summarize(precision, recall)
    return CocoResult(
        stats, np.unique(class_ids).astype(np.int64), precision, recall, matches.images, matches.truths[0]
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
) -> Matches:
    """What becomes of the `max_detections` surest detections of each image and class, as in COCOeval.evaluateImg.

    The surest detection chooses first: the overlapping ground truth of highest IoU that is still free, the last one of
    equals. One that is to be ignored (a crowd, or its area is out of range) is chosen only if there is no other, and
    then the detection does not count. A crowd may be chosen any number of times. A detection that finds nothing and is
    itself out of range does not count either.
    """
    images, classes = np.unique(image_ids), np.unique(class_ids)
    truth_rows, truth_groups = _sorted_groups(truth.image_ids, truth.class_ids, images, classes)
    rows, groups = _sorted_groups(detections.image_ids, detections.class_ids, images, classes, detections.scores)
    ranks = _position_in_run(groups)
    rows, groups, ranks = (column[ranks < max_detections] for column in (rows, groups, ranks))

    boxes, truth_boxes, crowd = detections.boxes_xywh[rows], truth.boxes_xywh[truth_rows], truth.crowd[truth_rows]
    ignored = crowd | _out_of_range(truth.areas[truth_rows], area_ranges)  # [A, G]
    pairs = overlapping_pairs(boxes, groups, truth_boxes, truth_groups, crowd, min(iou_thresholds))
    found, excused = _match_in_turns(pairs, groups, crowd, ignored, np.asarray(iou_thresholds))  # [A, T, D]
    counted = found | ~(excused | _out_of_range(boxes[:, 2] * boxes[:, 3], area_ranges)[:, None])

    class_of = groups // max(len(images), 1)
    scores = detections.scores[rows]
    order = np.lexsort((-scores, class_of))  # stable, so equal scores stay in order of image, then rank
    truths, holding_images = _count_truths(truth_groups, ignored, len(images), len(classes))
    return Matches(
        rows=rows[order],
        classes=class_of[order],
        ranks=ranks[order],
        scores=scores[order],
        true_positive=found[..., order],
        counted=counted[..., order],
        truths=truths,
        images=holding_images,
    )


class Pairs(NamedTuple):
    """Boxes that overlap, ordered by detection: detection int64 [P], truth int64 [P], iou float64 [P]."""

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

    groups: int64 [D], in any order. truth_groups: int64 [G], sorted. boxes: float64 [D, 4] and [G, 4].
    """
    first = np.searchsorted(truth_groups, groups, side="left")
    count = np.searchsorted(truth_groups, groups, side="right") - first
    corners, truth_corners = boxes_xywh.T.copy(), truth_boxes_xywh.T.copy()  # columns: contiguous to gather from
    blocks = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for start, stop in _blocks(count):
        detection, member = _expand(count[start:stop])
        truth = member + np.repeat(first[start:stop], count[start:stop])
        iou = box_iou(corners[:, detection + start], truth_corners[:, truth], truth_crowd[truth])
        near = np.flatnonzero(iou >= least_iou)
        blocks.append((detection[near] + start, truth[near], iou[near]))
    return Pairs(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def box_iou(boxes_xywh: np.ndarray, truth_xywh: np.ndarray, truth_crowd: np.ndarray) -> np.ndarray:
    """IoU of each pair, float64 [P] in [0, 1]; with a crowd, the share of the detection inside it.

    Boxes are [4, P], one column a pair. The operations and their order are bbIou's of maskApi.c, so that an IoU exactly
    at a threshold falls on the same side.

    >>> box_iou(np.array([[0.0], [0], [2], [2]]), np.array([[1.0], [0], [2], [2]]), np.array([False]))  # 2 / 6
    array([0.33333333])
    """
    left, top, width, height = boxes_xywh
    truth_left, truth_top, truth_width, truth_height = truth_xywh
    across = np.minimum(width + left, truth_width + truth_left) - np.maximum(left, truth_left)
    down = np.minimum(height + top, truth_height + truth_top) - np.maximum(top, truth_top)
    shared = np.where((across > 0) & (down > 0), across * down, 0.0)
    area = width * height
    whole = np.where(truth_crowd, area, area + truth_width * truth_height - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=shared > 0)


def precision_and_recall(matches: Matches, limits: Sequence[int] = MAX_DETECTIONS) -> tuple[np.ndarray, np.ndarray]:
    """precision float64 [T, R, K, A, M] at RECALL_POINTS, and recall float64 [T, K, A, M]; -1 without ground truth.

    `limits` must rise.
    Source: COCOeval.accumulate. Precision at a recall is the best precision at that recall or a higher one.
    """
    A, T, _ = matches.true_positive.shape
    K = matches.truths.shape[1]
    precision = np.full((T, len(RECALL_POINTS), K, A, len(limits)), -1.0)
    recall = np.full((T, K, A, len(limits)), -1.0)
    for m in reversed(range(len(limits))):
        fewer = matches.surest(limits[m])
        if fewer is matches and m + 1 < len(limits):
            precision[..., m], recall[..., m] = precision[..., m + 1], recall[..., m + 1]
        else:
            _fill_curves(fewer, precision[..., m], recall[..., m])
        matches = fewer
    return precision, recall


def summarize(precision: np.ndarray, recall: np.ndarray) -> dict[str, float]:
    """COCO's twelve numbers from precision [10, 101, K, 4, 3] and recall [10, K, 4, 3]; -1 where nothing is known."""
    average = {
        "AP": precision[..., 0, 2],
        "AP50": precision[0, ..., 0, 2],
        "AP75": precision[5, ..., 0, 2],
        "APs": precision[..., 1, 2],
        "APm": precision[..., 2, 2],
        "APl": precision[..., 3, 2],
        "AR1": recall[..., 0, 0],
        "AR10": recall[..., 0, 1],
        "AR100": recall[..., 0, 2],
        "ARs": recall[..., 1, 2],
        "ARm": recall[..., 2, 2],
        "ARl": recall[..., 3, 2],
    }
    return {name: _mean_of_known(values) for name, values in average.items()}


def format_summary(stats: Mapping[str, float]) -> str:
    """Twelve lines: name, value, what it means.

    >>> print(format_summary(dict.fromkeys(SUMMARY_MEANING, 0.5)).splitlines()[1])
    AP50    0.5000  average precision, IoU 0.50, all areas, 100 detections
    """
    return "\n".join(f"{name:<6} {stats[name]:7.4f}  {meaning}" for name, meaning in SUMMARY_MEANING.items())


SUMMARY_MEANING = {
    "AP": "average precision, IoU 0.50:0.95, all areas, 100 detections",
    "AP50": "average precision, IoU 0.50, all areas, 100 detections",
    "AP75": "average precision, IoU 0.75, all areas, 100 detections",
    "APs": "average precision, IoU 0.50:0.95, small (up to 32² px), 100 detections",
    "APm": "average precision, IoU 0.50:0.95, medium (32² to 96² px), 100 detections",
    "APl": "average precision, IoU 0.50:0.95, large (from 96² px), 100 detections",
    "AR1": "average recall, IoU 0.50:0.95, all areas, 1 detection",
    "AR10": "average recall, IoU 0.50:0.95, all areas, 10 detections",
    "AR100": "average recall, IoU 0.50:0.95, all areas, 100 detections",
    "ARs": "average recall, IoU 0.50:0.95, small (up to 32² px), 100 detections",
    "ARm": "average recall, IoU 0.50:0.95, medium (32² to 96² px), 100 detections",
    "ARl": "average recall, IoU 0.50:0.95, large (from 96² px), 100 detections",
}


# Rows and groups


def _settle_columns(record: GroundTruth | Detections, own_columns: Mapping[str, Any]) -> None:
    """Give each column of a frozen record its type; raise ValueError if lengths, shapes or numbers cannot be."""
    rows = len(record.image_ids)
    shared_columns = {"image_ids": np.int64, "class_ids": np.int64, "boxes_xywh": np.float64}
    for name, dtype in (shared_columns | dict(own_columns)).items():
        values = np.asarray(getattr(record, name), dtype=dtype)
        shape = (rows, 4) if name == "boxes_xywh" else (rows,)
        if rows == 0:
            values = values.reshape(shape)
        if values.shape != shape:
            raise ValueError(
                f"{type(record).__name__}.{name} has shape {values.shape}, but image_ids asks for {shape}."
            )
        if values.dtype == np.float64 and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0])
            raise ValueError(f"{type(record).__name__}.{name} row {row} is {values[row]}, but must be finite.")
        object.__setattr__(record, name, values)


def _sorted_groups(
    image_ids: np.ndarray,
    class_ids: np.ndarray,
    images: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """rows and groups, int64 [n]: the rows of known image and class, ordered by group, then falling score.

    group = class index * number of images + image index.
    """
    image, image_known = _index_in(images, image_ids)
    kind, class_known = _index_in(classes, class_ids)
    rows = np.flatnonzero(image_known & class_known)
    groups = kind[rows] * len(images) + image[rows]
    order = np.argsort(groups, kind="stable") if scores is None else np.lexsort((-scores[rows], groups))
    return rows[order], groups[order]


def _index_in(sorted_ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of each value in sorted_ids, int64 [n], and whether it is there at all, bool [n]."""
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
    """Owner and place of each member when owner i has count[i] members, both int64 [sum of count].

    >>> _expand(np.array([2, 0, 3]))
    (array([0, 0, 2, 2, 2]), array([0, 1, 0, 1, 2]))
    """
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)


def _blocks(count: np.ndarray) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of owners that cover all of them and have about PAIRS_AT_ONCE members each."""
    members = np.cumsum(count)
    total = int(members[-1]) if len(members) else 0
    edges = np.searchsorted(members, np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE)).tolist()
    start = 0
    for stop in [*edges, len(count)]:
        if stop > start:
            yield start, stop
            start = stop


def _out_of_range(areas: np.ndarray, area_ranges: Sequence[tuple[float, float]]) -> np.ndarray:
    """Whether each area lies outside each range, bool [A, n]; both ends belong to a range."""
    low, high = np.asarray(area_ranges, dtype=np.float64).reshape(-1, 2).T[:, :, None]  # [A, 1] each
    return (areas < low) | (areas > high)


def _count_truths(
    groups: np.ndarray, ignored: np.ndarray, num_images: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ground truths to be found, int64 [A, K], and images that hold one in the first area range, int64 [K]."""
    class_of = groups // max(num_images, 1)
    truths = np.array([np.bincount(class_of[~row], minlength=num_classes) for row in ignored])
    held = np.unique(groups[~ignored[0]])
    return truths, np.bincount(held // max(num_images, 1), minlength=num_classes)


# Matching


def _match_in_turns(
    pairs: Pairs, groups: np.ndarray, crowd: np.ndarray, ignored: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """found and excused, bool [A, T, D]: the detection got a ground truth to be found, or got one to be ignored."""
    A, T, D = len(ignored), len(thresholds), len(groups)
    found, excused = np.zeros((A, T, D), bool), np.zeros((A, T, D), bool)
    taken = np.zeros((A, T, len(crowd)), bool)
    for turn in _turns(pairs, groups):
        first = np.flatnonzero(np.diff(turn.detection, prepend=-1))  # where the pairs of one detection begin
        best = np.maximum.reduceat(
            _worth(turn, taken, crowd, ignored, thresholds), first, axis=2
        )  # [A, T, turn's detections]
        area, threshold, owner = np.nonzero(best)
        pair = (best[area, threshold, owner] - 1) % len(turn.iou)
        truth, detection = turn.truth[pair], turn.detection[pair]
        taken[area, threshold, truth] = ~crowd[truth]
        found[area, threshold, detection] = ~ignored[area, truth]
        excused[area, threshold, detection] = ignored[area, truth]
    return found, excused


def _turns(pairs: Pairs, groups: np.ndarray) -> Iterator[Pairs]:
    """The pairs of turn 0, 1 ...: of each group at most one detection, its pairs by rising IoU, then order of truth.

    Detections that overlap nothing take no turn: they can neither choose nor stand in the way.
    """
    by_iou = np.lexsort((pairs.iou, pairs.detection))
    choosing, owner = np.unique(pairs.detection[by_iou], return_inverse=True)
    turn = _position_in_run(groups[choosing])[owner]
    order = by_iou[np.argsort(turn, kind="stable")]
    stops = np.cumsum(np.bincount(turn)).tolist()
    for start, stop in zip([0, *stops], stops, strict=False):
        yield Pairs(*(column[order[start:stop]] for column in pairs))


def _worth(
    turn: Pairs, taken: np.ndarray, crowd: np.ndarray, ignored: np.ndarray, thresholds: np.ndarray
) -> np.ndarray:
    """What each pair is worth to its detection, int32 [A, T, P]: 0 if it cannot be had, higher for the better choice.

    Pairs come by rising IoU, so the place in line is the worth; a ground truth that is not ignored goes before any that
    is.
    """
    P = len(turn.iou)
    near = turn.iou >= thresholds[:, None]  # [T, P]
    worth = np.arange(1, P + 1, dtype=np.int32) + np.where(ignored[:, turn.truth], 0, P).astype(np.int32)  # [A, P]
    return np.where(near & ~taken[:, :, turn.truth], worth[:, None], 0)


# Accumulation


def _fill_curves(matches: Matches, precision: np.ndarray, recall: np.ndarray) -> None:
    """Write precision [T, R, K, A] and recall [T, K, A] of classes that have ground truth."""
    A, T, _ = matches.true_positive.shape
    K = matches.truths.shape[1]
    class_starts = np.searchsorted(matches.classes, np.arange(K))
    for a in range(A):
        known = matches.truths[a] > 0
        needed = _hits_needed(matches.truths[a])
        for t in range(T):
            best, hits = _envelope(
                matches.true_positive[a, t], matches.counted[a, t], matches.classes, class_starts, needed
            )
            precision[t, :, known, a] = best[known]
            recall[t, known, a] = hits[known] / matches.truths[a, known]


def _hits_needed(truths: np.ndarray) -> np.ndarray:
    """The fewest true positives that reach each recall: smallest n >= 1 with n / truths >= recall. int64 [K, R]."""
    total = np.maximum(truths, 1)[:, None]
    recall = np.asarray(RECALL_POINTS)
    needed = np.ceil(recall * total).astype(np.int64)  # the product may round across an integer, in either direction
    needed -= (needed - 1) / total >= recall
    needed += needed / total < recall
    return np.maximum(needed, 1)


def _envelope(
    true_positive: np.ndarray, counted: np.ndarray, classes: np.ndarray, class_starts: np.ndarray, needed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Best precision at each recall or beyond, float64 [K, R], and true positives, int64 [K].

    Of one area range and threshold. Precision only needs looking at where a true positive is: between two of them it
    falls.
    """
    K, R = needed.shape
    if K == 0:
        return np.zeros((K, R)), np.zeros(K, np.int64)
    places = np.flatnonzero(true_positive)
    class_of = classes[places]
    hits = np.bincount(class_of, minlength=K)
    first = np.cumsum(hits) - hits
    claims = np.concatenate([[0], np.cumsum(counted)])  # true and false positives before each place
    claimed = claims[places + 1] - claims[class_starts[class_of]]
    nth = np.arange(1, len(places) + 1) - first[class_of]

    # One zero after the last hit of each class: what a class that never reaches a recall falls upon.
    padded = np.zeros(len(places) + K)
    padded[np.arange(len(places)) + class_of] = nth / (claimed + np.spacing(1))
    starts = (first + np.arange(K))[:, None] + np.minimum(needed - 1, hits[:, None])
    between = np.maximum.reduceat(padded, starts.ravel()).reshape(K, R)
    return np.maximum.accumulate(between[:, ::-1], axis=1)[:, ::-1], hits


def _mean_of_known(values: np.ndarray) -> float:
    """Mean of the values that are not -1; -1 if there are none."""
    known = values[values > -1]
    return float(np.mean(known)) if known.size else -1.0


# The command


class CocoFiles(NamedTuple):
    """Two files as arrays. Image and class ids are positions in the sorted ids of the files: numbers or text."""

    truth: GroundTruth
    detections: Detections
    images: list[int | str]
    categories: list[int | str]

    def evaluate(self) -> CocoResult:
        """COCO's numbers of these files; the class ids of the result are positions in `categories`."""
        images, classes = np.arange(len(self.images)), np.arange(len(self.categories))
        return evaluate_boxes(self.truth, self.detections, image_ids=images, class_ids=classes)


def read_coco(truth_path: str | Path, detections_path: str | Path) -> CocoFiles:
    """A COCO annotation file and a COCO results list, as arrays.

    Annotations of images or categories that the file does not declare, and detections of such categories, are left out,
    as in COCOeval. An annotation of id 0 is as good as any other; COCOeval takes a detection that matches it for a
    false positive.
    Raises: ValueError with the file, the row and the key if anything is missing or malformed, or a detection is of an
    unknown image.
    """
    content = _load_json(truth_path)
    if not isinstance(content, dict):
        wanted = "an object with images, annotations and categories"
        raise ValueError(f"{truth_path}: the content is {_kind(content)}, but must be {wanted}.")
    images = _declared_ids(content, "images", truth_path)
    categories = _declared_ids(content, "categories", truth_path)
    annotations = _rows(content.get("annotations"), "annotations", truth_path)
    truth = _read_truth(annotations, _places(images), _places(categories), truth_path)
    results = _rows(_load_json(detections_path), "detections", detections_path)
    return CocoFiles(
        truth, _read_detections(results, _places(images), _places(categories), detections_path), images, categories
    )


def _read_truth(rows: list[Any], images: Mapping, categories: Mapping, path: str | Path) -> GroundTruth:
    """The annotations as arrays. Raises: ValueError if one is malformed or an id is given twice."""
    kept = []
    seen: set[int | str] = set()
    for row, where in _named(rows, "annotations", path):
        image, category = (_identifier(row, key, where) for key in ("image_id", "category_id"))
        box, area = _box(row, where), _number(_field(row, "area", where), "area", where)
        if "id" in row:
            _refuse_second(_identifier(row, "id", where), seen, where)
        if image in images and category in categories:
            kept.append((images[image], categories[category], box, area, bool(row.get("iscrowd", 0))))
    return GroundTruth(*_columns(kept, 5))


def _refuse_second(identifier: int | str, seen: set[int | str], where: str) -> None:
    if identifier in seen:
        raise ValueError(f"{where}: id {identifier!r} is given twice, but every annotation needs an id of its own.")
    seen.add(identifier)


def _read_detections(rows: list[Any], images: Mapping, categories: Mapping, path: str | Path) -> Detections:
    """The results as arrays. Raises: ValueError if one is malformed or of an image that is not declared."""
    kept = []
    for row, where in _named(rows, "detections", path):
        image, category = (_identifier(row, key, where) for key in ("image_id", "category_id"))
        box, score = _box(row, where), _number(_field(row, "score", where), "score", where)
        if image not in images:
            raise ValueError(f"{where}: image_id is {image!r}, but the ground truth has no such image.")
        if category in categories:
            kept.append((images[image], categories[category], box, score))
    return Detections(*_columns(kept, 4))


def _load_json(path: str | Path) -> Any:
    """The content of a JSON file. Raises: ValueError that names the file and what is wrong with it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: the file cannot be read ({error.strerror}).") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} line {error.lineno}: this is not JSON ({error.msg}).") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: this is not JSON ({type(error).__name__}).") from error


def _rows(content: Any, name: str, path: str | Path) -> list[Any]:
    if isinstance(content, list):
        return content
    given = "missing" if content is None else _kind(content)
    raise ValueError(f"{path}: {name} is {given}, but must be a list of objects.")


def _named(rows: list[Any], name: str, path: str | Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Each row with the words that say where it is. Raises: ValueError if it is no object."""
    for index, row in enumerate(rows):
        where = f"{path}: {name}[{index}]"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {_kind(row)}, but must be an object.")
        yield row, where


def _declared_ids(content: Mapping[str, Any], name: str, path: str | Path) -> list[int | str]:
    """The sorted, distinct ids of `images` or `categories`."""
    ids = {_identifier(row, "id", where) for row, where in _named(_rows(content.get(name), name, path), name, path)}
    return sorted(ids, key=lambda value: (isinstance(value, str), value))


def _places(ids: Sequence[int | str]) -> dict[int | str, int]:
    return {value: place for place, value in enumerate(ids)}


def _field(row: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in row:
        raise ValueError(f'{where} has no "{key}", which is needed.')
    return row[key]


def _identifier(row: Mapping[str, Any], key: str, where: str) -> int | str:
    value = _field(row, key, where)
    if isinstance(value, float) and value.is_integer():
        return int(value)  # some exporters write 7.0 for 7
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{where}: {key} is {value!r:.60}, but must be a whole number or a text.")
    return value


def _number(value: Any, key: str, where: str) -> float:
    if (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    ):  # false for nan and inf
        return float(value)
    raise ValueError(f"{where}: {key} is {value!r:.60}, but must be a finite number.")


def _box(row: Mapping[str, Any], where: str) -> list[float]:
    value = _field(row, "bbox", where)
    if not isinstance(value, list) or len(value) != 4:
        raise ValueError(f"{where}: bbox is {value!r:.60}, but must be [left, top, width, height].")
    return [_number(side, "bbox", where) for side in value]


def _columns(rows: list[tuple], width: int) -> Iterator[Any]:
    """Rows turned into columns; `width` empty ones if there are no rows."""
    return zip(*rows, strict=True) if rows else iter([()] * width)


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "text", type(None): "null"}.get(type(value), "a number")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print COCO's twelve numbers of two files; 0, or 2 if the files cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m utils.metrics", description="COCO's twelve numbers for boxes.")
    parser.add_argument("truth", metavar="GT.json", help="COCO annotation file")
    parser.add_argument("detections", metavar="DT.json", help="COCO results list")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        stats = read_coco(options.truth, options.detections).evaluate().stats
    except ValueError as error:
        print(shown(str(error)), file=sys.stderr)
        return 2
    write: Callable[[Mapping[str, float]], str] = json.dumps if options.json else format_summary
    print(write(stats))
    return 0


if __name__ == "__main__":
    sys.exit(main())
