"""Boxes that are nearly equal to an earlier one: as all pairs say, in an image with many too."""

import time

import numpy as np
import pytest

from utils.metrics.equal_boxes import _in_crowd, first_equal
from utils.metrics.matching import box_iou

IOU = 0.9


def by_all_pairs(boxes: np.ndarray, images: np.ndarray) -> list[tuple[int, int, float]]:
    """Each box with the first earlier one of its image that it is equal to, and the IoU."""
    found = []
    for number in range(len(boxes)):
        for earlier in range(number):
            pair = boxes[[number]].T, boxes[[earlier]].T
            iou = box_iou(*pair, np.array([False])).item()
            if images[number] == images[earlier] and iou >= IOU:
                found.append((number, earlier, iou))
                break
    return found


def random_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    """Some boxes, most of them with copies that are moved and resized a little."""
    centers = random.uniform(-50, 600, (count, 4))
    centers[:, 2:] = np.exp(random.uniform(-7, 6, (count, 2)))
    copies = centers[random.integers(0, max(count // 6, 1), count)]
    spread = random.choice([0, 0.01, 0.04, 0.1], (count, 1))
    copies[:, :2] += copies[:, 2:] * spread * random.uniform(-1, 1, (count, 2))
    copies[:, 2:] *= np.exp(spread * random.uniform(-1, 1, (count, 2)))
    copies[random.random(count) < 0.02, 2] = 0
    return copies


@pytest.mark.parametrize("seed", range(8))
def test_first_equal_box_as_all_pairs_say(seed, monkeypatch):
    """Both ways, of which one is for images with many boxes."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 90))
    boxes = random_boxes(random, count)
    images = np.sort(random.integers(0, 3, count))
    expected = by_all_pairs(boxes, images)
    for crowd in (0, 1000):
        monkeypatch.setattr("utils.metrics.equal_boxes.CROWD", crowd)
        found = first_equal(boxes, images, IOU)
        assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


@pytest.mark.slow
def test_edges_exactly_at_the_limit():
    """90 of 100 px is an IoU of 0.9 whichever edge differs, on either side of a cell's border."""
    for start in np.linspace(0, 400, 37):
        for shorter in ((0, 0, 90, 100), (10, 0, 90, 100), (0, 0, 100, 90), (0, 10, 100, 90)):
            boxes = np.array([(0, 0, 100, 100), shorter], float)
            boxes[:, :2] += start
            for pair in (boxes, boxes[::-1].copy()):
                expected = by_all_pairs(pair, np.zeros(2, int))
                found = _in_crowd(pair, IOU)
                assert list(zip(*(column.tolist() for column in found), strict=True)) == expected


def test_no_boxes():
    found = first_equal(np.zeros((0, 4)), np.zeros(0, np.int64), IOU)
    assert [len(column) for column in found] == [0, 0, 0]


@pytest.mark.slow
def test_thousands_of_equal_boxes_take_no_square():
    """All 4e8 pairs of 20,000 boxes would take 10 GB, and minutes."""
    random = np.random.default_rng(0)
    boxes = np.tile([100.0, 100, 50, 50], (20_000, 1))
    boxes[:, :2] += random.uniform(-1, 1, (20_000, 2))
    began = time.process_time()
    found = first_equal(boxes, np.zeros(20_000, np.int64), IOU)
    assert len(found.box) == 20_000 - 1
    assert time.process_time() - began < 20  # 0.3 s
