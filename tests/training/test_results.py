"""training/results.py: an epoch's row in results.csv, and its line in the log."""

import math

from training.results import epoch_line, results_row

LOSSES = {"box": 0.5, "cls": 0.25}
METRICS = {"precision": 0.1, "recall": 0.2, "AP50": 0.3, "AP": 0.4}
VAL_LOSSES = {"box": 0.6, "cls": 0.7}


def test_row_has_losses_metrics_and_validation_losses():
    assert results_row(LOSSES, METRICS, VAL_LOSSES) == {
        "train/box_loss": 0.5,
        "train/cls_loss": 0.25,
        "metrics/precision": 0.1,
        "metrics/recall": 0.2,
        "metrics/mAP_0.5": 0.3,
        "metrics/mAP_0.5:0.95": 0.4,
        "val/box_loss": 0.6,
        "val/cls_loss": 0.7,
    }


def test_row_of_an_epoch_without_validation_has_the_same_columns():
    row = results_row(LOSSES, {}, {})
    assert list(row) == list(results_row(LOSSES, METRICS, VAL_LOSSES))
    assert {name for name, value in row.items() if not math.isnan(value)} == {
        "train/box_loss",
        "train/cls_loss",
    }


def test_row_has_only_the_metrics_of_its_columns():
    assert list(results_row(LOSSES, METRICS | {"F1": 0.9}, VAL_LOSSES | {"dfl": 1.0})) == list(
        results_row(LOSSES, {}, {})
    )


def test_line_of_an_epoch_shows_losses_and_metrics():
    row = {"epoch": 7, **results_row(LOSSES, METRICS, VAL_LOSSES)}
    line = "  7/100  box 0.5000 cls 0.2500  P 0.1000 R 0.2000 mAP50 0.3000 mAP50-95 0.4000"
    assert epoch_line(row, 100) == line


def test_line_of_an_epoch_without_validation_says_so():
    row = {"epoch": 2, **results_row(LOSSES, {}, {})}
    assert epoch_line(row, 9) == "2/9  box 0.5000 cls 0.2500  not validated"
