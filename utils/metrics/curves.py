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

    def drawn(self) -> dict[str, np.ndarray]:
        """Return what `plot_curves` draws, by its names: NaN for classes without ground truth."""
        return {
            "confidence": self.confidence,
            "precision": self._nan_without_truth(self.precision),
            "recall": self._nan_without_truth(self.recall),
            "f1": self._nan_without_truth(self.f1),
            "pr_recall": self.pr_recall,
            "pr_precision": self._nan_without_truth(self.pr_precision),
        }

    def _nan_without_truth(self, rows: np.ndarray) -> np.ndarray:
        """Return rows [K, ...] with NaN for classes without ground truth."""
        return np.where(self.has_truth[:, None], rows, np.nan)

    def mean(self, rows: np.ndarray) -> np.ndarray:
        """Return the mean over the classes that have ground truth, [K, ...] to [...].

        It is zero if none has.
        """
        return _mean_rows(rows, self.has_truth)


def operating_curves(
    truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids
) -> OperatingCurves:
    """Return the curves of these detections, matched as COCO does.

    At confidence c the detections of score c or more count, of these the best 100 of each image and
    class, without those that match a crowd. Above the highest score of a class there are none:
    recall is 0 and precision keeps its last value.
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

    # The confidence of the best mean F1.
    mean_f1 = _mean_rows(f1, has_truth)
    best = int(np.argmax(_smooth(mean_f1)))

    # COCO's precision against recall.
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
    """Return the numbers of hits and of positives of score `confidence` or more, int64 [K, S] each.

    Hits are true positives, positives are true and false ones.

    confidence: [S].
    """
    # Each class's rows of matches, best score first, are edges[k] to edges[k + 1].
    K = matches.truths.shape[1]
    edges = np.searchsorted(matches.classes, np.arange(K + 1))

    # Those of score `confidence` or more are edges[k] to ends[k].
    ends = np.zeros((K, len(confidence)), np.int64)
    for k, (start, stop) in enumerate(pairwise(edges.tolist())):
        scores = matches.scores[start:stop]
        ends[k] = start + np.searchsorted(-scores, -confidence, side="right")

    starts = edges[:-1, None]  # [K, 1]
    hits = _count_between(matches.true_positive[0, 0], starts, ends)
    positives = _count_between(matches.counted[0, 0], starts, ends)
    return hits, positives


def _count_between(flags: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return how many flags of bool [D] are set from each start up to, not including, each end."""
    set_before = np.concatenate([[0], np.cumsum(flags)])  # [D + 1]
    return set_before[ends] - set_before[starts]


def _hold_last(precision: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Return precision [K, S] that keeps its value beyond the last confidence with detections."""
    # Positives never rise with confidence, so those that are not zero come first.
    num_occupied = (positives > 0).sum(axis=1)
    last = np.maximum(num_occupied - 1, 0)
    held = np.minimum(np.arange(precision.shape[1]), last[:, None])
    return np.take_along_axis(precision, held, axis=1)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Return the running mean over SMOOTHING points of [S], padded with the values at the ends."""
    padded = np.pad(values, SMOOTHING // 2, mode="edge")
    weights = np.full(SMOOTHING, 1 / SMOOTHING)
    return np.convolve(padded, weights, mode="valid")


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Return numerator / denominator, float64, and 0 where the denominator is 0."""
    numerator = np.asarray(numerator, np.float64)
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    zeros = np.zeros(numerator.shape)
    return np.divide(numerator, denominator, out=zeros, where=denominator != 0)


def _mean_rows(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the mean of the chosen rows of [K, ...]; zeros if none is chosen."""
    return rows[chosen].sum(axis=0) / max(int(chosen.sum()), 1)
