"""COCO's average precision and recall for boxes: pycocotools' COCOeval without its loops.

COCOeval's three steps are `match_detections` (evaluateImg), `precision_and_recall` (accumulate) and
`summarize`.

Legend: K classes, A area ranges, T IoU thresholds, R recall points, M limits on detections per
image and class.

Source: cocodataset/cocoapi, PythonAPI/pycocotools/cocoeval.py, Simplified BSD License.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from utils.metrics.matching import MAX_DETECTIONS, DetectionMatches, match_detections
from utils.metrics.records import Detections, GroundTruth, Ids

RECALL_POINTS = tuple(np.linspace(0.0, 1.0, 101).tolist())


@dataclass(frozen=True)
class CocoResult:
    """COCO's numbers; -1 where there is no ground truth.

    stats: AP, AP50, AP75, APs, APm, APl, AR1, AR10, AR100, ARs, ARm, ARl in [0, 1] or -1.
    precision, recall: as COCOeval.eval.
    """

    stats: dict[str, float]
    class_ids: np.ndarray  # int64 [K], sorted
    precision: np.ndarray  # float64 [T, R, K, A, M]
    recall: np.ndarray  # float64 [T, K, A, M]
    images: np.ndarray  # int64 [K], images with a ground truth of the class, without crowds
    instances: np.ndarray  # int64 [K], ground truths of the class, without crowds

    @property
    def ap_per_iou(self) -> list[float]:
        """Return AP at each of the ten IoU thresholds .50, .55 ... .95."""
        return [mean_of_known(at_threshold[:, :, 0, -1]) for at_threshold in self.precision]

    @property
    def per_class(self) -> dict[int, dict[str, float]]:
        """Return the twelve numbers, `images` and `instances` of each class, by class id."""
        table = {}
        for k, class_id in enumerate(self.class_ids.tolist()):
            precision = self.precision[:, :, k : k + 1]
            recall = self.recall[:, k : k + 1]
            row = summarize(precision, recall)

            row["images"] = int(self.images[k])
            row["instances"] = int(self.instances[k])
            table[class_id] = row
        return table


def evaluate_boxes(
    truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids
) -> CocoResult:
    """Return COCO's numbers for detections against ground truth, over these images and classes.

    Rows of other images and classes are ignored.

    >>> truth = GroundTruth([7], [0], [[10, 10, 50, 50]], [2500], [False])
    >>> boxes = [[10, 10, 50, 50], [300, 300, 9, 9]]
    >>> detections = Detections([7, 7], [0, 0], boxes, [0.8, 0.9])
    >>> # the false positive ranks first
    >>> evaluate_boxes(truth, detections, image_ids=[7], class_ids=[0]).stats["AP"]
    0.5
    """
    matches = match_detections(truth, detections, image_ids=image_ids, class_ids=class_ids)
    precision, recall = precision_and_recall(matches)
    return CocoResult(
        stats=summarize(precision, recall),
        class_ids=np.unique(class_ids).astype(np.int64),
        precision=precision,
        recall=recall,
        images=matches.images,
        instances=matches.truths[0],
    )


def precision_and_recall(
    matches: DetectionMatches, limits: Sequence[int] = MAX_DETECTIONS
) -> tuple[np.ndarray, np.ndarray]:
    """Return precision float64 [T, R, K, A, M] at RECALL_POINTS, and recall float64 [T, K, A, M].

    Precision at a recall is the best precision at that recall or a higher one. Both are -1 without
    ground truth.

    limits: M numbers of detections per image and class, ascending.

    Source: COCOeval.accumulate.
    """
    A, T, _ = matches.true_positive.shape
    K = matches.truths.shape[1]
    R = len(RECALL_POINTS)
    M = len(limits)
    precision = np.full((T, R, K, A, M), -1.0)
    recall = np.full((T, K, A, M), -1.0)

    # The highest limit first: each lower one chooses from the detections of the one above.
    for m in reversed(range(M)):
        limited = matches.top_k(limits[m])
        is_same = limited is matches and m + 1 < M
        if is_same:
            precision[..., m] = precision[..., m + 1]
            recall[..., m] = recall[..., m + 1]
        else:
            _fill_curves(limited, precision[..., m], recall[..., m])
        matches = limited
    return precision, recall


def summarize(precision: np.ndarray, recall: np.ndarray) -> dict[str, float]:
    """Return COCO's twelve numbers from precision [10, 101, K, 4, 3] and recall [10, K, 4, 3].

    Each is the mean over all classes and recall points that it covers; -1 without ground truth.

    Source: COCOeval.summarize.
    """
    # Area ranges are 0 all, 1 small, 2 medium, 3 large; limits 0, 1, 2 are 1, 10, 100 detections.
    averaged = {
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
    return {name: mean_of_known(values) for name, values in averaged.items()}


def format_summary(stats: Mapping[str, float]) -> str:
    """Return twelve lines of name, value and meaning; "-" for a value without ground truth.

    >>> print(format_summary(dict.fromkeys(SUMMARY_MEANING, 0.5)).splitlines()[1])
    AP50    0.5000  average precision, IoU 0.50, all areas, 100 detections
    >>> print(format_summary(dict.fromkeys(SUMMARY_MEANING, -1.0)).splitlines()[1])
    AP50         -  average precision, IoU 0.50, all areas, 100 detections
    """
    lines = []
    for name, meaning in SUMMARY_MEANING.items():
        value = f"{stats[name]:.4f}" if stats[name] >= 0 else "-"
        lines.append(f"{name:<6} {value:>7}  {meaning}")
    return "\n".join(lines)


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


def _fill_curves(matches: DetectionMatches, precision: np.ndarray, recall: np.ndarray) -> None:
    """Write precision [T, R, K, A] and recall [T, K, A] of classes that have ground truth."""
    A, T, _ = matches.true_positive.shape
    K = matches.truths.shape[1]
    class_starts = np.searchsorted(matches.classes, np.arange(K))
    for a in range(A):
        truths = matches.truths[a]  # [K]
        has_truth = truths > 0
        needed = hits_needed(truths, RECALL_POINTS)
        for t in range(T):
            best, hits = precision_envelope(
                matches.true_positive[a, t],
                matches.counted[a, t],
                matches.classes,
                class_starts,
                needed,
            )
            precision[t, :, has_truth, a] = best[has_truth]
            recall[t, has_truth, a] = hits[has_truth] / truths[has_truth]


def hits_needed(truths: np.ndarray, recall_points: Sequence[float]) -> np.ndarray:
    """Return the fewest true positives that reach each recall point, int64 [K, R].

    That is the smallest n >= 1 with n / truths >= recall.

    truths: int64 [K].
    """
    total = np.maximum(truths, 1)[:, None]  # [K, 1]
    recall = np.asarray(recall_points)
    needed = np.ceil(recall * total).astype(np.int64)

    # The product may have rounded across an integer, in either direction.
    one_less_suffices = (needed - 1) / total >= recall
    needed -= one_less_suffices
    is_too_low = needed / total < recall
    needed += is_too_low
    return np.maximum(needed, 1)


def precision_envelope(
    true_positive: np.ndarray,
    counted: np.ndarray,
    classes: np.ndarray,
    class_starts: np.ndarray,
    needed: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best precision at each recall or a higher one, and the number of true positives.

    float64 [K, R] and int64 [K], for one area range and IoU threshold. Only the precision at true
    positives matters: between two of them it falls.

    Args:
        true_positive, counted: bool [D].
        classes: int64 [D], ascending.
        class_starts: int64 [K], the first detection of each class.
        needed: int64 [K, R], the fewest true positives that reach each recall.
    """
    K, R = needed.shape
    if K == 0:
        return np.zeros((K, R)), np.zeros(K, np.int64)

    # The true positives, H hits in all. Each is the nth of its class, from 1.
    positions = np.flatnonzero(true_positive)  # [H]
    class_of = classes[positions]  # [H]
    hits = np.bincount(class_of, minlength=K)  # [K]
    first_hit = np.cumsum(hits) - hits  # [K]
    number = np.arange(len(positions))
    nth = number + 1 - first_hit[class_of]

    # Precision at each hit: true positives among all positives of its class so far.  [H]
    positives_before = np.concatenate([[0], np.cumsum(counted)])  # [D + 1]
    up_to_hit = positives_before[positions + 1]
    up_to_class = positives_before[class_starts[class_of]]
    precision = nth / (up_to_hit - up_to_class + np.spacing(1))

    # One zero after the last hit of each class: its precision at recalls that it never reaches.
    padded = np.zeros(len(positions) + K)
    padded[number + class_of] = precision
    first_padded = first_hit + np.arange(K)

    # The hit that reaches each recall point, or that zero.  [K, R]
    reached = np.minimum(needed - 1, hits[:, None])
    starts = first_padded[:, None] + reached

    # The best precision from there to the next recall point, then from there to the last one.
    best_between = np.maximum.reduceat(padded, starts.ravel()).reshape(K, R)
    best = np.maximum.accumulate(best_between[:, ::-1], axis=1)[:, ::-1]
    return best, hits


def mean_of_known(values: np.ndarray) -> float:
    """Return the mean of the values that are not -1; -1 if there are none."""
    known = values[values > -1]
    return float(np.mean(known)) if known.size else -1.0
