"""Errors by kind after TIDE: what each detection and each ground truth is, and what a kind costs.

A detection that found no ground truth of its class is one of five kinds of error. A ground truth
that no detection found, and that no such error would have found if it were corrected, is missed.

Legend: G ground truths, D detections, P pairs of the two, K classes in order of class id. Boxes
are xywh in pixels.

Source: D. Bolya, S. Foley, J. Hays, J. Hoffman, "TIDE: A General Toolbox for Identifying Object
Detection Errors", arXiv 2008.08115, section 2; behavior as of tidecv 1.0.1, MIT License.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from utils.metrics.errors.costs import Marked, error_costs
from utils.metrics.matching import OverlappingPairs, blocks_of, match_pairs, overlapping_pairs
from utils.metrics.records import Detections, GroundTruth, Ids

ERROR_KINDS = ("classification", "localization", "both", "duplicate", "background", "missed")
CLASSIFICATION, LOCALIZATION, BOTH, DUPLICATE, BACKGROUND, MISSED = range(6)
RIGHT = -1  # a detection that found a ground truth, or a ground truth that was found
NOT_COUNTED = -2
CLAIMED = -3  # a ground truth that a misplaced or misclassified detection would have found

MATCH_IOU = 0.5  # TIDE's tf: from here on a detection finds a ground truth of its class
BACKGROUND_IOU = 0.1  # TIDE's tb: up to here a detection touches nothing
DETECTIONS_PER_IMAGE = 100  # of all classes together


@dataclass(frozen=True)
class ErrorKinds:
    """The errors of a set of detections by kind.

    Rows are those of the Detections and the GroundTruth that were given.
    """

    ap: float  # mean AP at IoU 0.5 as TIDE counts it, in [0, 1]; -1 without ground truth
    cost: dict[str, float]  # AP gained without the errors of a kind, or of a special kind
    counts: dict[str, int]  # of each kind
    in_crowd: dict[str, int]  # how many of them are detections in a crowd: not right, not wrong
    class_ids: np.ndarray  # int64 [K]
    class_counts: np.ndarray  # int64 [6, K], by class of the detection or missed ground truth
    detection_kind: np.ndarray  # int8 [D], index in ERROR_KINDS, RIGHT or NOT_COUNTED
    detection_truth: np.ndarray  # int64 [D], row of the ground truth that it belongs to, or -1
    detection_in_crowd: np.ndarray  # bool [D]
    truth_kind: np.ndarray  # int8 [G], MISSED, RIGHT, CLAIMED or NOT_COUNTED
    truth_detection: np.ndarray  # int64 [G], row of the detection that found or claims it, or -1

    def as_dict(self) -> dict[str, Any]:
        """Return the AP, and the count and the cost of each kind, as plain values."""
        kinds: dict[str, dict[str, float]] = {}
        for name in self.cost:
            kinds[name] = {"cost": self.cost[name]}
            if name in self.counts:
                kinds[name]["count"] = self.counts[name]
                kinds[name]["in_crowd"] = self.in_crowd[name]
        return {"ap": self.ap, "kinds": kinds}


def error_kinds(
    truth: GroundTruth, detections: Detections, *, image_ids: Ids, class_ids: Ids
) -> ErrorKinds:
    """Return the errors by kind, as tidecv with its default thresholds for boxes.

    The 100 most confident detections of each image count, over all classes. Each takes in turn the
    free ground truth of its class of highest IoU, if that is at least 0.5. Any other detection is
    the first of these that holds:

    - localization: its best IoU with a ground truth of its class is from 0.1 to 0.5.
    - classification: its best IoU with a ground truth of another class is at least 0.5.
    - duplicate: it has an IoU of at least 0.5 with a ground truth of its class that was found.
    - background: it has no IoU above 0.1 with any ground truth.
    - both: its class and its place are wrong.

    A ground truth that was not found is claimed by its misplaced and misclassified detections; one
    without any is missed.

    A detection of which more than half is in a crowd of its class, and that found nothing, does not
    count in the AP. It has a kind nevertheless, as in tidecv; `detection_in_crowd` marks it.

    Of equal IoUs the first ground truth is taken, of equal scores the first detection.

    Rows of other images and classes are left out.
    """
    images = np.unique(image_ids).astype(np.int64)
    classes = np.unique(class_ids).astype(np.int64)
    is_known = np.isin(truth.image_ids, images) & np.isin(truth.class_ids, classes)
    objects = _pick_truths(truth, is_known & ~truth.crowd, images, classes)
    crowds = _pick_truths(truth, is_known & truth.crowd, images, classes)
    picked = _pick_detections(detections, images, classes)

    kind, partner, claims = _classify(picked, objects, len(images), len(classes))
    in_crowd = _covered_by_crowd(picked, crowds) & (kind != RIGHT)

    # What each ground truth is, and the detection that found or claims it.
    truth_kind = np.full(len(objects.rows), MISSED, np.int8)
    owner = np.full(len(objects.rows), -1)
    for owners, state in ((claims, CLAIMED), (kind == RIGHT, RIGHT)):
        truth_kind[partner[owners]] = state
        owner[partner[owners]] = picked.rows[owners]

    # Counts, and what they cost.
    K = len(classes)
    class_counts = np.zeros((len(ERROR_KINDS), K), np.int64)
    for number in range(MISSED):
        class_counts[number] = np.bincount(picked.classes[kind == number], minlength=K)
    class_counts[MISSED] = np.bincount(objects.classes[truth_kind == MISSED], minlength=K)
    counts = class_counts.sum(axis=1).tolist()
    counts_in_crowd = np.bincount(kind[in_crowd], minlength=len(ERROR_KINDS)).tolist()

    # A misclassified detection that is corrected has the class of its ground truth.
    corrected = picked.classes.copy()
    corrected[claims] = objects.classes[partner[claims]]
    marked = Marked(picked.classes, picked.scores, kind, in_crowd, claims, corrected)
    truths = np.bincount(objects.classes, minlength=K)
    ap, cost = error_costs(marked, truths, class_counts[MISSED], ERROR_KINDS, RIGHT)

    D = len(detections.scores)
    G = len(truth.areas)
    partner_row = np.append(objects.rows, -1)[partner]  # -1 stays -1
    return ErrorKinds(
        ap=ap,
        cost=cost,
        counts=dict(zip(ERROR_KINDS, counts, strict=True)),
        in_crowd=dict(zip(ERROR_KINDS, counts_in_crowd, strict=True)),
        class_ids=classes,
        class_counts=class_counts,
        detection_kind=_spread(kind, picked.rows, D, NOT_COUNTED),
        detection_truth=_spread(partner_row, picked.rows, D, -1),
        detection_in_crowd=_spread(in_crowd, picked.rows, D, False),
        truth_kind=_spread(truth_kind, objects.rows, G, NOT_COUNTED),
        truth_detection=_spread(owner, objects.rows, G, -1),
    )


class _Truths(NamedTuple):
    """Ground truths of known images and classes, sorted by image."""

    rows: np.ndarray  # int64 [n], in the GroundTruth
    images: np.ndarray  # int64 [n], index of the image
    classes: np.ndarray  # int64 [n], index of the class
    boxes_xywh: np.ndarray  # float64 [n, 4]
    crowd: np.ndarray  # bool [n]


class _Detected(NamedTuple):
    """The detections that count, sorted by image, class, descending score, row."""

    rows: np.ndarray  # int64 [n], in the Detections
    images: np.ndarray  # int64 [n], index of the image
    classes: np.ndarray  # int64 [n], index of the class
    boxes_xywh: np.ndarray  # float64 [n, 4]
    scores: np.ndarray  # float64 [n]


def _pick_truths(
    truth: GroundTruth, chosen: np.ndarray, images: np.ndarray, classes: np.ndarray
) -> _Truths:
    """Return the chosen ground truths. chosen: bool [G], of known image and class only."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(truth.image_ids[rows], kind="stable")]
    image = np.searchsorted(images, truth.image_ids[rows])
    class_of = np.searchsorted(classes, truth.class_ids[rows])
    return _Truths(rows, image, class_of, truth.boxes_xywh[rows], truth.crowd[rows])


