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
# points, a tenth of the confidences, so that a few boxes do not decide the best point
SMOOTHING = 101


@dataclass(frozen=True)
class OperatingCurves:
    """Precision, recall and F1 of a detector at each confidence, at IoU 0.5.

    Rows of classes without ground truth are zero and are left out of means. class_ids: int64 [K].
    has_truth: bool [K]. confidence: float64 [S], 0 to 1. precision, recall, f1: float64 [K, S].
    pr_recall: float64 [R]. pr_precision: float64 [K, R], COCO's best precision at that recall or a
    higher one. best_confidence: where the smoothed mean F1 is highest. precision_at_best,
    recall_at_best: float64 [K].
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

    def drawn(self) -> tuple[np.ndarray, ...]:
        """confidence, precision, recall, f1, pr_recall, pr_precision; NaN for classes without
        ground truth.
        """
        rows = (self.precision, self.recall, self.f1, self.pr_precision)
        precision, recall, f1, interpolated = (
            np.where(self.has_truth[:, None], each, np.nan) for each in rows
        )
        return self.confidence, precision, recall, f1, self.pr_recall, interpolated

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """Mean over the classes that have ground truth, [K, ...] to [...]; zeros if none has."""
        return _mean_rows(rows, self.has_truth)


def operating_curves(
    truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids
) -> OperatingCurves:
    """The curves of these detections, matched as COCO does: 100 per image and class, matches with
    crowds not counted.

    At confidence c the detections of score c or more count. Above the highest score of a class
    there are none: recall is 0 and precision keeps its last value.
    """
    matches = match_detections(
        truth,
        detections,
        image_ids=image_ids,
        class_ids=class_ids,
        iou_thresholds=(0.5,),
        area_ranges=AREA_RANGES[:1],
    )
    has_truth = matches.truths[0] > 0
    confidence = np.linspace(0, 1, NUM_CONFIDENCES)
    hits, positives = _counts_at(matches, confidence)
    precision = np.where(has_truth[:, None], _hold_last(_ratio(hits, positives), positives), 0.0)
    recall = _ratio(hits, matches.truths[0][:, None])
    f1 = _ratio(2 * precision * recall, precision + recall)
    best = int(np.argmax(_smooth(_mean_rows(f1, has_truth))))
    interpolated, _ = precision_and_recall(
        matches, limits=MAX_DETECTIONS[-1:]
    )  # [1, R, K, 1, 1], -1 without truth
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
    """True positives, and true and false positives together, of score `confidence` or more: int64
    [K, S] each.
    """
    K = matches.truths.shape[1]
    edges = np.searchsorted(matches.classes, np.arange(K + 1))
    ends = [
        start + np.searchsorted(-matches.scores[start:stop], -confidence, side="right")
        for start, stop in pairwise(edges.tolist())
    ]
    # number of rows of matches before
    end = np.array(ends, dtype=np.int64).reshape(K, len(confidence))
    hits = np.concatenate([[0], np.cumsum(matches.true_positive[0, 0])])
    positives = np.concatenate([[0], np.cumsum(matches.counted[0, 0])])
    return hits[end] - hits[edges[:-1], None], positives[end] - positives[edges[:-1], None]


def _hold_last(precision: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Precision [K, S] that keeps its value beyond the last confidence with detections."""
    last = np.maximum((positives > 0).sum(axis=1) - 1, 0)  # positives never rise with confidence
    return np.take_along_axis(
        precision, np.minimum(np.arange(precision.shape[1]), last[:, None]), axis=1
    )


def _smooth(values: np.ndarray) -> np.ndarray:
    """Running mean over SMOOTHING points of float64 [S], padded with the values at the ends."""
    return np.convolve(
        np.pad(values, SMOOTHING // 2, mode="edge"), np.full(SMOOTHING, 1 / SMOOTHING), mode="valid"
    )


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, float64, and 0 where the denominator is 0."""
    numerator, denominator = np.broadcast_arrays(np.asarray(numerator, np.float64), denominator)
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator != 0)


def _mean_rows(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Mean of the chosen rows of [K, ...]; zeros if none is chosen."""
    return rows[chosen].sum(axis=0) / max(int(chosen.sum()), 1)
