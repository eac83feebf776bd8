"""The findings of labels and detections that disagree."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data.check.boxes import MOST_LISTED
from data.check.findings import (
    DETECTION,
    LABEL,
    NOTE,
    WARNING,
    Box,
    Example,
    Finding,
    Mark,
    Picture,
)
from data.check.reading import Examined
from training.check import ranking
from training.check.predictions import Compared
from training.check.ranking import Boxes, Overlaps, Ranked
from utils.printable import excerpt, printable

NOT_FOUND = "labels-not-found"
LIKELY = 0.5  # the score from which on a fault counts; less sure ones are in the JSON file


class FaultKind(NamedTuple):
    """A kind of fault: how it is ranked, and what is said of it."""

    rank: Callable[[Boxes, Boxes, Overlaps], Ranked]
    name: str
    noun: str
    title: str
    advice: str


FAULT_KINDS = (
    FaultKind(
        ranking.missing_labels,
        "labels-missing",
        "detection",
        "without a label",
        "look at them in their order: label the objects, or pass over the model's mistakes",
    ),
    FaultKind(
        ranking.swapped_classes,
        "labels-swapped",
        "label",
        "where the model finds another class",
        "look at them in their order: correct the class, or pass over the model's mistakes",
    ),
    FaultKind(
        ranking.badly_placed,
        "labels-badly-placed",
        "label",
        "that the model finds in a slightly other place",
        "look at them in their order: move the box to its object",
    ),
    FaultKind(
        ranking.unfound_labels,
        NOT_FOUND,
        "label",
        "where the model finds nothing",
        "look at them in their order: remove those without an object; the others are hard to find",
    ),
)


class Place(NamedTuple):
    """One fault: its split, and its number in the ranking of that split."""

    compared: Compared
    ranked: Ranked
    number: int

    @property
    def score(self) -> float:
        return float(self.ranked.scores[self.number])


def rank(compared: Sequence[Compared]) -> dict[str, list[Ranked]]:
    """Return the faults of each kind in FAULT_KINDS, by its name, for each split."""
    ranked: dict[str, list[Ranked]] = {check.name: [] for check in FAULT_KINDS}
    for part in compared:
        found = ranking.overlaps(part.labels, part.detections)
        for check in FAULT_KINDS:
            ranked[check.name].append(check.rank(part.labels, part.detections, found))
    return ranked


def rank_images(
    compared: Sequence[Compared], ranked: Mapping[str, Sequence[Ranked]]
) -> list[tuple[str, float]]:
    """Return the paths of images with a fault and the score of their surest one, surest first.

    Labels where the model finds nothing do not count: most of them are hard to find, not wrong.
    """
    scored = []
    for number, part in enumerate(compared):
        faults = [splits[number] for name, splits in ranked.items() if name != NOT_FOUND]
        labels = part.split.labels
        scores = ranking.image_scores(part.labels, part.detections, faults, len(labels))
        scored += [(labels.path(image), scores[image]) for image in np.flatnonzero(scores).tolist()]
    scored.sort(key=lambda entry: -entry[1])
    return [(path, float(score)) for path, score in scored]


def check_labels(
    examined: Examined, compared: Sequence[Compared], ranked: Mapping[str, Sequence[Ranked]]
) -> list[Finding]:
    """Return a finding for each kind of disagreement, its places ranked over all splits.

    Args:
        examined: the data set.
        compared: labels and detections of each split.
        ranked: as `rank` returns it.
    """
    findings = []
    for check in FAULT_KINDS:
        places = []
        for part, faults in zip(compared, ranked[check.name], strict=True):
            places += [Place(part, faults, number) for number in range(len(faults.scores))]
        places.sort(key=lambda place: -place.score)
        likely = sum(place.score >= LIKELY for place in places)
        if not places:
            continue
        examples = tuple(_example(examined, place) for place in places[:MOST_LISTED])
        level = WARNING if likely else NOTE
        title = f"{check.title} (score of {LIKELY} or more)"
        findings.append(
            Finding(check.name, level, check.noun, title, likely, check.advice, examples)
        )
    return findings


def _example(examined: Examined, place: Place) -> Example:
    """Return an example with the label and the detection that a fault is about."""
    part, ranked = place.compared, place.ranked
    label = int(ranked.labels[place.number])
    detection = int(ranked.detections[place.number])
    image = int(part.labels.images[label] if label >= 0 else part.detections.images[detection])
    path = part.split.labels.path(image)

    where = printable(path)
    texts = []
    marks = []
    box: Box | None = None
    if label >= 0:
        row = int(part.rows[label] - part.split.labels.offsets[image])
        where = examined.place_of(part.split, image, row)
        box = _box(part.labels, label)
        marks.append(Mark(box, LABEL))
        texts.append(f"label {_class_name(part, part.labels, label)}")
    if detection >= 0:
        found = _box(part.detections, detection)
        marks.append(Mark(found, DETECTION))
        box = box or found
        confidence = part.detections.scores[detection]
        name = _class_name(part, part.detections, detection)
        texts.append(f"detection {name} {confidence:.2f}")
    if label >= 0 and detection >= 0:
        texts.append(f"IoU {ranked.ious[place.number]:.2f}")
    picture = Picture(path, tuple(marks))
    return Example(where, ", ".join(texts), path, box, place.score, (picture,))


def _box(boxes: Boxes, number: int) -> Box:
    x, y, width, height = np.asarray(boxes.boxes_xywh[number], float).tolist()
    return x, y, width, height


def _class_name(part: Compared, boxes: Boxes, number: int) -> str:
    return excerpt(part.names[int(boxes.classes[number])])