def _pick_detections(detections: Detections, images: np.ndarray, classes: np.ndarray) -> _Detected:
    """Return the most confident detections of each image, of known images and classes."""
    is_known = np.isin(detections.image_ids, images) & np.isin(detections.class_ids, classes)
    rows = np.flatnonzero(is_known)
    rows = rows[np.lexsort((-detections.scores[rows], detections.image_ids[rows]))]

    # The first of each image.
    ids = detections.image_ids[rows]
    rank = np.arange(len(ids)) - np.searchsorted(ids, ids)
    rows = rows[rank < DETECTIONS_PER_IMAGE]

    image = np.searchsorted(images, detections.image_ids[rows])
    class_of = np.searchsorted(classes, detections.class_ids[rows])
    order = np.lexsort((class_of, image))
    rows = rows[order]
    return _Detected(
        rows,
        image[order],
        class_of[order],
        detections.boxes_xywh[rows],
        detections.scores[rows],
    )


def _classify(
    picked: _Detected, objects: _Truths, num_images: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the kind of each detection, its ground truth, and whether it claims that.

    They are int8, int64 (-1 for none) and bool, [n] each. A claim is the most confident misplaced
    or misclassified detection of a ground truth that was not found.

    Images are taken in blocks, which bounds the memory.
    """
    first_detection = np.searchsorted(picked.images, np.arange(num_images + 1))
    first_object = np.searchsorted(objects.images, np.arange(num_images + 1))
    kind = np.zeros(len(picked.rows), np.int8)
    partner = np.zeros(len(picked.rows), np.int64)
    claims = np.zeros(len(picked.rows), bool)

    pairs_of_image = np.diff(first_detection) * np.diff(first_object)
    for start, stop in blocks_of(pairs_of_image):
        block = slice(first_detection[start], first_detection[stop])
        objects_of_block = slice(first_object[start], first_object[stop])
        some = _Detected(*(column[block] for column in picked))
        some_objects = _Truths(*(column[objects_of_block] for column in objects))

        kind[block], own_partner, claims[block] = _classify_block(some, some_objects, num_classes)
        own_partner[own_partner >= 0] += first_object[start]
        partner[block] = own_partner
    return kind, partner, claims


def _classify_block(
    picked: _Detected, objects: _Truths, num_classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what `_classify` does, of some images."""
    pairs = _pairs_in_images(picked, objects)
    is_same = picked.classes[pairs.detection] == objects.classes[pairs.truth]  # class, [P]

    found = _found_truths(pairs, is_same, picked, objects, num_classes)
    is_found = np.zeros(len(objects.rows), bool)
    is_found[found[found >= 0]] = True

    kind, partner = _kinds(pairs, is_same, found, is_found)
    claims = _claims(picked, kind, partner, is_found)
    return kind, partner, claims


def _found_truths(
    pairs: OverlappingPairs,
    is_same: np.ndarray,
    picked: _Detected,
    objects: _Truths,
    num_classes: int,
) -> np.ndarray:
    """Return the ground truth that each detection finds, int64 [n], -1 for none.

    is_same: bool [P], whether the two of a pair have the same class.
    """
    can_match = _choose(pairs, is_same & (pairs.iou >= MATCH_IOU))
    # Of equal IoUs the first is to be taken, and match_pairs takes the last.
    backwards = OverlappingPairs(*(column[::-1] for column in can_match))
    groups = picked.images * num_classes + picked.classes
    return match_pairs(backwards, groups, len(objects.rows))


def _kinds(
    pairs: OverlappingPairs, is_same: np.ndarray, found: np.ndarray, is_found: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the kind of each detection, int8 [n], and its ground truth, int64 [n], -1 for none.

    Args:
        pairs: best first.
        is_same: bool [P], whether the two of a pair have the same class.
        found: int64 [n], the ground truth that each detection finds, -1 for none.
        is_found: bool [g], whether a detection finds the ground truth.
    """
    n = len(found)
    nearest = _best_of(pairs, n)  # of any class
    own = _best_of(_choose(pairs, is_same), n)
    other = _best_of(_choose(pairs, ~is_same), n)  # of another class
    repeated = _best_of(_choose(pairs, is_same & is_found[pairs.truth]), n)

    # What is left when no rule holds, then each rule from the last to the first, which prevails.
    kind = np.full(n, BOTH, np.int8)
    partner = nearest.truth.copy()

    is_background = nearest.iou <= BACKGROUND_IOU
    kind[is_background] = BACKGROUND
    partner[is_background] = -1

    is_duplicate = repeated.iou >= MATCH_IOU
    kind[is_duplicate] = DUPLICATE
    partner[is_duplicate] = repeated.truth[is_duplicate]

    is_misclassified = other.iou >= MATCH_IOU
    kind[is_misclassified] = CLASSIFICATION
    partner[is_misclassified] = other.truth[is_misclassified]

    is_misplaced = (own.iou >= BACKGROUND_IOU) & (own.iou <= MATCH_IOU)
    kind[is_misplaced] = LOCALIZATION
    partner[is_misplaced] = own.truth[is_misplaced]

    is_right = found >= 0
    kind[is_right] = RIGHT
    partner[is_right] = found[is_right]
    return kind, partner


def _claims(
    picked: _Detected, kind: np.ndarray, partner: np.ndarray, is_found: np.ndarray
) -> np.ndarray:
    """Return which detections claim their ground truth, bool [n]: one for each that has any.

    kind, partner: as `_kinds` returns them. is_found: bool [g].
    """
    # Detections that would find their ground truth if they were corrected.
    is_correctable = (kind == LOCALIZATION) | (kind == CLASSIFICATION)
    correctable = np.flatnonzero(is_correctable)
    candidates = correctable[~is_found[partner[correctable]]]

    # Of those with one ground truth the most confident; of equal scores the first row.
    order = np.lexsort((picked.rows[candidates], -picked.scores[candidates]))
    ordered = candidates[order]
    _, first = np.unique(partner[ordered], return_index=True)

    claims = np.zeros(len(kind), bool)
    claims[ordered[first]] = True
    return claims


def _pairs_in_images(picked: _Detected, truths: _Truths) -> OverlappingPairs:
    """Return the pairs of one image, of any classes, that overlap by BACKGROUND_IOU or more.

    Ordered by detection, then descending IoU, then ground truth.
    """
    pairs = overlapping_pairs(
        picked.boxes_xywh,
        picked.images,
        truths.boxes_xywh,
        truths.images,
        truths.crowd,
        BACKGROUND_IOU,
    )
    order = np.lexsort((-pairs.iou, pairs.detection))
    return _choose(pairs, order)


def _choose(pairs: OverlappingPairs, chosen: np.ndarray) -> OverlappingPairs:
    return OverlappingPairs(*(column[chosen] for column in pairs))


class _Best(NamedTuple):
    """A ground truth of each detection."""

    truth: np.ndarray  # int64 [n], -1 for none
    iou: np.ndarray  # float64 [n], 0 for none


def _best_of(pairs: OverlappingPairs, num_detections: int) -> _Best:
    """Return the ground truth of the first pair of each detection. pairs: best first."""
    first = np.flatnonzero(np.diff(pairs.detection, prepend=-1))
    owner = pairs.detection[first]
    truth = np.full(num_detections, -1)
    truth[owner] = pairs.truth[first]
    iou = np.zeros(num_detections)
    iou[owner] = pairs.iou[first]
    return _Best(truth, iou)


def _covered_by_crowd(picked: _Detected, crowds: _Truths) -> np.ndarray:
    """Return whether more than MATCH_IOU of a detection is in a crowd of its class, bool [n]."""
    pairs = _pairs_in_images(picked, crowds)  # the IoU with a crowd is that share
    is_same = picked.classes[pairs.detection] == crowds.classes[pairs.truth]
    covered = np.zeros(len(picked.rows), bool)
    covered[pairs.detection[is_same & (pairs.iou > MATCH_IOU)]] = True
    return covered


def _spread(values: np.ndarray, rows: np.ndarray, length: int, fill: int | bool) -> np.ndarray:
    """Return an array of `length` that has each value in its row, and `fill` elsewhere."""
    spread = np.full(length, fill, values.dtype)
    spread[rows] = values
    return spread
