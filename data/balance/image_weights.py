"""Image weights for sampling.

Images of rare classes and of classes with low AP are drawn more often.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.labels import Labels


def ap_per_class(metrics: dict[str, Any], names: Sequence[str]) -> NDArray[np.float64]:
    """Return the AP of each class at the last validation, [C].

    It is 0 before the first and for classes without images.
    """
    per_class = metrics.get("per_class", {})
    return np.array([max(per_class.get(name, {}).get("AP", 0.0), 0.0) for name in names])


def weights_after(
    labels: Labels, metrics: dict[str, Any], names: Sequence[str]
) -> NDArray[np.float64]:
    """Return a weight for each image, [M], given the metrics of the last validation.

    Before the first one, metrics are {}.
    """
    return image_weights(labels, len(names), ap_per_class(metrics, names))


def image_weights(labels: Labels, num_classes: int, ap: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a weight for each image, [M], with mean 1.

    It is the sum over its boxes of (1 - AP)^2 / (boxes of that class).

    ap: the AP of each class in the last validation, [C], at most 1; zeros before the first
    validation. A negative AP (a class without validation images) counts as 0. Ignore regions are
    not counted. An image without boxes gets the mean weight of those with boxes, so that background
    keeps its share of the draws. If all weights are 0 (no boxes, or an AP of 1), all images get the
    same weight. Raises ValueError if ap or the labels do not have `num_classes` classes, or an AP
    is not a number up to 1. Source: facts of YOLOv5; the weight of background is our own.
    """
    if ap.shape != (num_classes,) or not (ap <= 1).all():
        given = f"shape {ap.shape}, maximum {ap.max(initial=0):g}"
        raise ValueError(
            f"AP has {given}: give one number of at most 1 for each of the {num_classes} classes"
        )

    # The image and the class of each box.
    boxes = ~labels.crowd
    images = labels.row_images[boxes]
    classes = labels.classes[boxes]
    counts = np.bincount(classes, minlength=num_classes)
    if len(counts) > num_classes:
        allowed = f"there are {num_classes} classes (0-{num_classes - 1})"
        raise ValueError(f"labels have class {len(counts) - 1}, but {allowed}")

    class_weights = (1 - ap.clip(0)) ** 2 / counts.clip(1)
    weights = np.bincount(images, class_weights[classes], minlength=len(labels))
    if not weights.any():
        return np.ones(len(labels))

    # Background gets the mean weight.
    with_boxes = np.bincount(images, minlength=len(labels)) > 0
    weights[~with_boxes] = weights[with_boxes].mean()
    return weights / weights.mean()
