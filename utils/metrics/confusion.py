"""How often each class was taken for each: the confusion matrix, with counts."""

from __future__ import annotations

import numpy as np

from utils.metrics.matching import Pairs, overlapping_pairs
from utils.metrics.records import Detections, GroundTruth, Ids


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
