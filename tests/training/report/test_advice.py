"""What the report says of curves: two that trainings have left, and curves by hand."""

from collections.abc import Sequence

import pytest

from training.report.advice import curve_advice
from utils.log import Row

MANY = 1000  # images


def rows_of(train: Sequence[float], val: Sequence[float], maps: Sequence[float]) -> list[Row]:
    """Rows of results.csv with the losses in two equal terms."""
    rows = []
    for epoch, (train_loss, val_loss, map_value) in enumerate(
        zip(train, val, maps, strict=True), 1
    ):
        row = {"epoch": float(epoch), "metrics/mAP_0.5:0.95": map_value}
        for term in ("box", "cls"):
            row[f"train/{term}_loss"] = train_loss / 2
            row[f"val/{term}_loss"] = val_loss / 2
        rows.append(row)
    return rows


# yolox_nano from COCO on 24 images, every second of 25 epochs, with BatchNorm's momentum 0.03
LAGGING = rows_of(
    [0.204, 0.121, 0.090, 0.087, 0.080, 0.076, 0.079, 0.075, 0.070, 0.071, 0.071, 0.073, 0.069],
    [0.184, 0.591, 0.755, 0.706, 0.687, 0.498, 0.393, 0.341, 0.235, 0.171, 0.135, 0.113, 0.100],
    [0.056, 0.075, 0.055, 0.017, 0.003, 0.019, 0.039, 0.039, 0.106, 0.191, 0.227, 0.248, 0.281],
)
# the same with the momentum of a short run
FOLLOWING = rows_of(
    [0.204, 0.121, 0.090, 0.087, 0.080, 0.076, 0.079, 0.075, 0.070, 0.071, 0.071, 0.073, 0.069],
    [0.192, 0.137, 0.112, 0.087, 0.078, 0.072, 0.071, 0.072, 0.067, 0.066, 0.065, 0.063, 0.064],
    [0.037, 0.162, 0.164, 0.229, 0.309, 0.346, 0.333, 0.324, 0.377, 0.399, 0.401, 0.406, 0.405],
)
BY_HEART = rows_of(
    [0.30, 0.20, 0.15, 0.10, 0.07, 0.05], [0.31, 0.24, 0.20, 0.21, 0.23, 0.26], [0.1, 0.3, 0.4] * 2
)


def test_statistics_that_lag_are_not_called_learning_by_heart():
    (sentence,) = curve_advice(LAGGING, MANY, MANY)
    # 0.755 / 0.184 in the third of the rows
    assert sentence.startswith("The loss of val rises to 4.1 times its value until epoch 3, and ")
    assert "does not learn by heart" in sentence
    assert "statistics of BatchNorm" in sentence


def test_collapse_that_lasts_is_one_of_the_statistics_too():
    """As in a run that goes on, or ends early."""
    (sentence,) = curve_advice(LAGGING[:4], MANY, MANY)
    assert "mAP falls with it" in sentence
    assert "does not learn by heart" in sentence


def test_learning_by_heart_is_said_from_its_epoch_on():
    (sentence,) = curve_advice(BY_HEART, MANY, MANY)
    assert sentence.startswith("The loss of val rises from epoch 3 on while that of train falls: ")
    assert "by heart. More data or more augmentation helps" in sentence
    assert "BatchNorm" not in sentence


@pytest.mark.parametrize("rows", [FOLLOWING, [], LAGGING[:2], LAGGING[:1]])
def test_nothing_is_said_of_good_and_of_short_curves(rows):
    assert curve_advice(rows, MANY, MANY) == []


def test_few_images_are_said_beside_the_rest():
    images, val_images = curve_advice(FOLLOWING, 24, 8)
    assert images.startswith("There are 24 training images: ")
    assert val_images.startswith("There are 8 val images: ")
    assert curve_advice(FOLLOWING, 100, 30) == []
    assert len(curve_advice(BY_HEART, 1, 30)) == 2
    assert curve_advice([], 1, 1) == []  # nothing has been trained


def test_epochs_without_validation_and_terms_of_some_epochs_are_left_out():
    """YOLOX trains its l1 term in the last epochs only."""
    rows = [dict(row) for row in BY_HEART]
    for row in rows:
        row["train/l1_loss"] = 5.0 if row["epoch"] > 4 else 0.0
        row["val/l1_loss"] = 0.1
    rows.insert(1, {"epoch": 1.5, "train/box_loss": 9.0, "train/cls_loss": 9.0})
    assert curve_advice(rows, MANY, MANY) == curve_advice(BY_HEART, MANY, MANY)


def test_run_without_losses_has_no_advice():
    assert curve_advice([{"epoch": 1.0, "time": 2.0}] * 5, MANY, MANY) == []
