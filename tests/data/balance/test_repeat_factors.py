"""Repeat factors by hand, and against the definition image by image."""

import math

import numpy as np
import pytest

from data.balance.repeat_factors import (
    class_factors,
    describe_factors,
    image_factors,
    images_with_class,
)
from data.tiles.labels import tile_labels
from tests.data.balance.test_image_weights import labels_with
from utils.images.tiles import Tiling

NAMES = ["cat", "dog\n", "bird", "fox"]


def test_factors_by_hand() -> None:
    # 16 images: class 0 in all but one, class 1 in one, class 2 in four (twice in one of them).
    images = [[0], *([[0, 2]] * 2), [0, 2, 2], [0, 1, 2], *([[0]] * 10), []]
    labels = labels_with(*images)
    assert images_with_class(labels, 4).tolist() == [14 + 1, 1, 4, 0]
    of_class = class_factors(labels, 4, threshold=0.25)
    # sqrt(0.25 / (1 / 16)) = 2; sqrt(0.25 / (4 / 16)) = 1; class 3 has no image.
    assert of_class.tolist() == [1, 2, 1, 1]
    of_class = class_factors(labels, 4, threshold=0.5)
    # sqrt(0.5 * 16) = 2.83 for class 1; sqrt(0.5 / 0.25) = 1.41 for class 2.
    assert of_class == pytest.approx([1, math.sqrt(8), math.sqrt(2), 1])
    found = image_factors(labels, of_class)
    # the largest of an image's classes; 1 without boxes
    expected = [1, *[math.sqrt(2)] * 3, math.sqrt(8), *[1] * 11]
    assert found == pytest.approx(expected)

    sentence = describe_factors(0.5, of_class, labels, NAMES, "image")
    assert sentence == (
        "--repeat-factor 0.5: draws images of rare classes more often: dog\\n x2.83 (1 image), "
        "bird x1.41 (4 images)"
    )


def test_factors_equal_the_definition_on_random_images() -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 6, random.integers(0, 5)).tolist() for _ in range(60)]
    labels = labels_with(*images, crowd=5)  # ignore regions are no boxes
    found = image_factors(labels, class_factors(labels, 6, 0.3))
    for classes, factor in zip(images, found.tolist(), strict=True):
        expected = 1.0
        for each in set(classes) - {5}:
            share = sum(each in other for other in images) / 60
            expected = max(expected, math.sqrt(0.3 / share))
        assert factor == pytest.approx(expected)


def test_nothing_is_repeated_if_no_class_is_rare() -> None:
    labels = labels_with([0], [0, 1])
    of_class = class_factors(labels, 2, 0.5)
    assert image_factors(labels, of_class).tolist() == [1, 1]
    assert describe_factors(0.5, of_class, labels, NAMES[:2], "tile") == (
        "--repeat-factor 0.5: every class is in 0.5 of the tiles or more: none is repeated"
    )


def test_no_images_and_no_boxes_have_no_factors() -> None:
    for labels in (labels_with(), labels_with([], [])):
        assert class_factors(labels, 3, 0.5).tolist() == [1, 1, 1]
        assert image_factors(labels, np.ones(3)).tolist() == [1] * len(labels)


def test_a_tile_is_repeated_for_the_boxes_that_it_shows() -> None:
    # boxes from (1, 1) to (10, 10) of 32 x 32 pixels, in four tiles
    tiles = tile_labels(labels_with([0], [1]), Tiling(16, overlap=0.0))
    assert images_with_class(tiles, 2).tolist() == [1, 1]
    # one tile of eight shows it: sqrt(0.5 * 8) = 2
    assert image_factors(tiles, class_factors(tiles, 2, 0.5)).tolist() == [2, 1, 1, 1] * 2
