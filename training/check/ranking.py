"""Rank labels and detections that disagree, by how sure it is that the label is wrong.

Four kinds of faults, after ObjectLab: a label is missing, has another class, lies badly, or nothing
is there. Each gets a score in [0, 1], which is higher for a surer fault. The scores differ from
ObjectLab's: they use the confidences of both classes and compare overlaps with what is usual for
the class, so that a class that the model knows badly does not fill the top of the list.

D detections, G labels, P pairs of the two.

Source: ObjectLab: Automated Diagnosis of Mislabeled Images in Object Detection Data, arXiv
2309.00832, section 3, for the kinds; confident learning, arXiv 1911.00068, for comparing a label
with the class that a model finds in its place.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from utils.metrics.matching import OverlappingPairs, overlapping_pairs

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

LEAST_IOU = 0.1  # pairs that overlap less have nothing to do with each other
SAME_OBJECT = 0.5  # IoU of a label and a detection of one object
NEAR_OBJECT = 0.3  # IoU from which on a detection may be of a label that lies badly
GOOD_IOU = 0.8  # a label that overlaps a detection of its class so much lies well
USUAL_IOU = 0.85  # taken as usual for a class with few matches
FEW_MATCHES = 5
CLEAR_SHORTFALL = 0.35  # of the usual IoU: more does not make it surer
FOUND = 0.25  # confidence from which on a detection counts as found
TOO_LOW = 0.05  # scores that are not listed


@dataclass(frozen=True)
class Boxes:
    """Boxes of a split: labels, or detections with their scores."""

    images: Ids  # [N], number of the image, ascending for labels
    classes: Ids  # [N]
    boxes_xywh: Floats  # [N, 4], in pixels
    scores: Floats  # [N], 1 for labels

    def __len__(self) -> int:
        return len(self.classes)

    def chosen(self, is_chosen: NDArray[np.bool_]) -> "Boxes":
        """Return some of the boxes. is_chosen: [N]."""
        return Boxes(
            self.images[is_chosen],
            self.classes[is_chosen],
            self.boxes_xywh[is_chosen],
            self.scores[is_chosen],
        )


@dataclass(frozen=True)
class Ranked:
    """Faults of one kind, the surest first."""

    labels: Ids  # [K], the label of each; -1 where one is missing
    detections: Ids  # [K], the detection that it is about; -1 where there is none
    scores: Floats  # [K], in (0, 1]
    ious: Floats  # [K], of the two, or the largest one with a label


@dataclass(frozen=True)
class Overlaps:
    """The pairs of detections and labels that overlap, of any classes."""

    pairs: OverlappingPairs
    same_class: NDArray[np.bool_]  # [P]
    confidence: Floats  # [P], of the detection


def overlaps(labels: Boxes, detections: Boxes) -> Overlaps:
    """Return the pairs of one image that overlap by LEAST_IOU or more."""
    no_crowd = np.zeros(len(labels), bool)
    pairs = overlapping_pairs(
        detections.boxes_xywh,
        detections.images,
        labels.boxes_xywh,
        labels.images,
        no_crowd,
        LEAST_IOU,
    )
    same_class = detections.classes[pairs.detection] == labels.classes[pairs.truth]
    return Overlaps(pairs, same_class, detections.scores[pairs.detection])


def largest_ious(detections: Boxes, labels: Boxes) -> Floats:
    """Return the largest IoU of each detection with a label of any class, [D].

    It is 0 where it is below LEAST_IOU.
    """
    pairs = overlaps(labels, detections).pairs
    return _largest(pairs.iou, pairs.detection, len(detections))


def missing_labels(labels: Boxes, detections: Boxes, found: Overlaps) -> Ranked:
    """Return the confident detections without a label.

    Score: confidence x (1 - square of the largest IoU with a label of any class). A label of
    another class in the same place is no missing one. Of detections in one place only the most
    confident counts.
    """
    largest = _largest(found.pairs.iou, found.pairs.detection, len(detections))
    unlabeled = np.flatnonzero((largest < SAME_OBJECT) & (detections.scores >= TOO_LOW))
    kept = _most_confident_in_place(detections, unlabeled)
    scores = detections.scores[kept] * (1 - np.square(largest[kept]))
    return _ranked(np.full(len(kept), -1), kept, scores, largest[kept])


def swapped_classes(labels: Boxes, detections: Boxes, found: Overlaps) -> Ranked:
    """Return the labels in whose place the model finds another class.

    Score: confidence of the other class x its share of that and the confidence of the label's own
    class, both of detections that overlap the label by SAME_OBJECT.
    """
    in_place = found.pairs.iou >= SAME_OBJECT
    own = _confidence_of_class(labels, found, in_place & found.same_class)
    others = np.flatnonzero(in_place & ~found.same_class)

    # The most confident detection of another class for each label, unless it is another label's.
    owner = _best_label_of_class(labels, detections, found)
    free = owner[found.pairs.detection[others]] < SAME_OBJECT
    others = others[free]
    best = _first_of_each(found.pairs.truth[others], -found.confidence[others])
    chosen = others[best]

    label = found.pairs.truth[chosen]
    other = found.confidence[chosen]
    scores = other * other / (other + own[label])
    return _ranked(label, found.pairs.detection[chosen], scores, found.pairs.iou[chosen])


def badly_placed(labels: Boxes, detections: Boxes, found: Overlaps) -> Ranked:
    """Return the labels beside which, not in whose place, the model finds their class.

    Score: root of the confidence x how much smaller the IoU is than usual for the class, as a share
    of CLEAR_SHORTFALL, at most 1. The detection is the one of the class that overlaps the label
    most, and overlaps no other label of the class more.
    """
    own = np.flatnonzero(found.same_class & (found.pairs.iou >= NEAR_OBJECT))
    label = found.pairs.truth[own]
    detection = found.pairs.detection[own]
    usual = usual_ious(labels, found)

    # Each detection with its best label, then each label with its best detection.
    best_label = _largest(found.pairs.iou[own], detection, len(detections))
    is_own = found.pairs.iou[own] >= best_label[detection]
    own, label, detection = own[is_own], label[is_own], detection[is_own]
    best = _first_of_each(label, -found.pairs.iou[own])
    own, label, detection = own[best], label[best], detection[best]

    iou = found.pairs.iou[own]
    shortfall = 1 - iou / usual[labels.classes[label]]
    scores = np.sqrt(found.confidence[own]) * np.clip(shortfall / CLEAR_SHORTFALL, 0, 1)
    scores[iou >= GOOD_IOU] = 0
    return _ranked(label, detection, scores, iou)


def unfound_labels(labels: Boxes, detections: Boxes, found: Overlaps) -> Ranked:
    """Return the labels in whose place the model finds nothing, of any class.

    Score: share of the labels of the class that are found x (1 - largest confidence of a detection
    near the label).
    """
    near = found.pairs.iou >= NEAR_OBJECT
    best = np.zeros(len(labels))
    np.maximum.at(best, found.pairs.truth[near], found.confidence[near])
    is_found = best >= FOUND

    count = int(labels.classes.max(initial=0)) + 1
    of_class = np.bincount(labels.classes, minlength=count)
    found_of_class = np.bincount(labels.classes, is_found, minlength=count)
    recall = found_of_class / np.maximum(of_class, 1)

    chosen = np.flatnonzero(~is_found)
    scores = recall[labels.classes[chosen]] * (1 - best[chosen])
    largest = _largest(found.pairs.iou, found.pairs.truth, len(labels))
    return _ranked(chosen, np.full(len(chosen), -1), scores, largest[chosen])


def usual_ious(labels: Boxes, found: Overlaps) -> Floats:
    """Return the median IoU of each class's labels with confident detections of it, [C]."""
    confident = found.same_class & (found.confidence >= FOUND) & (found.pairs.iou >= SAME_OBJECT)
    best = _largest(found.pairs.iou[confident], found.pairs.truth[confident], len(labels))
    count = int(labels.classes.max(initial=0)) + 1
    usual = np.full(count, USUAL_IOU)
    for number in np.unique(labels.classes).tolist():
        of_class = best[(labels.classes == number) & (best > 0)]
        if len(of_class) >= FEW_MATCHES:
            usual[number] = np.median(of_class)
    return usual


