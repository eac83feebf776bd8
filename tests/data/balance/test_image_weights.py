"""Image weights: hand-made numbers, and comparison with the rule applied box by box."""

import numpy as np
import pytest

from data.balance.image_weights import image_weights
from data.labels import Labels
from tests.data.augment.test_plan import box, labels_of


def labels_with(*images: list[int], crowd: int | None = None) -> Labels:
    """Return labels of images whose boxes have these classes; boxes of class `crowd` are ignore
    regions.
    """
    rows = [[box(c, 1, 1, 9, 9, crowd=c == crowd) for c in classes] for classes in images]
    return labels_of([(32, 32)] * len(images), rows)


def weights_of(labels: Labels, *ap: float) -> list[float]:
    return image_weights(labels, len(ap), np.array(ap)).tolist()  # type: ignore[no-any-return]


def test_image_weights_by_hand() -> None:
    labels = labels_with([0, 0], [0, 1], [], [1, 2], [2], crowd=2)
    # Three boxes of class 0 at AP 0.5: 0.5^2 / 3 = 1/12 each. Two of class 1 at AP 0: 1/2 each.
    # Class 2 is not counted. Images with boxes: 1/12 + 1/12 = 2/12, 1/12 + 1/2 = 7/12, 1/2 = 6/12;
    # their mean 15/12 / 3 = 5/12 is also the weight of background images. The mean of all five is
    # 5/12 again: 2/5, 7/5, 1, 6/5, 1.
    assert weights_of(labels, 0.5, 0.0, 0.0) == pytest.approx([0.4, 1.4, 1.0, 1.2, 1.0])


def test_classes_have_equal_weight_before_first_validation() -> None:
    labels = labels_with([0], [0], [0], [1])
    # 1/3, 1/3, 1/3, 1; mean 1/2.
    assert weights_of(labels, 0.0, 0.0) == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2.0])


def test_images_of_classes_with_high_ap_get_lower_weights() -> None:
    labels = labels_with([0], [1])
    # (1 - 0.9)^2 = 0.01 against (1 - 0)^2 = 1; mean 0.505.
    assert weights_of(labels, 0.9, 0.0) == pytest.approx([0.01 / 0.505, 1 / 0.505])
    assert weights_of(labels, 1.0, 0.0) == [0.0, 2.0]


def test_class_missing_in_validation_counts_as_ap_zero() -> None:
    labels = labels_with([0], [1], [1])
    assert weights_of(labels, -1.0, 0.5) == weights_of(labels, 0.0, 0.5)


def test_background_images_keep_their_share_of_weight() -> None:
    labels = labels_with([0], [], [1, 1, 0], [], [], [1])
    weights = weights_of(labels, 0.3, 0.6)
    assert (weights[1] + weights[3] + weights[4]) / sum(weights) == pytest.approx(3 / 6)
    assert np.mean(weights) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("images", "ap", "crowd"),
    [
        ([[0], [1, 1], []], (1.0, 1.0), None),
        ([[], [], []], (0.0, 0.0), None),
        ([[1], [1, 1], []], (0.0, 0.0), 1),
        ([[0], [0, 0], []], (1.0, 0.0), None),  # only class 1 has a weight, and no box has it
    ],
)
def test_images_get_equal_weights_if_no_box_has_weight(
    images: list[list[int]], ap: tuple[float, ...], crowd: int | None
) -> None:
    assert weights_of(labels_with(*images, crowd=crowd), *ap) == [1.0] * 3


def test_image_weights_of_no_images_are_empty() -> None:
    assert weights_of(labels_with(), 0.0, 0.0) == []


def test_image_weights_equal_slow_sum_over_boxes() -> None:
    random = np.random.default_rng(0)
    images = [random.integers(0, 6, random.integers(0, 5)).tolist() for _ in range(80)]
    labels, ap = labels_with(*images, crowd=4), random.uniform(0, 1, 6).round(3).tolist()
    counted = [[c for c in own if c != 4] for own in images]
    total = [c for own in counted for c in own]
    raw = [sum((1 - ap[c]) ** 2 / total.count(c) for c in own) for own in counted]
    shown = [weight for weight, own in zip(raw, counted, strict=True) if own]
    raw = [
        weight if own else sum(shown) / len(shown) for weight, own in zip(raw, counted, strict=True)
    ]
    assert weights_of(labels, *ap) == pytest.approx([weight * 80 / sum(raw) for weight in raw])


@pytest.mark.parametrize(
    ("num_classes", "ap", "text"),
    [
        (
            2,
            [0.0],
            r"AP has shape \(1,\), maximum 0: give one number of at most 1 for each of the 2 "
            r"classes",
        ),
        (
            2,
            [0.0, 1.5],
            r"AP has shape \(2,\), maximum 1.5: give one number of at most 1 for each of the 2 "
            r"classes",
        ),
        (
            2,
            [0.0, np.nan],
            r"AP has shape \(2,\), maximum nan: give one number of at most 1 for each of the 2 "
            r"classes",
        ),
        (1, [0.0], r"labels have class 1, but there are 1 classes \(0-0\)"),
    ],
)
def test_image_weights_rejects_invalid_ap_and_classes(
    num_classes: int, ap: list[float], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        image_weights(labels_with([0], [1]), num_classes, np.array(ap))
