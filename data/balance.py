"""How often to draw each training image, so that rare and badly found classes are seen more often."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.labels import Labels


def ap_per_class(metrics: dict[str, Any], names: Sequence[str]) -> NDArray[np.float64]:
    """[C] the AP of each class at the last validation; 0 before the first, and for a class that was not there."""
    per_class = metrics.get("per_class", {})
    return np.array([max(per_class.get(name, {}).get("AP", 0.0), 0.0) for name in names])


def weights_after(labels: Labels, metrics: dict[str, Any], names: Sequence[str]) -> NDArray[np.float64]:
    """A weight for each image, [M], after a validation that found these metrics; none yet: {}."""
    return image_weights(labels, len(names), ap_per_class(metrics, names))


def image_weights(labels: Labels, num_classes: int, ap: NDArray[np.float64]) -> NDArray[np.float64]:
    """A weight for each image, [M], of mean 1: the sum over its boxes of (1 - AP)^2 / (boxes of that class).

    ap: of each class in the last validation, [C] up to 1; zeros before the first, and below 0 counts as 0 (a class that
    no validation image has). Ignore regions are not counted. An image without a box weighs the mean of those with
    boxes: background keeps its share of the draws. Where no box weighs anything (no boxes, or an AP of 1), images weigh
    the same. Raises ValueError if ap or the labels are not of `num_classes` classes, or an AP is not a number up to 1.
    Source: facts of YOLOv5; the background's share our own.
    """
    if ap.shape != (num_classes,) or not (ap <= 1).all():
        said = f"shape {ap.shape}, up to {ap.max(initial=0):g}"
        raise ValueError(f"AP of {said}: give one number up to 1 for each of the {num_classes} classes")
    boxes = ~labels.crowd
    images = np.repeat(np.arange(len(labels)), np.diff(labels.offsets))[boxes]
    classes = labels.classes[boxes]
    counts = np.bincount(classes, minlength=num_classes)
    if len(counts) > num_classes:
        raise ValueError(f"labels of class {len(counts) - 1}: with {num_classes} classes it is below {num_classes}")
    of_class = (1 - ap.clip(0)) ** 2 / counts.clip(1)
    weights = np.bincount(images, of_class[classes], minlength=len(labels))
    if not weights.any():
        return np.ones(len(labels))
    with_boxes = np.bincount(images, minlength=len(labels)) > 0
    weights[~with_boxes] = weights[with_boxes].mean()
    return weights / weights.mean()
