"""Weights of data sets that are mixed: the images of each are drawn more or less often."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.dataset_yaml import DataSpec
from data.formats.registry import format_of
from data.images import find_images
from data.labels import Labels
from utils.printable import counted


def weights_of_images(spec: DataSpec, labels: Labels) -> NDArray[np.float64]:
    """Return the weight of each training image, [M]: that of the first source that lists it.

    labels: of the training images.
    """
    weight_of: dict[str, float] = {}
    for source in spec.sources("train"):
        weight = spec.weights.get(source, 1.0)
        for path in _images_in(source, spec):
            weight_of.setdefault(path, weight)
    return np.array([weight_of.get(labels.path(index), 1.0) for index in range(len(labels))])


def _images_in(source: Path, spec: DataSpec) -> list[str]:
    """Return the paths of a source's images, as the scan of its split finds them."""
    if spec.labels:
        return list(find_images(source).images)
    contents = format_of(source).images(source, spec.classes_in(source))
    return [image.path for image in contents.images]


def describe_weights(weights: NDArray[np.float64]) -> str:
    """Return a sentence with the weights of images, [M], and the number of images of each."""
    values, counts = np.unique(weights, return_counts=True)
    texts = []
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        texts.append(f"{counted(count, 'image')} x{value:g}")
    return f"data sets are mixed with weights: {', '.join(texts)}"
