"""Precision, recall and F1 against confidence at IoU 0.5, and the confusion matrix with counts.

Legend: K classes in order of class id, S confidences, R recall points.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from utils.metrics import (
    AREA_RANGES,
    MAX_DETECTIONS,
    RECALL_POINTS,
    Detections,
    GroundTruth,
    Ids,
    Matches,
    Pairs,
    match_detections,
    overlapping_pairs,
    precision_and_recall,
)

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


def confusion_matrix(
    truth: GroundTruth, detections: Detections, *, class_ids: Ids, confidence: float = 0.25, iou: float = 0.45
) -> np.ndarray:
    """How often each class was taken for each, int64 [K + 1, K + 1]: rows predicted, columns true.

    The last row and the last column are background. Detections of score `confidence` or more and ground truths of one
    image pair up one to one, those of highest IoU first, whatever their classes. What is left of the detections is
    predicted on background, unless a crowd of its class covers at least `iou` of it; what is left of the ground truths
    was taken for background.
    Raises: ValueError if iou is not in (0, 1].
    """
    if not 0 < iou <= 1:
        raise ValueError(f"The IoU of a confusion matrix is {iou}, but must be above 0 and at most 1.")
    classes = np.unique(class_ids)
    background = len(classes)
    truth = _pick_truth(truth, np.isin(truth.class_ids, classes))
    detections = _pick_detections(
        detections, np.isin(detections.class_ids, classes) & (detections.scores >= confidence)
    )
    real, crowds = _pick_truth(truth, ~truth.crowd), _pick_truth(truth, truth.crowd)

    matched, matched_truths = _pair_up(_pairs_in_images(real, detections, iou))
    left, left_truths = np.ones(len(detections.scores), bool), np.ones(len(real.areas), bool)
    left[matched] = left_truths[matched_truths] = False
    left[_covered_by_own_crowd(crowds, detections, iou)] = False

    predicted, true = np.searchsorted(classes, detections.class_ids), np.searchsorted(classes, real.class_ids)
    matrix = np.zeros((background + 1, background + 1), np.int64)
    np.add.at(matrix, (predicted[matched], true[matched_truths]), 1)
    matrix[:background, background] = np.bincount(predicted[left], minlength=background)
    matrix[background, :background] = np.bincount(true[left_truths], minlength=background)
    return matrix


# Curves


def _counts_at(matches: Matches, confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


# Confusion


def _pick_truth(truth: GroundTruth, kept: np.ndarray) -> GroundTruth:
    return GroundTruth(*(column[kept] for column in vars(truth).values()))


def _pick_detections(detections: Detections, kept: np.ndarray) -> Detections:
    return Detections(*(column[kept] for column in vars(detections).values()))


def _pairs_in_images(truth: GroundTruth, detections: Detections, iou: float) -> Pairs:
    """Overlapping pairs of one image, of any classes, those of highest IoU first, then of highest score."""
    order = np.argsort(truth.image_ids, kind="stable")
    pairs = overlapping_pairs(
        detections.boxes_xywh,
        detections.image_ids,
        truth.boxes_xywh[order],
        truth.image_ids[order],
        truth.crowd[order],
        iou,
    )
    first = np.lexsort((-detections.scores[pairs.detection], -pairs.iou))
    return Pairs(pairs.detection[first], order[pairs.truth[first]], pairs.iou[first])


def _pair_up(pairs: Pairs) -> tuple[list[int], list[int]]:
    """Rows of detections and of ground truths that get each other when pairs are given away in order, each box once."""
    detections: dict[int, int] = {}
    taken: set[int] = set()
    for detection, truth in zip(pairs.detection.tolist(), pairs.truth.tolist(), strict=True):
        if detection not in detections and truth not in taken:
            detections[detection] = truth
            taken.add(truth)
    return list(detections), list(detections.values())


def _covered_by_own_crowd(crowds: GroundTruth, detections: Detections, share: float) -> np.ndarray:
    """Rows of the detections of which a crowd of their class covers at least `share`, int64 [n]."""
    pairs = _pairs_in_images(crowds, detections, share)
    same = crowds.class_ids[pairs.truth] == detections.class_ids[pairs.detection]
    return np.unique(pairs.detection[same])
