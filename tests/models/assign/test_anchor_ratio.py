"""Assignment by anchor ratio against hand-computed cells and plain loops."""

import math

import numpy as np
import pytest
import torch

from models.assign.anchor_ratio import AnchorMatches, match_anchors

ANCHORS = torch.tensor([[10.0, 13], [16, 30], [33, 23]])
IMAGES = 3


def target_row(image: int, class_id: int, cx: float, cy: float, w: float, h: float) -> list[float]:
    return [image, class_id, cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]


def random_targets(count: int, seed: int, images: int = IMAGES, side: float = 64.0) -> torch.Tensor:
    """Return targets on quarter pixels, so that many are at cell borders and centers; classes from
    -1 to 3.
    """
    g = torch.Generator().manual_seed(seed)
    centers = torch.randint(0, int(side * 4) + 1, (count, 2), generator=g) / 4
    sizes = torch.randint(1, int(side * 4), (count, 2), generator=g) / 4
    head = torch.stack(
        [
            torch.randint(0, images, (count,), generator=g),
            torch.randint(-1, 4, (count,), generator=g),
        ],
        1,
    )
    return torch.cat([head, centers - sizes / 2, centers + sizes / 2], 1).float()


def match_level(
    targets: torch.Tensor,
    anchors: torch.Tensor,
    stride: float,
    images: int,
    grid: tuple[int, int],
    limit: float,
) -> AnchorMatches:
    """Return the matches with a single level, each array [M]. anchors: [A, 2]."""
    found = match_anchors(targets, anchors[None], [stride], images, [grid], limit)
    return AnchorMatches(**{name: values[0] for name, values in vars(found).items()})


def match_indices(
    found: AnchorMatches, grid: tuple[int, int], anchors: int = len(ANCHORS)
) -> list[tuple[int, ...]]:
    """Return image, row, column and anchor of each valid match."""
    indices = np.unravel_index(found.prediction[found.valid].numpy(), (IMAGES, *grid, anchors))
    return list(zip(*(axis.tolist() for axis in indices), strict=True))


def sorted_matches(found: AnchorMatches, grid: tuple[int, int] = (8, 8)) -> list[tuple]:
    """Return the valid matches as sorted rows of (image, row, column, anchor), class, box, anchor
    size.
    """
    values = (v[found.valid].tolist() for v in (found.class_id, found.boxes, found.anchor_size))
    return sorted(zip(match_indices(found, grid), *values, strict=True))


def slow_matches(
    targets: torch.Tensor, anchors: torch.Tensor, stride: float, grid: tuple, limit: float
) -> list[tuple]:
    """Compute the definition with loops over the targets, the anchors and all cells of the grid."""
    rows = []
    for image, class_id, x1, y1, x2, y2 in targets.tolist():
        cx, cy, w, h = (
            (x1 + x2) / 2 / stride,
            (y1 + y2) / 2 / stride,
            (x2 - x1) / stride,
            (y2 - y1) / stride,
        )
        for a, (aw, ah) in enumerate((anchors / stride).tolist()):
            if class_id < 0 or max(w / aw, aw / w, h / ah, ah / h) >= limit:
                continue
            for row in range(grid[0]):
                for column in range(grid[1]):
                    own_column, own_row = math.floor(cx), math.floor(cy)
                    near_column = own_column + (-1 if cx - own_column < 0.5 else 1)
                    near_row = own_row + (-1 if cy - own_row < 0.5 else 1)
                    if (column, row) in {
                        (own_column, own_row),
                        (near_column, own_row),
                        (own_column, near_row),
                    }:
                        box = [cx - column, cy - row, w, h]
                        rows.append(((int(image), row, column, a), int(class_id), box, [aw, ah]))
    return sorted(rows)


def test_anchor_matches_by_hand():
    # Stride 8. Center (20, 30) px is (2.5, 3.75) in cells; own cell column 2, row 3. x: 2.5 - 2 =
    # 0.5, not below: the next column 3. y: 0.75: the next row 4. Size 40 x 26 px. Ratios to 10 x
    # 13: 4 and 2; 4 is the limit, so no match. To 16 x 30: 2.5, 30/26. To 33 x 23: 40/33, 26/23.
    targets = torch.tensor([target_row(1, 2, 20, 30, 40, 26)])
    found = match_level(targets, ANCHORS, 8, IMAGES, (8, 8), 4.0)
    sizes = [5.0, 3.25]
    cells = [
        (3, 2, [0.5, 0.75]),
        (3, 3, [-0.5, 0.75]),
        (4, 2, [0.5, -0.25]),
    ]  # row, column, center in the cell
    expected = [
        ((1, row, column, a), 2, [*center, *sizes], [w / 8, h / 8])
        for a, (w, h) in ((1, (16, 30)), (2, (33, 23)))
        for row, column, center in cells
    ]
    assert sorted_matches(found) == sorted(expected)
    assert len(found.valid) == 1 * 3 * 3


