"""Cells inside ignore regions, against hand-computed cells and plain loops."""

import pytest
import torch

from models.assign.targets import ignored_cells
from models.device_constants import device_constant


def random_regions(count: int, seed: int, images: int = 3, side: float = 64.0) -> torch.Tensor:
    """Return targets on quarter pixels, so that many edges are at cell centers; classes from -1 to
    3.
    """
    g = torch.Generator().manual_seed(seed)
    centers = torch.randint(0, int(side * 4) + 1, (count, 2), generator=g) / 4
    sizes = torch.randint(1, int(side * 4), (count, 2), generator=g) / 4
    head = [
        torch.randint(0, images, (count,), generator=g),
        torch.randint(-1, 4, (count,), generator=g),
    ]
    return torch.cat([torch.stack(head, 1), centers - sizes / 2, centers + sizes / 2], 1).float()


def slow_ignored(
    targets: torch.Tensor, images: int, stride: float, grid: tuple[int, int]
) -> torch.Tensor:
    ignored = torch.zeros(images, *grid, dtype=torch.bool)
    for image, class_id, x1, y1, x2, y2 in targets.tolist():
        for row in range(grid[0]):
            for column in range(grid[1]):
                x, y = (column + 0.5) * stride, (row + 0.5) * stride
                if class_id == -1 and x1 < x < x2 and y1 < y < y2:
                    ignored[int(image), row, column] = True
    return ignored


def test_ignored_cells_by_hand():
    # Centers are at 4, 12, 20, 28 px. The region contains 12 and 20 in x from 4 to 21 (4 is on its
    # edge), and 4 in y from 0 to 12.
    (ignored,) = ignored_cells(torch.tensor([[1.0, -1, 4, 0, 21, 12]]), 2, [8], [(4, 4)])
    assert ignored.nonzero().tolist() == [[1, 0, 1], [1, 0, 2]]


@pytest.mark.parametrize("strides", [(4,), (8, 16), (16, 4, 8), (4, 8, 16, 32)])
def test_ignored_cells_equal_the_slow_loops(strides):
    targets = random_regions(60, len(strides))
    targets[::2, 1] = -1
    targets[:3, 2:] = torch.tensor(
        [[-50.0, -50, 500, 500], [10, 10, 10, 40], [30, 30, 20, 20]]
    )  # all, empty, reversed
    for chosen in (targets, targets[1:], targets[3:20]):
        grids = [(64 // stride, 48 // stride) for stride in strides]
        found = ignored_cells(chosen, 3, strides, grids)
        for level, stride, grid in zip(found, strides, grids, strict=True):
            assert level.equal(slow_ignored(chosen, 3, stride, grid))


def test_no_targets_give_no_ignored_cells():
    (ignored,) = ignored_cells(torch.zeros(0, 6), 2, [8], [(8, 8)])
    assert ignored.shape == (2, 8, 8)
    assert not ignored.any()


def test_numbers_created_in_a_validation_can_be_used_in_training():
    """They are kept; created in inference mode, they could not be saved for a backward pass."""
    weight = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        device_constant((3.25, 7.5), torch.zeros(1))
    (device_constant((3.25, 7.5), torch.zeros(1)) * weight).sum().backward()
    assert weight.grad.tolist() == [3.25, 7.5]
