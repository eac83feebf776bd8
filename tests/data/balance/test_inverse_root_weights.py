"""Class weights that follow from the number of boxes."""

import numpy as np
import pytest

from data.balance.class_weights import boxes_per_class, inverse_root_weights
from tests.data.balance.test_image_weights import labels_with


def test_weights_by_hand() -> None:
    # Roots 10, 5, 0 of 125 boxes: 125 / 15 / 10 = 0.8333, 125 / 15 / 5 = 1.6667; no box: 1.
    weights = inverse_root_weights(np.array([100.0, 25.0, 0.0]))
    assert weights == pytest.approx([0.8333333, 1.6666667, 1])
    assert (weights * [100, 25, 0]).sum() / 125 == pytest.approx(1)


def test_equal_classes_have_weight_1() -> None:
    assert inverse_root_weights(np.full(3, 7.0)) == pytest.approx(1)
    assert inverse_root_weights(np.zeros(2)).tolist() == [1, 1]


def test_boxes_count_as_often_as_their_images_are_drawn() -> None:
    labels = labels_with([0, 0, 1], [2], [1], crowd=2)
    assert boxes_per_class(labels, np.array([1.0, 5.0, 2.5]), 4).tolist() == [2, 3.5, 0, 0]
    assert boxes_per_class(labels_with(), np.zeros(0), 2).tolist() == [0, 0]
