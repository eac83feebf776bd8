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
# Points, a tenth of the confidences, so that a few boxes do not decide the best point.
SMOOTHING = 101


@dataclass(frozen=True)
class OperatingCurves:
    """Precision, recall and F1 of a detector at each confidence, at IoU 0.5.

    Rows of classes without ground truth are zero and are left out of means.
    """

    class_ids: np.ndarray  # int64 [K]
    has_truth: np.ndarray  # bool [K]
    confidence: np.ndarray  # float64 [S], 0 to 1
    precision: np.ndarray  # float64 [K, S]
    recall: np.ndarray  # float64 [K, S]
    f1: np.ndarray  # float64 [K, S]
    pr_recall: np.ndarray  # float64 [R]
    pr_precision: np.ndarray  # float64 [K, R], COCO's best at that recall or a higher one
    best_confidence: float  # where the smoothed mean F1 is highest
    precision_at_best: np.ndarray  # float64 [K]
    recall_at_best: np.ndarray  # float64 [K]

    @property
    def ap50(self) -> np.ndarray:
        """COCO's AP at IoU 0.5 of each class, float64 [K]."""
        return self.pr_precision.mean(axis=1)

    def drawn(self) -> tuple[np.ndarray, ...]:
        """confidence, precision, recall, f1, pr_recall, pr_precision, as `plot_curves` takes them.

        NaN for classes without ground truth.
        """
        has_truth = self.has_truth[:, None]
        precision = np.where(has_truth, self.precision, np.nan)
        recall = np.where(has_truth, self.recall, np.nan)
        f1 = np.where(has_truth, self.f1, np.nan)
        pr_precision = np.where(has_truth, self.pr_precision, np.nan)
        return self.confidence, precision, recall, f1, self.pr_recall, pr_precision

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """Return the mean over the classes that have ground truth, [K, ...] to [...].

        Zeros if none has.
        """
        return _mean_rows(rows, self.has_truth)


def operating_curves(
    truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids
) -> OperatingCurves:
    """Return the curves of these detections, matched as COCO does.

    That is, 100 per image and class, and matches with crowds are not counted. At confidence c the
    detections of score c or more count. Above the highest score of a class there are none: recall
    is 0 and precision keeps its last value.
    """
    matches = match_detections(
        truth,
        detections,
        image_ids=image_ids,
        class_ids=class_ids,
        iou_thresholds=(0.5,),
        area_ranges=AREA_RANGES[:1],
    )
    truths = matches.truths[0]  # [K]
    has_truth = truths > 0
    confidence = np.linspace(0, 1, NUM_CONFIDENCES)

    # Precision, recall and F1 at each confidence.  [K, S]
    hits, positives = _counts_at(matches, confidence)
    held_precision = _hold_last(_ratio(hits, positives), positives)
    precision = np.where(has_truth[:, None], held_precision, 0.0)
    recall = _ratio(hits, truths[:, None])
    f1 = _ratio(2 * precision * recall, precision + recall)

    mean_f1 = _mean_rows(f1, has_truth)
    best = int(np.argmax(_smooth(mean_f1)))

    interpolated, _ = precision_and_recall(matches, limits=MAX_DETECTIONS[-1:])  # [1, R, K, 1, 1]
    pr_precision = interpolated[0, :, :, 0, 0].T  # [K, R], -1 without ground truth

    return OperatingCurves(
        class_ids=np.unique(class_ids).astype(np.int64),
        has_truth=has_truth,
        confidence=confidence,
        precision=precision,
        recall=recall,
        f1=f1,
        pr_recall=np.array(RECALL_POINTS),
        pr_precision=np.maximum(pr_precision, 0.0),
        best_confidence=float(confidence[best]),
        precision_at_best=precision[:, best],
        recall_at_best=recall[:, best],
    )


def _counts_at(matches: DetectionMatches, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hits and positives of score `confidence` or more, int64 [K, S] each.

    Hits are true positives, positives are true and false ones.
    """
    # Each class's rows of matches, best score first, are edges[k] to edges[k + 1].
    K = matches.truths.shape[1]
    edges = np.searchsorted(matches.classes, np.arange(K + 1))

    # Those of score `confidence` or more are edges[k] to ends[k].
    ends_of_classes = []
    for start, stop in pairwise(edges.tolist()):
        scores = matches.scores[start:stop]
        ends_of_classes.append(start + np.searchsorted(-scores, -confidence, side="right"))
    ends = np.array(ends_of_classes, dtype=np.int64).reshape(K, len(confidence))

    # Counts before each row of matches; a difference of two is the count between them.
    starts = edges[:-1, None]  # [K, 1]
    hits_before = np.concatenate([[0], np.cumsum(matches.true_positive[0, 0])])
    positives_before = np.concatenate([[0], np.cumsum(matches.counted[0, 0])])
    hits = hits_before[ends] - hits_before[starts]
    positives = positives_before[ends] - positives_before[starts]
    return hits, positives


def _hold_last(precision: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Precision [K, S] that keeps its value beyond the last confidence with detections."""
    occupied = (positives > 0).sum(axis=1)  # positives never rise with confidence
    last = np.maximum(occupied - 1, 0)
    held = np.minimum(np.arange(precision.shape[1]), last[:, None])
    return np.take_along_axis(precision, held, axis=1)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Running mean over SMOOTHING points of float64 [S], padded with the values at the ends."""
    padded = np.pad(values, SMOOTHING // 2, mode="edge")
    weights = np.full(SMOOTHING, 1 / SMOOTHING)
    return np.convolve(padded, weights, mode="valid")


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, float64, and 0 where the denominator is 0."""
    numerator = np.asarray(numerator, np.float64)
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    zeros = np.zeros(numerator.shape)
    return np.divide(numerator, denominator, out=zeros, where=denominator != 0)


def _mean_rows(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the mean of the chosen rows of [K, ...]; zeros if none is chosen."""
    return rows[chosen].sum(axis=0) / max(int(chosen.sum()), 1)
