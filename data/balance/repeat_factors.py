"""Repeat factors: images of rare classes are drawn more often.

Source: LVIS, Gupta et al., arXiv 1908.03195 (version 2 or later), appendix B.2.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.labels import Labels
from utils.printable import counted, excerpt

SHOWN_CLASSES = 5


def images_with_class(labels: Labels, num_classes: int) -> NDArray[np.int64]:
    """Return the number of images that have a box of each class, [C]; ignore regions are none."""
    images, classes = _boxes(labels)
    pairs = np.unique(images * num_classes + classes)
    return np.bincount(pairs % num_classes, minlength=num_classes)


def class_factors(labels: Labels, num_classes: int, threshold: float) -> NDArray[np.float64]:
    """Return the repeat factor of each class, [C]: max(1, sqrt(threshold / f)).

    f is the share of the images that have a box of the class. Classes without a box have factor 1.
    threshold: the share of images below which a class is rare.
    """
    with_class = images_with_class(labels, num_classes)
    share = with_class.clip(1) / max(len(labels), 1)
    factors = np.maximum(1, np.sqrt(threshold / share))
    return np.where(with_class > 0, factors, 1.0)


def image_factors(labels: Labels, of_class: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the repeat factor of each image, [M]: the largest one of its classes.

    It is 1 for an image without boxes. of_class: the factors of the classes, [C].
    """
    images, classes = _boxes(labels)
    factors = np.ones(len(labels))
    np.maximum.at(factors, images, of_class[classes])
    return factors


def describe_factors(
    threshold: float, of_class: NDArray[np.float64], labels: Labels, names: Sequence[str], unit: str
) -> str:
    """Return a sentence that names the repeated classes, rarest first, and their factors.

    Args:
        threshold: of `class_factors`.
        of_class: its factors, [C].
        labels: of the training split.
        names: of the classes.
        unit: what a sample is.
    """
    with_class = images_with_class(labels, len(names))
    repeated = [int(number) for number in np.argsort(-of_class, kind="stable")]
    repeated = [number for number in repeated if of_class[number] > 1]
    flag = f"--repeat-factor {threshold:g}"
    if not repeated:
        return f"{flag}: every class is in {threshold:.3g} of the {unit}s or more: none is repeated"

    texts = []
    for number in repeated[:SHOWN_CLASSES]:
        images = counted(int(with_class[number]), unit)
        texts.append(f"{excerpt(names[number])} x{of_class[number]:.2f} ({images})")
    more = f" and {len(repeated) - SHOWN_CLASSES} more" if len(repeated) > SHOWN_CLASSES else ""
    return f"{flag}: draws {unit}s of rare classes more often: {', '.join(texts)}{more}"


def _boxes(labels: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the image and the class of each box, without ignore regions, [K] each."""
    is_box = ~labels.crowd
    return labels.row_images[is_box], labels.classes[is_box].astype(np.int64)