# ------------------------------------------------------------------------------ parts of the rules


def _ranked(labels: Ids, detections: Ids, scores: Floats, ious: Floats) -> Ranked:
    """Return what scores more than TOO_LOW, the highest first; equal ones in their order."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] > TOO_LOW]
    return Ranked(labels[order], detections[order], scores[order], ious[order])


def _largest(values: Floats, owners: Ids, count: int) -> Floats:
    """Return the largest value of each owner, [count]; 0 without any."""
    largest = np.zeros(count)
    np.maximum.at(largest, owners, values)
    return largest


def _first_of_each(owners: Ids, keys: Floats) -> Ids:
    """Return the place of the smallest key of each owner."""
    order = np.lexsort((keys, owners))
    _, first = np.unique(owners[order], return_index=True)
    chosen: Ids = order[first]
    return chosen


def _confidence_of_class(labels: Boxes, found: Overlaps, chosen: NDArray[np.bool_]) -> Floats:
    """Return the largest confidence among chosen pairs of each label, [G]."""
    return _largest(found.confidence[chosen], found.pairs.truth[chosen], len(labels))


def _best_label_of_class(labels: Boxes, detections: Boxes, found: Overlaps) -> Floats:
    """Return the largest IoU of each detection with a label of its class, [D]."""
    own = found.same_class
    return _largest(found.pairs.iou[own], found.pairs.detection[own], len(detections))


def _most_confident_in_place(detections: Boxes, chosen: Ids) -> Ids:
    """Return the chosen detections without those that overlap a more confident one of them."""
    order = chosen[np.argsort(-detections.scores[chosen], kind="stable")]
    by_image = order[np.argsort(detections.images[order], kind="stable")]
    boxes = detections.boxes_xywh[by_image]
    images = detections.images[by_image]
    no_crowd = np.zeros(len(by_image), bool)
    pairs = overlapping_pairs(boxes, images, boxes, images, no_crowd, SAME_OBJECT)

    # In an image the more confident ones come first; one that is left out hides no other.
    kept = np.ones(len(by_image), bool)
    for later, earlier in zip(pairs.detection.tolist(), pairs.truth.tolist(), strict=True):
        if earlier < later and kept[earlier]:
            kept[later] = False
    return by_image[kept]


def image_scores(labels: Boxes, detections: Boxes, ranked: Iterable[Ranked], images: int) -> Floats:
    """Return how sure it is that an image has a fault: the score of its surest one, [images].

    Args:
        labels: of all images.
        detections: of all images.
        ranked: the faults of each kind.
        images: their number.
    """
    surest = np.zeros(images)
    for faults in ranked:
        image = np.empty(len(faults.labels), np.int64)
        is_missing = faults.labels < 0
        image[is_missing] = detections.images[faults.detections[is_missing]]
        image[~is_missing] = labels.images[faults.labels[~is_missing]]
        np.maximum.at(surest, image, faults.scores)
    return surest
