"""Calibration of confidence: whether a detection of score 0.8 is right four times in five."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from utils.metrics.matching import AREA_RANGES, match_detections
from utils.metrics.records import SHOWN_CONFIDENCE, Detections, GroundTruth, Ids

NUM_BINS = 20


@dataclass(frozen=True)
class Calibration:
    """Score and precision of the detections in B bins of score.

    A bin has the scores from its lower edge up to, not including, its upper edge; the last bin has
    1 too.
    """

    edges: np.ndarray  # float64 [B + 1], 0 to 1
    counts: np.ndarray  # int64 [B], detections
    scores: np.ndarray  # float64 [B], their mean score; NaN without detections
    precision: np.ndarray  # float64 [B], the share that is right at IoU 0.5; NaN without detections

    def expected_error(self, confidence: float = 0.0) -> float:
        """Return the expected calibration error of the bins from `confidence` on, in [0, 1].

        It is the mean distance of score and precision, weighted by the detections of a bin; 0
        without detections.

        Source: arXiv 1706.04599, equation 3; for detection with precision in place of accuracy,
        arXiv 2004.13546.
        """
        tolerance = 1e-9  # edges are quotients
        used = (self.counts > 0) & (self.edges[:-1] >= confidence - tolerance)
        total = int(self.counts[used].sum())
        if total == 0:
            return 0.0
        distance = np.abs(self.precision[used] - self.scores[used])
        return float((self.counts[used] * distance).sum() / total)

    def as_dict(self) -> dict[str, Any]:
        """Return the errors and the bins as plain values; None in bins without detections."""
        bins = []
        for b, count in enumerate(self.counts.tolist()):
            row: dict[str, Any] = {"low": float(self.edges[b]), "high": float(self.edges[b + 1])}
            row |= {"count": count, "score": None, "precision": None}
            if count:
                row |= {"score": float(self.scores[b]), "precision": float(self.precision[b])}
            bins.append(row)
        return {
            "expected_error": self.expected_error(),
            f"expected_error_from_{SHOWN_CONFIDENCE}": self.expected_error(SHOWN_CONFIDENCE),
            "bins": bins,
        }


def calibration_bins(
    truth: GroundTruth,
    detections: Detections,
    *,
    image_ids: Ids,
    class_ids: Ids,
    bins: int = NUM_BINS,
) -> Calibration:
    """Return score and precision of the detections by bins of score.

    Detections are matched as COCO does, at IoU 0.5: the best 100 of each image and class count,
    without those that match a crowd.

    Args:
        truth, detections: rows of other images and classes are left out.
        image_ids, class_ids: those to evaluate.
        bins: how many, of equal width between 0 and 1.

    Raises: ValueError if bins is less than 1 or a score is outside [0, 1].
    """
    if bins < 1:
        raise ValueError(f"The number of bins is {bins}, but must be at least 1.")
    matches = match_detections(
        truth,
        detections,
        image_ids=image_ids,
        class_ids=class_ids,
        iou_thresholds=(0.5,),
        area_ranges=AREA_RANGES[:1],
    )
    counted = matches.counted[0, 0]
    scores = matches.scores[counted]
    is_right = matches.true_positive[0, 0][counted]
    outside = (scores < 0) | (scores > 1)
    if outside.any():
        score = scores[outside][0]
        raise ValueError(f"A detection has the score {score}, but it must be from 0 to 1.")

    edges = np.arange(bins + 1) / bins
    bin_of = np.searchsorted(edges, scores, side="right") - 1
    bin_of = np.minimum(bin_of, bins - 1)  # a score of 1 is in the last bin
    counts = np.bincount(bin_of, minlength=bins)
    return Calibration(
        edges=edges,
        counts=counts,
        scores=_mean_of_bins(scores, bin_of, counts),
        precision=_mean_of_bins(is_right, bin_of, counts),
    )


def _mean_of_bins(values: np.ndarray, bin_of: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean of the values of each bin, float64 [B]; NaN for a bin without values."""
    sums = np.bincount(bin_of, weights=values, minlength=len(counts))
    return np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
