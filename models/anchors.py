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
    """Return [N] in (0, 1]: the worse of the two sides' ratios to the closest anchor, 1 for one of
    the box's size.
    """
    ratio = sizes.T[:, None] / anchors.T[:, :, None]  # [2, K, N]
    return np.minimum(ratio, 1 / ratio).min(0).max(0)


def best_possible_recall(sizes: Sizes, anchors: Sizes, ratio_limit: float) -> float:
    """Return the share of the boxes that some anchor reaches, in [0, 1]; 1 if there are no boxes.

    >>> best_possible_recall(np.array([[10., 10.], [90., 90.]]), np.array([[10., 12.]]), 4.0)
    0.5
    """
    if len(sizes) == 0:
        return 1.0
    return float((_closeness(sizes, anchors) > 1 / ratio_limit).mean())


def _fitness(sizes: Sizes, anchors: Sizes, ratio_limit: float) -> float:
    best = _closeness(sizes, anchors)
    return float((best * (best > 1 / ratio_limit)).mean())


def fit_anchors(
    sizes: Sizes,
    count: int,
    ratio_limit: float,
    *,
    seed: int = 0,
    iterations: int = 30,
    generations: int = 1000,
) -> Sizes:
    """Return `count` anchors for boxes of these sizes, [count, 2], smallest area first.

    k-means on sizes divided by their standard deviation, then random mutations, each kept if it
    increases the mean closeness, in which unreached boxes count as 0. The same seed gives the same
    anchors.

    Raises ValueError if fewer than `count` boxes are at least 2 px wide and high.
    """
    sizes = sizes[(sizes >= MIN_SIDE_PX).all(1)].astype(np.float64)
    if len(sizes) < count:
        raise ValueError(f"{count} anchors cannot be fitted to {len(sizes)} boxes of at least 2 px")
    generator = np.random.default_rng(seed)
    anchors = _kmeans(sizes, count, generator, iterations)
    best = _fitness(sizes, anchors, ratio_limit)
    for _ in range(generations):
        mutated = np.maximum(anchors * _mutation(anchors.shape, generator), MIN_SIDE_PX)
        fitness = _fitness(sizes, mutated, ratio_limit)
        if fitness > best:
            best, anchors = fitness, mutated
    return anchors[np.argsort(anchors.prod(1), kind="stable")]


def _kmeans(sizes: Sizes, count: int, generator: np.random.Generator, iterations: int) -> Sizes:
    """Lloyd's algorithm, initialised with randomly chosen boxes; a centre that loses all its boxes
    does not move.
    """
    spread = np.maximum(sizes.std(0), 1e-6)
    points = sizes / spread
    centers = points[generator.choice(len(points), count, replace=False)]
    for _ in range(iterations):
        nearest = np.square(points[:, None] - centers[None]).sum(-1).argmin(1)
        members = np.bincount(nearest, minlength=count)
        sums = np.stack([np.bincount(nearest, points[:, d], minlength=count) for d in (0, 1)], 1)
        centers = np.where(members[:, None] > 0, sums / np.maximum(members, 1)[:, None], centers)
    return np.maximum(centers * spread, MIN_SIDE_PX)


def _mutation(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float64]:
    """Return random factors in [0.3, 3]: nine of ten differ from 1 on average, and at least one
    does.
    """
    while True:
        active = generator.random(shape) < 0.9
        factors = (active * generator.random() * generator.standard_normal(shape) * 0.1 + 1).clip(
            0.3, 3.0
        )
        if (factors != 1).any():
            return factors


def matched(share: float) -> str:
    """Words for the share of the boxes that anchors reach, 0 to 1: the model cannot learn the
    others.

    >>> matched(1.0)
    'anchor sizes match all boxes'
    >>> matched(0.986)
    'anchor sizes match 98.6% of the boxes, the others cannot be learned'
    """
    if share == 1:
        return "anchor sizes match all boxes"
    return (
        f"anchor sizes match {math.floor(share * 1000) / 10}% of the boxes, the others "
        "cannot be learned"
    )


def check_anchors(
    sizes: Sizes,
    anchors_px: NDArray[np.float64],
    ratio_limit: float,
    *,
    seed: int = 0,
    placeholders: bool = False,
) -> tuple[NDArray[np.float64], str]:
    """Return (anchors [L, A, 2] to train with, a sentence on the result).

    The given anchors are kept if they reach 98 % of the boxes, or if fitted anchors reach no more.
    Placeholders are kept only if there are too few boxes to fit others. At most 20,000 evenly
    spaced boxes are used.
    """
    levels, per_level, _ = anchors_px.shape
    flat = anchors_px.reshape(-1, 2)
    sizes = sizes[(sizes >= MIN_SIDE_PX).all(1)]
    sizes = sizes[:: max(1, math.ceil(len(sizes) / MAX_BOXES))]
    if len(sizes) == 0:
        return anchors_px, "no boxes to check the anchors with"
    recall = best_possible_recall(sizes, flat, ratio_limit)
    if recall >= GOOD_RECALL and not placeholders:
        return anchors_px, matched(recall)
    if len(sizes) < len(flat):
        return (
            anchors_px,
            f"{matched(recall)}; {counted(len(sizes), 'box')} are too few to choose new anchors by",
        )
    fitted = fit_anchors(sizes, len(flat), ratio_limit, seed=seed)
    reached = best_possible_recall(sizes, fitted, ratio_limit)
    if reached <= recall and not placeholders:
        return anchors_px, f"{matched(recall)}; new anchors would match {reached:.1%}"
    sentence = (
        f"{matched(reached)}: they were chosen by the boxes, as the model's own match {recall:.1%}"
    )
    return fitted.reshape(levels, per_level, 2), sentence
