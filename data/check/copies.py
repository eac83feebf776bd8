"""Images that are copies of others, within a split and across splits, also changed ones.

Candidates are nearly identical thumbnails, mirrored ones too (data/layouts/similar.py). A second
look at 48 x 48 pixels tells copies from other photographs of the same scene.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.check.boxes import MOST_LISTED
from data.check.findings import ERROR, NOTE, WARNING, Example, Finding, Picture, share
from data.check.reading import Examined
from data.labels import Labels
from data.layouts.similar import close_images, first_of_equals, reduced_gray
from utils.images.decode import quiet_decoder, read_bytes
from utils.metrics.matching import overlapping_pairs
from utils.printable import printable
from utils.threads import map_ahead

DETAIL_SIDE = 48  # of the pixels that are compared in the second look
# Gray levels: copies of half the size to 1.5 times differ by at most 17, other photographs of one
# chess board mostly by more than 20.
DETAIL_DIFFERENCE = 20
LOOKED_AT = 2000  # pairs that get a second look, 5 ms of one core each, unless files are equal
SAME_BOX_IOU = 0.5
NONE = -1

SAME_FILE = "the same file as"
EQUAL = "equal to"
COPY = "nearly identical to"
MIRRORED = "mirrored, nearly identical to"
SCENE = "the same scene as"
UNCHECKED = "similar to"
COPIES = (SAME_FILE, EQUAL, COPY, MIRRORED)
SCENES = (SCENE, UNCHECKED)


class Pair(NamedTuple):
    """An image, and an earlier one that it is nearly identical to; numbers among all images."""

    image: int
    earlier: int
    mirrored: bool
    kind: str = UNCHECKED


@dataclass
class Nearest:
    """For each image the nearest earlier one, in gray levels; NONE without."""

    earlier: NDArray[np.int64]
    difference: NDArray[np.int64]
    mirrored: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int) -> "Nearest":
        far = np.full(count, np.iinfo(np.int64).max)
        return cls(np.full(count, NONE), far, np.zeros(count, bool))

    def update(
        self, images: NDArray[np.int64], earlier: int, difference: NDArray[np.int64], mirrored: bool
    ) -> None:
        """Take `earlier` for those of the images that it is nearer to."""
        nearer = difference < self.difference[images]
        chosen = images[nearer]
        self.earlier[chosen] = earlier
        self.difference[chosen] = difference[nearer]
        self.mirrored[chosen] = mirrored

    def pairs(self) -> Iterator[Pair]:
        """Yield each image that has an earlier one."""
        for image in np.flatnonzero(self.earlier != NONE).tolist():
            yield Pair(image, int(self.earlier[image]), bool(self.mirrored[image]))


def find_copies(
    paths: Sequence[str],
    split_numbers: Sequence[int],
    thumbnails: Sequence[bytes],
    threads: int,
    watch: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of nearly identical images within a split, and across splits.

    Each image comes at most once in each list, with the nearest earlier image; not within its
    split, if it is a copy of an image in another one.

    Args:
        paths: of all images, split by split.
        split_numbers: of each image, in ascending order.
        thumbnails: of each image.
        threads: that decode images for the second look.
        watch: passes pairs on while they are looked at, as a progress bar does.
    """
    within, across = nearest_images(split_numbers, thumbnails)
    candidates = [*across.pairs(), *within.pairs()]
    with quiet_decoder():
        compared = map_ahead(
            lambda pair: pair._replace(kind=kind_of_files(paths, pair)), candidates, threads
        )
        pairs = list(watch(compared))
        unsure = [number for number, pair in enumerate(pairs) if pair.kind == UNCHECKED][:LOOKED_AT]
        looked_at = map_ahead(
            lambda number: pairs[number]._replace(kind=kind_of_pixels(paths, pairs[number])),
            unsure,
            threads,
        )
        for number, pair in zip(unsure, watch(looked_at), strict=True):
            pairs[number] = pair

    other_split = [
        pair for pair in pairs if split_numbers[pair.image] != split_numbers[pair.earlier]
    ]
    own_split = [pair for pair in pairs if split_numbers[pair.image] == split_numbers[pair.earlier]]
    reported = {pair.image for pair in other_split if pair.kind in COPIES}
    return [pair for pair in own_split if pair.image not in reported], other_split


