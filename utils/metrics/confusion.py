"""The confusion matrix: how often each class was predicted as each class, in counts."""

from __future__ import annotations

import numpy as np

from utils.metrics.matching import OverlappingPairs, overlapping_pairs
from utils.metrics.records import SHOWN_CONFIDENCE, Detections, GroundTruth, Ids

CONFUSION_IOU = 0.45  # lowest IoU of a match


def confusion_matrix(
    truth: GroundTruth,
    detections: Detections,
    *,
    class_ids: Ids,
    confidence: float = SHOWN_CONFIDENCE,
    iou: float = CONFUSION_IOU,
) -> np.ndarray:
    """Return the confusion matrix in counts, int64 [K + 1, K + 1]: rows predicted, columns true.

    The last row and the last column are background:

    - Detections of score `confidence` or more and ground truths of the same image are matched one
      to one, highest IoU first, whatever their classes.
    - A detection without a match counts in the background column, unless a crowd of its class
      covers at least `iou` of it.
    - A ground truth without a match counts in the background row.

    Args:
        truth, detections: rows of other classes are left out.
        class_ids: of the K classes, in any order.
        confidence: the lowest score that counts.
        iou: the lowest IoU of a match.

    Raises: ValueError if iou is not in (0, 1].
    """
    if not 0 < iou <= 1:
        raise ValueError(
            f"The IoU of a confusion matrix is {iou}, but must be above 0 and at most 1."
        )

    # Ground truths and detections that count. Crowds are not matched.
    classes = np.unique(class_ids)
    truth = _pick_truth(truth, np.isin(truth.class_ids, classes))
    objects = _pick_truth(truth, ~truth.crowd)
    crowds = _pick_truth(truth, truth.crowd)
    is_known = np.isin(detections.class_ids, classes)
    is_confident = detections.scores >= confidence
    detections = _pick_detections(detections, is_known & is_confident)

    # The rows of matched detections and of their objects.
    pairs = _pairs_in_images(objects, detections, iou)
    matched, matched_objects = _match_one_to_one(pairs)

    # False positives.
    is_false = np.ones(len(detections.scores), bool)
    is_false[matched] = False
    is_false[_covered_by_own_crowd(crowds, detections, iou)] = False

    # Missed objects.
    is_missed = np.ones(len(objects.areas), bool)
    is_missed[matched_objects] = False

    K = len(classes)  # also the index of background
    predicted = np.searchsorted(classes, detections.class_ids)
    true = np.searchsorted(classes, objects.class_ids)
    matrix = np.zeros((K + 1, K + 1), np.int64)
    np.add.at(matrix, (predicted[matched], true[matched_objects]), 1)
    matrix[:K, K] = np.bincount(predicted[is_false], minlength=K)
    matrix[K, :K] = np.bincount(true[is_missed], minlength=K)
    return matrix


def _pick_truth(truth: GroundTruth, kept: np.ndarray) -> GroundTruth:
    return GroundTruth(*(column[kept] for column in vars(truth).values()))


def _pick_detections(detections: Detections, kept: np.ndarray) -> Detections:
    return Detections(*(column[kept] for column in vars(detections).values()))


def _pairs_in_images(truth: GroundTruth, detections: Detections, iou: float) -> OverlappingPairs:
    """Return the overlapping pairs in each image, highest IoU first, then highest score.

    Pairs of any two classes. Those of an IoU below `iou` are left out.
    """
    # overlapping_pairs needs ground truths sorted by group, here by image
    order = np.argsort(truth.image_ids, kind="stable")
    pairs = overlapping_pairs(
        detections.boxes_xywh,
        detections.image_ids,
        truth.boxes_xywh[order],
        truth.image_ids[order],
        truth.crowd[order],
        iou,
    )

    scores = detections.scores[pairs.detection]
    best_first = np.lexsort((-scores, -pairs.iou))
    truths = order[pairs.truth[best_first]]
    return OverlappingPairs(pairs.detection[best_first], truths, pairs.iou[best_first])


def _match_one_to_one(pairs: OverlappingPairs) -> tuple[list[int], list[int]]:
    """Return the rows of the matched detections and those of their ground truths.

    Pairs are taken in order, each box once.
    """
    truth_of: dict[int, int] = {}  # of each matched detection
    taken: set[int] = set()
    for detection, truth in zip(pairs.detection.tolist(), pairs.truth.tolist(), strict=True):
        if detection not in truth_of and truth not in taken:
            truth_of[detection] = truth
            taken.add(truth)
    return list(truth_of), list(truth_of.values())


def _covered_by_own_crowd(crowds: GroundTruth, detections: Detections, share: float) -> np.ndarray:
    """Return the rows of detections that a crowd of their class covers by at least `share`."""
    pairs = _pairs_in_images(crowds, detections, share)  # the IoU with a crowd is that share
    is_own = crowds.class_ids[pairs.truth] == detections.class_ids[pairs.detection]
    return np.unique(pairs.detection[is_own])
