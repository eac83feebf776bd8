"""Random small sets of ground truths and detections, for errors by kind.

Drawn with Python's own generator, whose `random()` is the same in all versions, so that another
program can draw the same cases. Nothing is imported here but the standard library.
"""

from random import Random
from typing import NamedTuple

NUM_CASES = 240
FIRST_WITH_TIES = 200  # whole pixels and scores in steps of 0.1 from here on


class ErrorCase(NamedTuple):
    """A case; rows are image, class, x, y, w, h, and crowd or score."""

    images: list[int]
    classes: list[int]
    truths: list[tuple]
    detections: list[tuple]


def draw_error_case(number: int) -> ErrorCase:
    """Return a case.

    Some images have no object or no detection, some classes no object, no detection, or neither.
    Every tenth case has no detections in most images; every 25th has none at all; every 20th has
    an image with more than 100.
    """
    source = Random(number)
    has_ties = number >= FIRST_WITH_TIES

    def pick(options):
        return options[int(source.random() * len(options))]

    def between(low, high):
        value = low + source.random() * (high - low)
        return float(round(value)) if has_ties else value

    def score():
        return round(source.random(), 1) if has_ties else source.random()

    images = [3 * i + 1 for i in range(pick([1, 2, 3, 4, 6]))]
    classes = [2 * k + 5 for k in range(pick([1, 2, 3, 5]))]
    true_classes = classes[: pick([1, 2, len(classes)])]
    truths = []
    for image in images:
        for _ in range(pick([0, 1, 2, 4, 8])):
            box = [between(0, 80), between(0, 80), between(8, 60), between(8, 60)]
            truths.append((image, pick(true_classes), *box, source.random() < 0.15))

    detections = []
    if number % 25 != 7:
        for image in images:
            is_empty = number % 10 == 3 and source.random() < 0.7
            own = [row for row in truths if row[0] == image]
            for _ in range(0 if is_empty else pick([0, 2, 5, 10, 20])):
                box = [between(0, 90), between(0, 90), between(4, 50), between(4, 50)]
                kind = pick(classes)
                if own and source.random() < 0.8:
                    _, kind, *box, _ = pick(own)
                    spread = pick([0, 2, 8, 20])
                    box = [side + between(-spread, spread) for side in box]
                    box[2:] = [max(side, 1.0) for side in box[2:]]
                    kind = pick([kind, kind, kind, pick(classes)])
                detections.append((image, kind, *box, score()))
    if number % 20 == 9:
        for _ in range(130):
            box = [between(0, 90), between(0, 90), between(4, 50), between(4, 50)]
            detections.append((images[0], pick(classes), *box, score()))
    return ErrorCase(images, classes, truths, detections)
