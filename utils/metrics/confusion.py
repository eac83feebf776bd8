"""The confusion matrix: how often each class was predicted as each class, in counts."""

from __future__ import annotations

import numpy as np

from utils.metrics.matching import Pairs, overlapping_pairs
from utils.metrics.records import Detections, GroundTruth, Ids


def confusion_matrix(
    truth: GroundTruth,
    detections: Detections,
    *,
    class_ids: Ids,
    confidence: float = 0.25,
    iou: float = 0.45,
) -> np.ndarray:
    """The confusion matrix in counts, int64 [K + 1, K + 1]: rows predicted, columns true.

    The last row and the last column are background. Detections of score `confidence` or more and
    ground truths of the same image are matched one to one, highest IoU first, whatever their
    classes. A detection without a match counts in the background column, unless a crowd of its
    class covers at least `iou` of it. A ground truth without a match counts in the background row.
    Raises: ValueError if iou is not in (0, 1].
    """
    if not 0 < iou <= 1:
        raise ValueError(
            f"The IoU of a confusion matrix is {iou}, but must be above 0 and at most 1."
        )
    classes = np.unique(class_ids)
    background = len(classes)
    truth = _pick_truth(truth, np.isin(truth.class_ids, classes))
    detections = _pick_detections(
        detections, np.isin(detections.class_ids, classes) & (detections.scores >= confidence)
    )
    real, crowds = _pick_truth(truth, ~truth.crowd), _pick_truth(truth, truth.crowd)

    matched, matched_truths = _match_one_to_one(_pairs_in_images(real, detections, iou))
    unmatched, unmatched_truths = (
        np.ones(len(detections.scores), bool),
        np.ones(len(real.areas), bool),
    )
    unmatched[matched] = unmatched_truths[matched_truths] = False
    unmatched[_covered_by_own_crowd(crowds, detections, iou)] = False

    predicted, true = (
        np.searchsorted(classes, detections.class_ids),
        np.searchsorted(classes, real.class_ids),
    )
    matrix = np.zeros((background + 1, background + 1), np.int64)
    np.add.at(matrix, (predicted[matched], true[matched_truths]), 1)
    matrix[:background, background] = np.bincount(predicted[unmatched], minlength=background)
    matrix[background, :background] = np.bincount(true[unmatched_truths], minlength=background)
    return matrix


def _pick_truth(truth: GroundTruth, kept: np.ndarray) -> GroundTruth:
    return GroundTruth(*(column[kept] for column in vars(truth).values()))


def _pick_detections(detections: Detections, kept: np.ndarray) -> Detections:
    return Detections(*(column[kept] for column in vars(detections).values()))


def _pairs_in_images(truth: GroundTruth, detections: Detections, iou: float) -> Pairs:
    """Overlapping pairs within each image, of any classes, highest IoU first, then highest
    score.
    """
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


def _match_one_to_one(pairs: Pairs) -> tuple[list[int], list[int]]:
    """Rows of the matched detections and of their ground truths: pairs are taken in order, each box
    once.
    """
    detections: dict[int, int] = {}
    taken: set[int] = set()
    for detection, truth in zip(pairs.detection.tolist(), pairs.truth.tolist(), strict=True):
        if detection not in detections and truth not in taken:
            detections[detection] = truth
            taken.add(truth)
    return list(detections), list(detections.values())


def _covered_by_own_crowd(crowds: GroundTruth, detections: Detections, share: float) -> np.ndarray:
    """Rows of the detections that a crowd of their class covers by at least `share`, int64 [n]."""
    pairs = _pairs_in_images(crowds, detections, share)
    same = crowds.class_ids[pairs.truth] == detections.class_ids[pairs.detection]
    return np.unique(pairs.detection[same])
