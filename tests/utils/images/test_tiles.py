"""Tiles: they cover the image, overlap enough, and say which boxes they cut."""

import numpy as np
import pytest

from utils.images.boxes import clip_boxes
from utils.images.tiles import Tiling, cut_by_tile


@pytest.mark.parametrize("overlap", [0, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("side", [1, 2, 7, 30, 64])
def test_tiles_cover_every_pixel_and_overlap_enough(side, overlap):
    tiling = Tiling(side, overlap)
    for length in range(1, 200):
        starts = tiling.starts(length)
        assert starts[0] == 0
        assert starts[-1] == max(0, length - side)
        steps = np.diff(starts)
        assert (steps >= 1).all()
        assert (steps <= side).all()
        if side > 1:  # a step is at least one pixel, so tiles of a pixel cannot overlap
            assert (steps <= max(1, side - overlap * side + 1e-9)).all()
        assert len(steps) == 0 or steps.max() - steps.min() <= 1


def test_hand_made_grid():
    # 3000 - 640 = 2360 px in steps of at most 640 - 128 = 512: 5 steps of 472.
    assert Tiling(640, 0.2).starts(3000) == [0, 472, 944, 1416, 1888, 2360]
    assert Tiling(10, 0).grid((20, 11)) == [
        (0, 0, 10, 10),
        (10, 0, 20, 10),
        (0, 1, 10, 11),
        (10, 1, 20, 11),
    ]


@pytest.mark.parametrize("size", [(1, 1), (640, 640), (640, 3), (17, 639)])
def test_image_not_larger_than_a_tile_is_one_region(size):
    assert Tiling(640, whole=True).regions(size) == [(0, 0, *size)]


def test_whole_image_is_the_last_region_of_a_cut_image():
    regions = Tiling(100, 0.5, whole=True).regions((150, 100))
    assert regions == [(0, 0, 100, 100), (50, 0, 150, 100), (0, 0, 150, 100)]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0,), "tile 0: choose a side of 1 pixel or more"),
        ((64, -0.1), r"tile overlap -0.1: choose a fraction of the side from 0 to 0.9"),
        ((64, 0.95), r"tile overlap 0.95: choose a fraction of the side from 0 to 0.9"),
        ((64, float("nan")), "tile overlap nan"),
    ],
)
def test_numbers_out_of_range_are_rejected(values, text):
    with pytest.raises(ValueError, match=text):
        Tiling(*values)


def test_border_of_the_image_cuts_no_box():
    whole = np.array([[0.0, 0.0, 1000.0, 500.0]])
    assert not cut_by_tile(whole, (0, 0, 1000, 500), (1000, 500)).any()
    # The right tile of two: its left border cuts, its other three are those of the image.
    boxes = np.array(
        [[600.0, 0.0, 1000.0, 500.0], [500.0, 0.0, 1000.0, 500.0], [506.0, 9.0, 800.0, 50.0]]
    )
    assert cut_by_tile(boxes, (500, 0, 1000, 500), (1000, 500)).tolist() == [False, True, False]


def test_empty_boxes():
    assert cut_by_tile(np.zeros((0, 4)), (0, 0, 5, 5), (9, 9)).shape == (0,)
    assert clip_boxes(np.zeros((0, 4)), (0, 0, 5, 5)).shape == (0, 4)


def test_tiling_as_text():
    assert str(Tiling(640)) == "tiles of 640 px with an overlap of 20%"
    assert (
        str(Tiling(64, 0.5, whole=True)) == "tiles of 64 px with an overlap of 50% and whole images"
    )
