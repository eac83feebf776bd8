"""AP of ranges of size: pycocotools with the same area ranges, and COCO's small, medium, large."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tests.support.coco_cases import draw_case, pycocotools_evaluator
from utils.metrics.box_sizes import SIZE_EDGES, SizeBin, size_bins
from utils.metrics.coco import evaluate_boxes
from utils.metrics.records import Detections, GroundTruth


@pytest.mark.parametrize("seed", [0, 1])
def test_ranges_equal_pycocotools(seed):
    truth, detections, images, classes = draw_case(seed)
    ranges = [(low**2, high**2) for low, high in pairwise(SIZE_EDGES)]
    expected = pycocotools_evaluator(truth, detections, images, classes, ranges)
    precision = expected.eval["precision"]  # [T, R, K, A, M]

    bins = size_bins(truth, detections, image_ids=images, class_ids=classes)
    assert [(size.low, size.high) for size in bins] == list(pairwise(SIZE_EDGES))
    for a, size in enumerate(bins):
        of_range = precision[:, :, :, a, -1]
        known = of_range[of_range > -1]
        known50 = of_range[0][of_range[0] > -1]
        assert size.ap == pytest.approx(known.mean() if known.size else -1, abs=1e-9)
        assert size.ap50 == pytest.approx(known50.mean() if known50.size else -1, abs=1e-9)


def test_coco_limits_give_small_medium_and_large():
    truth, detections, images, classes = draw_case(3)
    stats = evaluate_boxes(truth, detections, image_ids=images, class_ids=classes).stats
    bins = size_bins(truth, detections, image_ids=images, class_ids=classes, edges=(0, 32, 96, 1e5))
    assert [size.ap for size in bins] == [stats["APs"], stats["APm"], stats["APl"]]

    in_range = (truth.areas >= 32**2) & (truth.areas <= 96**2) & ~truth.crowd
    assert bins[1].instances == np.count_nonzero(in_range & np.isin(truth.class_ids, classes))
    assert {32.0, 96.0} <= set(SIZE_EDGES)


def test_without_objects_ap_is_unknown():
    nothing = GroundTruth([], [], [], [], []), Detections([], [], [], [])
    bins = size_bins(*nothing, image_ids=[], class_ids=[], edges=(0, math.inf))
    assert bins == [SizeBin(0.0, math.inf, 0, -1.0, -1.0)]
    assert bins[0].as_dict() == {"low": 0, "high": None, "instances": 0, "AP": -1, "AP50": -1}


@pytest.mark.parametrize("edges", [(), (8,), (8, 8), (0, 32, 16), (-1, 8)])
def test_edges_must_ascend(edges):
    nothing = GroundTruth([], [], [], [], []), Detections([], [], [], [])
    with pytest.raises(ValueError, match=r"^The edges of the sizes are .* ascending numbers"):
        size_bins(*nothing, image_ids=[], class_ids=[], edges=edges)
