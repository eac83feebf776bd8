"""Weights of classes in the loss that follow from how often each is trained."""

import numpy as np
from numpy.typing import NDArray

from data.labels import Labels


def boxes_per_class(
    labels: Labels, factors: NDArray[np.float64], num_classes: int
) -> NDArray[np.float64]:
    """Return how many boxes of each class an epoch draws, on average, [C].

    factors: how often it draws each image, [M]. Ignore regions are not counted.
    """
    is_box = ~labels.crowd
    drawn = factors[labels.row_images]
    boxes = np.bincount(labels.classes[is_box], drawn[is_box], minlength=num_classes)
    return boxes.astype(np.float64)  # bincount of nothing has whole numbers


def inverse_root_weights(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a weight for each class, [C]: in proportion to 1 / sqrt(boxes), mean 1 over boxes.

    A class without boxes has weight 1. boxes: of each class, [C].

    Source: the exponent is that of repeat factors, arXiv 1908.03195, and of square-root sampling,
    arXiv 1805.00932.

    >>> inverse_root_weights(np.array([100.0, 25.0, 0.0])).round(3).tolist()
    [0.833, 1.667, 1.0]
    """
    roots = np.sqrt(boxes)
    mean_weight = roots.sum() / max(boxes.sum(), 1e-9)  # of the weights 1 / root, over boxes
    weights = np.ones_like(roots)
    present = boxes > 0
    weights[present] = 1 / roots[present] / mean_weight
    return weights
