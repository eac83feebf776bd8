"""Check anchors against the box sizes of a data set, and fit new ones.

Sizes are width and height in pixels at the training size, above 0, float [N, 2]; anchors [K, 2]. An
anchor *reaches* a box if its width and its height both differ from the box's by a factor below the
matching limit (models/assign/anchor_ratio.py).
"""

import math

import numpy as np
from numpy.typing import NDArray

from utils.printable import counted

Sizes = NDArray[np.float64]

MIN_SIDE_PX = 2.0  # px: augmentation drops smaller boxes, so smaller anchors would match nothing
GOOD_RECALL = 0.98
MAX_BOXES = 20_000  # used for the fit: more boxes hardly change the anchors but take much longer


def _closeness(sizes: Sizes, anchors: Sizes) -> NDArray[np.float64]:
    """Return the ratio of each box to the closest anchor, [N] in (0, 1]; 1 for an equal size.

    The ratio of a box and an anchor is that of the side, width or height, that differs more.
    """
    ratio = sizes.T[:, None] / anchors.T[:, :, None]  # [2, K, N]
    side_closeness = np.minimum(ratio, 1 / ratio)
    closeness = side_closeness.min(0)  # [K, N]
    return closeness.max(0)


def best_possible_recall(sizes: Sizes, anchors: Sizes, anchor_t: float) -> float:
    """Return the share of the boxes that some anchor reaches, in [0, 1]; 1 if there are no boxes.

    >>> best_possible_recall(np.array([[10., 10.], [90., 90.]]), np.array([[10., 12.]]), 4.0)
    0.5
    """
    if len(sizes) == 0:
        return 1.0
    reached = _closeness(sizes, anchors) > 1 / anchor_t
    return float(reached.mean())


def _fitness(sizes: Sizes, anchors: Sizes, anchor_t: float) -> float:
    """Return the mean closeness of the boxes, in which those that no anchor reaches count as 0."""
    closeness = _closeness(sizes, anchors)
    reached = closeness > 1 / anchor_t
    return float((closeness * reached).mean())


def fit_anchors(
    sizes: Sizes,
    count: int,
    anchor_t: float,
    *,
    seed: int = 0,
    iterations: int = 30,
    generations: int = 1000,
) -> Sizes:
    """Return `count` anchors for boxes of these sizes, [count, 2], smallest area first.

    k-means on sizes divided by their standard deviation, then random mutations, each kept if it
    increases the mean closeness, in which unreached boxes count as 0. The same seed gives the same
    anchors.

    Args:
        sizes: of the boxes; those narrower or lower than 2 px are ignored.
        count: number of anchors K.
        anchor_t: an anchor reaches a box if their sides differ by a smaller factor.
        seed: of the random choices.
        iterations: of k-means.
        generations: number of mutations that are tried.

    Raises: ValueError if fewer than `count` boxes are at least 2 px wide and high.
    """
    sizes = sizes[(sizes >= MIN_SIDE_PX).all(1)].astype(np.float64)
    if len(sizes) < count:
        raise ValueError(f"{count} anchors cannot be fitted to {len(sizes)} boxes of at least 2 px")

    generator = np.random.default_rng(seed)
    anchors = _kmeans(sizes, count, generator, iterations)

    best_fitness = _fitness(sizes, anchors, anchor_t)
    for _ in range(generations):
        factors = _mutation(anchors.shape, generator)
        mutated = np.maximum(anchors * factors, MIN_SIDE_PX)
        fitness = _fitness(sizes, mutated, anchor_t)
        if fitness > best_fitness:
            best_fitness = fitness
            anchors = mutated

    areas = anchors.prod(1)
    return anchors[np.argsort(areas, kind="stable")]


def _kmeans(sizes: Sizes, count: int, generator: np.random.Generator, iterations: int) -> Sizes:
    """Return the `count` centers [K, 2] of Lloyd's algorithm, started at randomly chosen boxes.

    A center that loses all its boxes does not move.
    """
    spread = np.maximum(sizes.std(0), 1e-6)  # [2]
    points = sizes / spread
    first = generator.choice(len(points), count, replace=False)
    centers = points[first]

    for _ in range(iterations):
        # Assign each box to its nearest center.
        differences = points[:, None] - centers[None]  # [N, K, 2]
        nearest = np.square(differences).sum(-1).argmin(1)  # [N]

        # Move each center to the mean of its boxes.
        members = np.bincount(nearest, minlength=count)[:, None]  # [K, 1]
        sum_widths = np.bincount(nearest, points[:, 0], minlength=count)
        sum_heights = np.bincount(nearest, points[:, 1], minlength=count)
        means = np.stack([sum_widths, sum_heights], 1) / np.maximum(members, 1)
        centers = np.where(members > 0, means, centers)

    return np.maximum(centers * spread, MIN_SIDE_PX)


def _mutation(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float64]:
    """Return random factors in [0.3, 3]; nine of ten differ from 1 on average, and at least one."""
    while True:
        is_mutated = generator.random(shape) < 0.9
        strength = generator.random()
        changes = is_mutated * strength * generator.standard_normal(shape) * 0.1
        factors = (changes + 1).clip(0.3, 3.0)
        if (factors != 1).any():
            return factors


def matched(share: float) -> str:
    """Return words for the share of the boxes that anchors reach, 0 to 1.

    >>> matched(1.0)
    'anchor sizes match all boxes'
    >>> matched(0.986)
    'anchor sizes match 98.6% of the boxes, the others cannot be learned'
    """
    if share == 1:
        return "anchor sizes match all boxes"
    percent = math.floor(share * 1000) / 10  # rounded down: 100.0 would be wrong
    return f"anchor sizes match {percent}% of the boxes, the others cannot be learned"


def check_anchors(
    sizes: Sizes,
    anchors_px: NDArray[np.float64],
    anchor_t: float,
    *,
    seed: int = 0,
    placeholders: bool = False,
) -> tuple[NDArray[np.float64], str]:
    """Return the anchors [L, A, 2] to train with, and a sentence on the result.

    The given anchors are kept if they reach 98 % of the boxes, or if fitted anchors reach no more.
    At most 20,000 evenly spaced boxes are used.

    Args:
        sizes: of the boxes.
        anchors_px: [L, A, 2], those of the model.
        anchor_t, seed: as for `fit_anchors`.
        placeholders: anchors_px are kept only if there are too few boxes to fit others.
    """
    levels, per_level, _ = anchors_px.shape
    own_anchors = anchors_px.reshape(-1, 2)

    sizes = sizes[(sizes >= MIN_SIDE_PX).all(1)]
    step = max(1, math.ceil(len(sizes) / MAX_BOXES))
    sizes = sizes[::step]
    if len(sizes) == 0:
        return anchors_px, "no boxes to check the anchors with"

    own_recall = best_possible_recall(sizes, own_anchors, anchor_t)
    if own_recall >= GOOD_RECALL and not placeholders:
        return anchors_px, matched(own_recall)
    if len(sizes) < len(own_anchors):
        few = f"{counted(len(sizes), 'box')} are too few to choose new anchors by"
        return anchors_px, f"{matched(own_recall)}; {few}"

    fitted = fit_anchors(sizes, len(own_anchors), anchor_t, seed=seed)
    recall = best_possible_recall(sizes, fitted, anchor_t)
    if recall <= own_recall and not placeholders:
        return anchors_px, f"{matched(own_recall)}; new anchors would match {recall:.1%}"

    reason = f"they were chosen by the boxes, as the model's own match {own_recall:.1%}"
    return fitted.reshape(levels, per_level, 2), f"{matched(recall)}: {reason}"
