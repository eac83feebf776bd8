"""Precision, recall and F1 against confidence at IoU 0.5.

Legend: K classes in order of class id, S confidences, R recall points.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from utils.metrics.coco import RECALL_POINTS, precision_and_recall
from utils.metrics.matching import AREA_RANGES, MAX_DETECTIONS, DetectionMatches, match_detections
from utils.metrics.records import Detections, GroundTruth, Ids

NUM_CONFIDENCES = 1000
SMOOTHING = 101  # points: a tenth of the confidences, so that the best point is no accident of a few boxes


@dataclass(frozen=True)
class OperatingCurves:
    """What a detector gives at each confidence, IoU 0.5.

    Rows of classes without ground truth are zero and enter no mean.
    class_ids: int64 [K]. has_truth: bool [K]. confidence: float64 [S], 0 to 1. precision, recall, f1: float64 [K, S].
    pr_recall: float64 [R]. pr_precision: float64 [K, R], COCO's best precision at that recall or beyond.
    best_confidence: where the smoothed mean F1 is highest. precision_at_best, recall_at_best: float64 [K].
    """

    class_ids: np.ndarray
    has_truth: np.ndarray
    confidence: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    pr_recall: np.ndarray
    pr_precision: np.ndarray
    best_confidence: float
    precision_at_best: np.ndarray
    recall_at_best: np.ndarray

    @property
    def ap50(self) -> np.ndarray:
        """COCO's AP at IoU 0.5 of each class, float64 [K]."""
        return self.pr_precision.mean(axis=1)

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """Mean over the classes that have ground truth, [K, ...] to [...]; zeros if none has."""
        return _mean_rows(rows, self.has_truth)


def operating_curves(truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids) -> OperatingCurves:
    """The curves of these detections, matched as COCO does: 100 per image and class, what crowds absorb is not counted.

    At confidence c the detections of score c or more are claimed. Above the highest score of a class nothing is
    claimed: recall is 0 and precision keeps its last value.
    """
    matches = match_detections(
        truth, detections, image_ids=image_ids, class_ids=class_ids, iou_thresholds=(0.5,), area_ranges=AREA_RANGES[:1]
    )
    has_truth = matches.truths[0] > 0
    confidence = np.linspace(0, 1, NUM_CONFIDENCES)
    hits, claims = _counts_at(matches, confidence)
    precision = np.where(has_truth[:, None], _hold_last(_ratio(hits, claims), claims), 0.0)
    recall = _ratio(hits, matches.truths[0][:, None])
    f1 = _ratio(2 * precision * recall, precision + recall)
    best = int(np.argmax(_smooth(_mean_rows(f1, has_truth))))
    interpolated, _ = precision_and_recall(matches, limits=MAX_DETECTIONS[-1:])  # [1, R, K, 1, 1], -1 without truth
    return OperatingCurves(
        class_ids=np.unique(class_ids).astype(np.int64),
        has_truth=has_truth,
        confidence=confidence,
        precision=precision,
        recall=recall,
        f1=f1,
        pr_recall=np.array(RECALL_POINTS),
        pr_precision=np.maximum(interpolated[0, :, :, 0, 0].T, 0.0),
        best_confidence=float(confidence[best]),
        precision_at_best=precision[:, best],
        recall_at_best=recall[:, best],
    )


def _counts_at(matches: DetectionMatches, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True positives, and true and false positives together, of score `confidence` or more: int64 [K, S] each."""
    K = matches.truths.shape[1]
    edges = np.searchsorted(matches.classes, np.arange(K + 1))
    places = [
        start + np.searchsorted(-matches.scores[start:stop], -confidence, side="right")
        for start, stop in pairwise(edges.tolist())
    ]
    place = np.array(places, dtype=np.int64).reshape(K, len(confidence))  # how many rows of matches come before
    hits = np.concatenate([[0], np.cumsum(matches.true_positive[0, 0])])
    claims = np.concatenate([[0], np.cumsum(matches.counted[0, 0])])
    return hits[place] - hits[edges[:-1], None], claims[place] - claims[edges[:-1], None]


def _hold_last(precision: np.ndarray, claims: np.ndarray) -> np.ndarray:
    """Precision [K, S] where, beyond the last confidence with claims, the value there goes on."""
    last = np.maximum((claims > 0).sum(axis=1) - 1, 0)  # claims never rise with confidence
    return np.take_along_axis(precision, np.minimum(np.arange(precision.shape[1]), last[:, None]), axis=1)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Running mean over SMOOTHING points of float64 [S], the ends continued."""
    return np.convolve(np.pad(values, SMOOTHING // 2, mode="edge"), np.full(SMOOTHING, 1 / SMOOTHING), mode="valid")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, float64, and 0 where whole is 0."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), whole)
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole != 0)


def _mean_rows(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Mean of the chosen rows of [K, ...]; zeros if none is chosen."""
    return rows[chosen].sum(axis=0) / max(int(chosen.sum()), 1)