def nearest_images(
    split_numbers: Sequence[int], thumbnails: Sequence[bytes]
) -> tuple[Nearest, Nearest]:
    """Return for each image the nearest earlier one of its split, and of an earlier split."""
    splits = np.array(split_numbers, np.int64)
    count = len(splits)
    within, across = Nearest.empty(count), Nearest.empty(count)

    def add(
        earlier: int, images: NDArray[np.int64], difference: NDArray[np.int64], mirrored: bool
    ) -> None:
        is_same = splits[images] == splits[earlier]
        within.update(images[is_same], earlier, difference[is_same], mirrored)
        across.update(images[~is_same], earlier, difference[~is_same], mirrored)

    first_of = first_of_equals(thumbnails)
    for index, first in enumerate(first_of):
        if first != index:
            add(first, np.array([index]), np.zeros(1, np.int64), mirrored=False)
    for found in close_images(thumbnails, first_of, mirrored=True):
        add(found.image, found.others, found.differences, found.mirrored)

    # An image that is equal to one with a partner has that partner, too.
    for index, first in enumerate(first_of):
        for nearest in (within, across):
            partner = int(nearest.earlier[first])
            if first != index and partner != NONE:
                difference = np.array([nearest.difference[first]])
                add(partner, np.array([index]), difference, bool(nearest.mirrored[first]))
    return within, across


def kind_of_files(paths: Sequence[str], pair: Pair) -> str:
    """Return whether the files of a pair are the same or equal, else UNCHECKED."""
    path, earlier = paths[pair.image], paths[pair.earlier]
    try:
        if os.path.samefile(path, earlier):
            return SAME_FILE
        has_equal_size = os.path.getsize(path) == os.path.getsize(earlier)
        if has_equal_size and read_bytes(path) == read_bytes(earlier):
            return EQUAL
    except (OSError, ValueError):
        pass  # removed meanwhile
    return UNCHECKED


def kind_of_pixels(paths: Sequence[str], pair: Pair) -> str:
    """Return whether one image of a pair is a copy of the other, or shows the same scene."""
    try:
        gray = reduced_gray(read_bytes(paths[pair.image]), 4 * DETAIL_SIDE)
        earlier_gray = reduced_gray(read_bytes(paths[pair.earlier]), 4 * DETAIL_SIDE)
    except ValueError:
        return UNCHECKED
    if gray is None or earlier_gray is None:
        return UNCHECKED
    detail = gray.resampled(DETAIL_SIDE, DETAIL_SIDE)
    earlier_detail = earlier_gray.resampled(DETAIL_SIDE, DETAIL_SIDE)
    if pair.mirrored:
        earlier_detail = earlier_detail[:, ::-1]
    if np.abs(detail - earlier_detail).max() > DETAIL_DIFFERENCE:
        return SCENE
    return MIRRORED if pair.mirrored else COPY


# ------------------------------------------------------------------------------------ the findings