@pytest.mark.parametrize("limit", [4.0, 2.9])
@pytest.mark.parametrize("seed", range(4))
def test_anchor_matches_equal_slow_loops(seed, limit):
    targets = random_targets(40, seed)
    found = match_level(targets, ANCHORS, 8, IMAGES, (8, 8), limit)
    expected = slow_matches(targets, ANCHORS, 8, (8, 8), limit)
    assert expected
    assert [row[:2] for row in sorted_matches(found)] == [row[:2] for row in expected]
    for ours, theirs in zip(sorted_matches(found), expected, strict=True):
        assert ours[2] == pytest.approx(theirs[2], abs=1e-5)


def test_anchor_matches_on_non_square_grid_equal_slow_loops():
    targets = random_targets(60, 9)
    targets[:, [3, 5]] /= 2  # 32 px high
    found = match_level(targets, ANCHORS, 8, IMAGES, (4, 8), 4.0)
    expected = slow_matches(targets, ANCHORS, 8, (4, 8), 4.0)
    assert [row[:2] for row in sorted_matches(found, (4, 8))] == [row[:2] for row in expected]


@pytest.mark.parametrize(
    ("center", "cells"),  # stride 8, 4 x 4 cells; cells as (column, row)
    [
        ((1, 1), {(0, 0)}),  # the neighbors are outside the grid
        ((31, 31), {(3, 3)}),
        ((1, 31), {(0, 3)}),
        (
            (16, 12),
            {(2, 1), (1, 1), (2, 2)},
        ),  # x on a cell border: the cell on its left; y mid-cell: the next row
        ((8, 8), {(1, 1), (0, 1), (1, 0)}),
        ((32, 16), {(3, 2)}),  # on the image's border: only the cell on its left
        (
            (33, 16),
            {(3, 2)},
        ),  # outside: 33 / 8 - 3 = 1.125 is in the range of cell 3's predictions, -0.5 to 1.5
        ((37, 16), set()),  # 37 / 8 - 3 = 1.625 is not
    ],
)
def test_matched_cells_at_borders_and_cell_centers(center, cells):
    found = match_level(
        torch.tensor([target_row(0, 0, *center, 10, 13)]), ANCHORS[:1], 8, IMAGES, (4, 4), 4.0
    )
    got = {(column, row) for _, row, column, _ in match_indices(found, (4, 4), 1)}
    assert got == cells


def test_matched_cells_can_predict_the_box_center():
    found = match_level(random_targets(200, 11), ANCHORS, 8, IMAGES, (8, 8), 4.0)
    centers = found.boxes[found.valid, :2]
    assert centers.min() >= -0.5
    assert centers.max() <= 1.5


def test_targets_outside_the_image_match_nothing():
    far = [
        target_row(0, 0, -20, 30, 16, 30),
        target_row(0, 0, 30, 100, 16, 30),
        target_row(0, 0, 1e9, -1e9, 16, 30),
    ]
    found = match_level(torch.tensor(far), ANCHORS, 8, IMAGES, (8, 8), 4.0)
    assert not found.valid.any()
    assert found.prediction.tolist() == list(range(3 * 3 * 3))  # all valid indices, all different


@pytest.mark.parametrize("size", [(0, 0), (0, 30), (-16, -30), (16, -30), (float("nan"), 30)])
def test_boxes_without_area_match_nothing(size):
    found = match_level(
        torch.tensor([target_row(0, 0, 30, 30, *size)]), ANCHORS, 8, IMAGES, (8, 8), 4.0
    )
    assert not found.valid.any()


def test_ratio_at_the_limit_does_not_match():
    for ratio, matches in ((3.99, True), (4.0, False), (4.01, False)):
        for width in (16 * ratio, 16 / ratio):
            found = match_level(
                torch.tensor([target_row(0, 0, 28, 28, width, 16)]),
                torch.tensor([[16.0, 16]]),
                8,
                IMAGES,
                (8, 8),
                4,
            )
            assert found.valid.any().item() is matches, (ratio, width)


def test_ignore_regions_never_match():
    targets = random_targets(50, 5)
    targets[:, 1] = -1
    assert not match_level(targets, ANCHORS, 8, IMAGES, (8, 8), 4.0).valid.any()


@pytest.mark.parametrize("grids", [[(8, 8), (4, 4), (2, 2)], [(2, 4), (4, 8), (8, 16)]])
def test_matches_of_all_levels_equal_those_of_each_level(grids):
    targets = random_targets(40, 3)
    anchors = torch.stack([ANCHORS, 2 * ANCHORS, 4 * ANCHORS])
    strides = [64 // height for height, _ in grids]
    found = match_anchors(targets, anchors, strides, IMAGES, grids, 4.0)
    assert found.valid.shape == (3, 40 * 3 * 3)
    assert found.valid.any(1).all()
    for level, (stride, grid) in enumerate(zip(strides, grids, strict=True)):
        alone = match_level(targets, anchors[level], stride, IMAGES, grid, 4.0)
        assert all(
            values[level].equal(getattr(alone, name)) for name, values in vars(found).items()
        )


def test_no_targets_give_no_matches():
    found = match_level(torch.zeros(0, 6), ANCHORS, 8, IMAGES, (8, 8), 4.0)
    assert sorted_matches(found) == []
    assert found.boxes.shape == (0, 4)
