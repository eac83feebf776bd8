"""Images that look as if somebody forgot to label them.

An empty image may well be background on purpose. How sure it is that it is not follows from other
images: a copy of it that has boxes; images that look much like it, nearly all with boxes; a data
set in which hardly any image is empty. A model says more (python -m training.check).
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.check.boxes import MOST_LISTED
from data.check.copies import COPIES, Pair
from data.check.findings import NOTE, WARNING, Example, Finding, Picture, share
from data.check.reading import Examined
from data.layouts.similar import UNREADABLE
from utils.printable import counted, printable

LOOKS_LIKE = 15.0  # gray levels, RMS: frames of one camera differ by less, two photographs by more
FEWEST_LIKE = 3  # images that look like an empty one, to conclude from
MOST_WITH_BOXES = 0.9  # of those
RARELY_EMPTY = 0.95  # the share of images with boxes from which on an empty one is unusual
MOST_COMPARED = 5000  # empty images: 20,000 others take 3 s of one core
LIKELY = 0.5  # the score from which on it is a warning
BLOCK = 256  # empty images that are compared at once: 20 MB for 20,000 others


class Guess(NamedTuple):
    """How sure it is that an empty image should have boxes, in [0, 1], and why."""

    image: int  # its number among all images
    score: float
    reason: str
    like: int = -1  # the number of an image that it was compared with


def check_unlabeled(
    examined: Examined, paths: Sequence[str], thumbnails: Sequence[bytes], pairs: Sequence[Pair]
) -> list[Finding]:
    """Return the images without label file, and the empty images that look unlabeled.

    Args:
        examined: the data set.
        paths: of all images, split by split.
        thumbnails: of all images.
        pairs: of nearly identical images.
    """
    findings = [_without_file(examined)]

    objects = np.concatenate([split.labels.objects_per_image() for split in examined.splits])
    guesses = guess_unlabeled(objects, thumbnails, pairs)

    examples = []
    for guess in guesses[:MOST_LISTED]:
        path = paths[guess.image]

        pictures = [Picture(path)]
        reason = guess.reason
        if guess.like >= 0:
            pictures.append(Picture(paths[guess.like]))
            reason += f": {printable(paths[guess.like])}"

        example = Example(printable(path), reason, path, None, guess.score, tuple(pictures))
        examples.append(example)

    level = WARNING if guesses and guesses[0].score >= LIKELY else NOTE
    findings.append(
        Finding(
            "images-unlabeled",
            level,
            "image",
            "without boxes, perhaps forgotten when the data were labeled",
            len(guesses),
            "look at them, those with a high score first; training.check asks a model",
            tuple(examples),
        )
    )
    return [finding for finding in findings if finding.count]


def guess_unlabeled(
    objects: NDArray[np.int64], thumbnails: Sequence[bytes], pairs: Sequence[Pair]
) -> list[Guess]:
    """Return the empty images that may have been forgotten, the surest first.

    Args:
        objects: the number of boxes of each image.
        thumbnails: of each image.
        pairs: of nearly identical images.
    """
    guesses: dict[int, Guess] = {}
    for pair in pairs:
        if pair.kind not in COPIES:
            continue
        for one, other in ((pair.image, pair.earlier), (pair.earlier, pair.image)):
            if objects[one] == 0 and objects[other] > 0:
                reason = f"a copy of it has {counted(int(objects[other]), 'box')}"
                guesses.setdefault(one, Guess(one, 0.95, reason, other))

    empty = np.flatnonzero(objects == 0)
    for guess in _like_labeled_ones(objects, thumbnails, empty[:MOST_COMPARED]):
        guesses.setdefault(guess.image, guess)

    with_boxes = len(objects) - len(empty)
    if len(empty) and with_boxes >= RARELY_EMPTY * len(objects):
        usual = with_boxes / len(objects)
        reason = f"{share(with_boxes, len(objects))} of all images have boxes"
        for image in empty.tolist():
            guesses.setdefault(image, Guess(image, 0.5 * usual, reason))
    return sorted(guesses.values(), key=lambda guess: (-guess.score, guess.image))


def _like_labeled_ones(
    objects: NDArray[np.int64], thumbnails: Sequence[bytes], empty: NDArray[np.int64]
) -> list[Guess]:
    """Return the empty images that look like images with boxes."""
    flat = len(thumbnails), len(UNREADABLE)
    pixels = np.frombuffer(b"".join(thumbnails), np.uint8).reshape(flat).astype(np.float32)
    readable = np.array([thumbnail != UNREADABLE for thumbnail in thumbnails], bool)
    squares = np.square(pixels).sum(1)

    guesses = []
    for start in range(0, len(empty), BLOCK):
        # How far each image of a block is from all images: |a - b|^2 = |a|^2 + |b|^2 - 2 a.b
        block = empty[start : start + BLOCK]
        products = pixels[block] @ pixels.T
        distances = np.maximum(squares[block, None] + squares - 2 * products, 0)
        rms = np.sqrt(distances / len(UNREADABLE))  # [block, images]
        rms[:, ~readable] = np.inf

        for place, image in enumerate(block.tolist()):
            if not readable[image]:
                continue
            rms[place, image] = np.inf

            like = np.flatnonzero(rms[place] <= LOOKS_LIKE)
            with_boxes = like[objects[like] > 0]
            if len(like) < FEWEST_LIKE or len(with_boxes) < MOST_WITH_BOXES * len(like):
                continue

            nearest = int(with_boxes[rms[place, with_boxes].argmin()])
            # As if half an empty image more had been seen: few neighbors are not sure.
            score = 0.9 * len(with_boxes) / (len(like) + 0.5)

            reason = f"{len(with_boxes):,} of {len(like):,} images that look like it have boxes"
            guesses.append(Guess(image, score, f"{reason}, such as", nearest))
    return guesses


def _without_file(examined: Examined) -> Finding:
    """Return the images without a label file, where others of the split have one."""
    examples: list[Example] = []
    count = 0

    for split in examined.splits:
        missing = split.report.without_label_file
        if not missing or missing == len(split.labels):
            continue

        count += missing
        listed = split.listed(examined.spec)

        for image in np.flatnonzero(split.labels.objects_per_image() == 0).tolist():
            path = split.labels.path(image)
            entry = listed.get(path)
            if entry is None or not entry.has_own_file or os.path.lexists(entry.image.label_file):
                continue

            if len(examples) < MOST_LISTED:
                what = f"no {printable(entry.image.label_file)}"
                examples.append(Example(printable(path), what, path, pictures=(Picture(path),)))

    return Finding(
        "images-without-label-file",
        WARNING,
        "image",
        "without a label file, beside others of the split that have one",
        count,
        "they count as background: label them, or give them an empty label file",
        tuple(examples),
    )