def check_copies(
    examined: Examined, paths: Sequence[str], within: Sequence[Pair], across: Sequence[Pair]
) -> list[Finding]:
    """Return what is said of nearly identical images.

    Args:
        examined: the data set.
        paths: of all images, split by split.
        within: pairs of images of one split.
        across: pairs of images of two splits.
    """
    names = [split.name for split in examined.splits]
    numbers = examined.split_numbers()

    def finding(check: str, level: str, title: str, advice: str, pairs: Sequence[Pair]) -> Finding:
        examples = tuple(_pair_example(paths, names, numbers, pair) for pair in pairs[:MOST_LISTED])
        return Finding(check, level, "image", title, len(pairs), advice, examples)

    other_boxes = [
        pair
        for pair in (*across, *within)
        if pair.kind in (EQUAL, COPY, MIRRORED) and _boxes_differ(examined, pair)
    ]
    measured = _shares_of_splits(names, numbers, [pair for pair in across if pair.kind in COPIES])
    findings = [
        finding(
            "copies-across-splits",
            ERROR,
            f"also in an earlier split, or nearly ({measured})",
            "remove them from one of the splits: metrics on images that were trained on are too "
            "high. --group keeps images together when a val split is held out",
            [pair for pair in across if pair.kind in COPIES],
        ),
        finding(
            "scenes-across-splits",
            WARNING,
            "with nearly the scene of an image in an earlier split",
            "keep the frames of a video or of one camera in one split (--group): new scenes will "
            "give worse metrics",
            [pair for pair in across if pair.kind in SCENES],
        ),
        finding(
            "copies-in-split",
            WARNING,
            "twice in their split, or nearly",
            "remove them: they weigh twice, and mirrored ones come by augmentation anyway",
            [pair for pair in within if pair.kind in COPIES],
        ),
        finding(
            "scenes-in-split",
            NOTE,
            "with nearly the scene of another image of their split",
            "frames of a video: fewer of them train as well, in less time",
            [pair for pair in within if pair.kind in SCENES],
        ),
        finding(
            "copies-with-other-boxes",
            WARNING,
            "with other boxes than a nearly identical one",
            "compare them: unless they differ in a detail, one of the two is labeled wrong",
            other_boxes,
        ),
    ]
    return [found for found in findings if found.count]


def _shares_of_splits(names: Sequence[str], numbers: Sequence[int], pairs: Sequence[Pair]) -> str:
    """Return the share of each split that is a copy, such as "val: 12%"."""
    parts = []
    for number, name in enumerate(names):
        count = sum(numbers[pair.image] == number for pair in pairs)
        if count:
            parts.append(f"{share(count, numbers.count(number))} of {name}")
    return ", ".join(parts)


def _pair_example(
    paths: Sequence[str], names: Sequence[str], numbers: Sequence[int], pair: Pair
) -> Example:
    """Return an example with both images."""
    path, earlier = paths[pair.image], paths[pair.earlier]
    what = f"{pair.kind} {printable(earlier)}"
    if numbers[pair.image] != numbers[pair.earlier]:
        what += f" ({names[numbers[pair.image]]} and {names[numbers[pair.earlier]]})"
    return Example(printable(path), what, path, pictures=(Picture(earlier), Picture(path)))


def _boxes_differ(examined: Examined, pair: Pair) -> bool:
    """Whether a copy has a box that the earlier image lacks, or the other way round."""
    labels, index = _labels_of(examined, pair.image)
    earlier_labels, earlier_index = _labels_of(examined, pair.earlier)
    boxes, classes = _fractions(labels, index)
    earlier_boxes, earlier_classes = _fractions(earlier_labels, earlier_index)
    if len(boxes) != len(earlier_boxes):
        return True
    if pair.mirrored:
        earlier_boxes[:, 0] = 1 - earlier_boxes[:, 0] - earlier_boxes[:, 2]

    order = np.argsort(earlier_classes, kind="stable")
    no_crowd = np.zeros(len(boxes), bool)
    pairs = overlapping_pairs(
        boxes, classes, earlier_boxes[order], earlier_classes[order], no_crowd, SAME_BOX_IOU
    )
    matched = min(len(np.unique(pairs.detection)), len(np.unique(pairs.truth)))
    return matched < len(boxes)


def _labels_of(examined: Examined, image: int) -> tuple[Labels, int]:
    """Return the labels of the split of an image, and its number in them."""
    for split in examined.splits:
        if image < len(split.labels):
            return split.labels, image
        image -= len(split.labels)
    raise IndexError(image)


def _fractions(labels: Labels, index: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return left, top, width, height of an image's boxes in fractions of it, and the classes."""
    rows = labels.rows(index)
    boxes = labels.boxes_xywh[rows] / np.tile(labels.sizes[index], 2)
    return boxes, labels.classes[rows].astype(np.int64)
