"""The rows of classes and the errors of an evaluation."""

import json

import pytest

from tests.support.box_rows import detections_of, truths_of
from utils.metrics.coco import evaluate_boxes
from utils.metrics.curves import operating_curves
from utils.metrics.errors import error_kinds
from utils.metrics.evaluation import Evaluation, class_rows

NAMES = ["cat", "absent", "<b>dog</b>"]


@pytest.fixture(scope="module")
def evaluation():
    """Four images, the last one empty: a cat found, a cat and a large dog missed, a false dog."""
    truth = truths_of(
        (1, 0, 0, 0, 10, 10, False), (2, 0, 0, 0, 10, 10, False), (2, 2, 0, 0, 200, 200, False)
    )
    detections = detections_of((1, 0, 0, 0, 10, 10, 0.9), (3, 2, 50, 50, 10, 10, 0.8))
    options = {"image_ids": [1, 2, 3, 4], "class_ids": [0, 1, 2]}
    return Evaluation(
        images=4,
        coco=evaluate_boxes(truth, detections, **options),
        curves=operating_curves(truth, detections, **options),
        truth=truth,
        detections=detections,
    )


def test_class_rows_by_hand(evaluation):
    rows = class_rows(evaluation, NAMES)
    assert json.loads(json.dumps(rows)) == rows
    assert [row["class_id"] for row in rows] == [0, 1, 2]
    assert [row["name"] for row in rows] == NAMES
    assert [(row["images"], row["instances"]) for row in rows] == [(2, 2), (0, 0), (1, 1)]

    # One of two cats, precision 1: 51 of 101 points; both are small.
    cat, absent, dog = rows
    assert (cat["precision"], cat["recall"]) == pytest.approx((1, 0.5))
    assert (cat["AP50"], cat["AP"], cat["APs"]) == pytest.approx((51 / 101,) * 3)
    assert (cat["APm"], cat["APl"]) == (-1, -1)
    assert {absent[key] for key in ("precision", "recall", "AP50", "AP", "APs")} == {-1}
    assert (dog["precision"], dog["recall"], dog["AP"], dog["APl"]) == (0, 0, 0, 0)


def test_errors_of_an_evaluation_are_those_of_all_its_images(evaluation):
    expected = error_kinds(
        evaluation.truth, evaluation.detections, image_ids=range(1, 5), class_ids=[0, 1, 2]
    )
    assert evaluation.error_kinds.as_dict() == expected.as_dict()
    assert evaluation.error_kinds.counts["missed"] == 2
    assert evaluation.error_kinds is evaluation.error_kinds  # computed once
