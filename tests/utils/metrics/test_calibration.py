"""Calibration of confidence, worked out by hand."""

import json

import numpy as np
import pytest

from utils.metrics.calibration import calibration_bins
from utils.metrics.records import Detections, GroundTruth


def bins_of(scores, right, bins):
    """Calibration of detections in an image each, with or without an object below them."""
    images = np.arange(len(scores))
    boxes = np.tile([0.0, 0, 10, 10], (len(scores), 1))
    zeros = np.zeros(len(scores), int)
    detections = Detections(images, zeros, boxes, scores)
    has_object = np.array(right, bool)
    number = int(has_object.sum())
    truth = GroundTruth(
        images[has_object], zeros[:number], boxes[:number], np.full(number, 100), [False] * number
    )
    return calibration_bins(truth, detections, image_ids=images, class_ids=[0], bins=bins)


def test_expected_error_by_hand():
    # 0 to .5: scores .1, .3, one of two right: mean .2, precision .5, distance .3
    # .5 to 1: scores .5, .8, 1, two of three right: mean 2.3/3, precision 2/3, distance .1
    result = bins_of([0.1, 0.3, 0.5, 0.8, 1.0], [0, 1, 0, 1, 1], bins=2)
    assert result.edges.tolist() == [0, 0.5, 1]
    assert result.counts.tolist() == [2, 3]
    assert result.scores == pytest.approx([0.2, 2.3 / 3])
    assert result.precision == pytest.approx([0.5, 2 / 3])
    assert result.expected_error() == pytest.approx((2 * 0.3 + 3 * 0.1) / 5)
    assert result.expected_error(0.5) == pytest.approx(0.1)
    assert result.expected_error(1.0) == 0


def test_edges_belong_to_the_upper_bin():
    scores = np.arange(21) / 20
    result = bins_of(scores, [1] * 21, bins=20)
    assert result.counts.tolist() == [1] * 19 + [2]
    assert result.scores[:19] == pytest.approx(result.edges[:19])


def test_detections_in_a_crowd_do_not_count():
    box = [[0, 0, 10, 10]]
    truth = GroundTruth([1], [0], box, [100], [True])
    detections = Detections([1], [0], box, [0.9])
    result = calibration_bins(truth, detections, image_ids=[1], class_ids=[0])
    assert result.counts.sum() == 0


def test_plain_values():
    content = json.loads(json.dumps(bins_of([0.9], [1], bins=2).as_dict()))
    assert content == {
        "expected_error": pytest.approx(0.1),
        "expected_error_from_0.25": pytest.approx(0.1),
        "bins": [
            {"low": 0.0, "high": 0.5, "count": 0, "score": None, "precision": None},
            {"low": 0.5, "high": 1.0, "count": 1, "score": 0.9, "precision": 1.0},
        ],
    }


def test_no_detections():
    result = bins_of([], [], bins=4)
    assert result.counts.tolist() == [0] * 4
    assert result.expected_error() == 0
    assert np.isnan(result.precision).all()


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match=r"^The number of bins is 0, but must be at least 1\.$"):
        bins_of([0.5], [1], bins=0)
    with pytest.raises(ValueError, match=r"^A detection has the score 1\.5, but it must be from 0"):
        bins_of([1.5], [1], bins=2)
