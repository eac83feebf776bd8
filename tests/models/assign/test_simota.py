"""SimOTA against its definition in plain loops, with its authors' rule for boxes that have few
cells around them.
"""

import importlib
import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models.assign.simota import simota
from models.assign.targets import pad_targets
from models.heads.decoupled import boxes_in_cells
from tests.support.boxes import to_xyxy
from tests.support.yolox import GRIDS as YOLOX_GRIDS
from tests.support.yolox import training_step

STRIDES = (8, 16, 32)
HEIGHT, WIDTH = 128, 192
GRIDS = [(HEIGHT // stride, WIDTH // stride) for stride in STRIDES]
CLASSES = 3


def cells() -> list[tuple[float, float, int]]:
    """Return the middle x, y and the stride of each prediction's cell."""
    return [
        ((column + 0.5) * stride, (row + 0.5) * stride, stride)
        for (height, width), stride in zip(GRIDS, STRIDES, strict=True)
        for row in range(height)
        for column in range(width)
    ]


def random_predictions(images: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes around their cells, objectness and class logits."""
    g = torch.Generator().manual_seed(seed)
    points = torch.tensor(cells())
    centers = points[:, :2] + torch.randn(images, len(points), 2, generator=g) * points[:, 2:] * 0.5
    sizes = points[:, 2:] * torch.exp(torch.randn(images, len(points), 2, generator=g) * 0.5) * 3
    objectness = torch.randn(images, len(points), generator=g)
    return (
        to_xyxy(torch.cat([centers, sizes], -1)),
        objectness,
        torch.randn(images, len(points), CLASSES, generator=g),
    )


def random_targets(count: int, images: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    size = torch.tensor([WIDTH, HEIGHT])
    corners = torch.rand(count, 2, 2, generator=g) * size
    low, high = corners.amin(1), (corners.amax(1) + 4).minimum(size)
    head = [
        torch.randint(0, images, (count,), generator=g),
        torch.randint(0, CLASSES, (count,), generator=g),
    ]
    return torch.cat([torch.stack(head, 1), low, high], 1).float()


def iou_of(one: list[float], other: list[float]) -> float:
    sides = [min(one[i + 2], other[i + 2]) - max(one[i], other[i]) for i in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def slow_simota(
    boxes: Tensor, objectness: Tensor, classes: Tensor, targets: Tensor
) -> dict[tuple[int, int], int]:
    """Return the row of the target of each assigned (image, prediction)."""
    found = {}
    for image in range(len(boxes)):
        rows = [
            row
            for row, target in enumerate(targets.tolist())
            if target[0] == image and target[1] >= 0
        ]
        near = {}
        for row in rows:
            _, _, x1, y1, x2, y2 = targets[row].tolist()
            middle = ((x1 + x2) / 2, (y1 + y2) / 2)
            near[row] = {
                n
                for n, (x, y, stride) in enumerate(cells())
                if abs(x - middle[0]) < 1.5 * stride and abs(y - middle[1]) < 1.5 * stride
            }
        candidates = sorted(set().union(*near.values())) if rows else []
        cost = {}
        takers: dict[int, list[int]] = {}
        for row in rows:
            overlaps = {
                n: iou_of(targets[row, 2:].tolist(), boxes[image, n].tolist()) for n in candidates
            }
            for n in candidates:
                entropy = 0.0
                for c in range(CLASSES):
                    p = math.sqrt(
                        sigma(objectness[image, n].item()) * sigma(classes[image, n, c].item())
                    )
                    entropy -= math.log(p) if c == targets[row, 1] else math.log(1 - p)
                far = 0 if n in near[row] else 1e6
                cost[row, n] = entropy - 3 * math.log(overlaps[n] + 1e-8) + far
            k = max(1, int(sum(sorted(overlaps.values())[-10:])))
            for n in sorted(candidates, key=lambda n: cost[row, n])[:k]:
                takers.setdefault(n, []).append(row)
        for n, those in takers.items():
            found[image, n] = (
                those[0] if len(those) == 1 else min(rows, key=lambda row: cost[row, n])
            )
    return found


def assigned(
    boxes: Tensor, objectness: Tensor, classes: Tensor, targets: Tensor
) -> dict[tuple[int, int], int]:
    found = simota(boxes, objectness, classes, GRIDS, STRIDES, targets)
    pairs = zip(found.prediction.tolist(), found.target.tolist(), found.valid.tolist(), strict=True)
    chosen = [
        (divmod(prediction, boxes.shape[1]), target) for prediction, target, valid in pairs if valid
    ]
    assert len(chosen) == len(dict(chosen))  # no prediction occurs twice
    return dict(chosen)


@pytest.mark.parametrize("seed", range(8))
def test_assignment_equals_slow_loops(seed, monkeypatch):
    # from one target at a time to all of them
    module = importlib.import_module("models.assign.simota")
    monkeypatch.setattr(module, "PAIRS_AT_A_TIME", 1 << (7 + seed))
    predictions, targets = random_predictions(3, seed), random_targets(4 + 3 * seed, 3, seed)
    targets[0, 1], targets[1, 1] = -1, -2
    expected = slow_simota(*predictions, targets)
    assert expected
    assert assigned(*predictions, targets) == expected
    assert assigned(*predictions, pad_targets(targets)) == expected


@pytest.mark.parametrize(
    "center", [(1.0, 1.0), (191.0, 64.0), (64.0, 64.0), (60.0, 4.0), (8.0, 120.0), (96.0, 127.0)]
)
def test_boxes_at_borders_of_image_and_cells_equal_slow_loops(center):
    targets = torch.tensor([[0, 1, center[0] - 1, center[1] - 1, center[0] + 1, center[1] + 1]])
    predictions = random_predictions(1, 5)
    predictions[0][..., :] = torch.tensor([0.0, 0, WIDTH, HEIGHT])  # IoU is small: one prediction
    assert assigned(*predictions, targets) == slow_simota(*predictions, targets)
    predictions[0][..., :] = targets[0, 2:]  # IoU is 1 everywhere: ten predictions
    found = assigned(*predictions, targets)
    assert len(found) == 10
    assert found == slow_simota(*predictions, targets)


def test_empty_and_inverted_boxes_are_not_assigned():
    targets = torch.tensor(
        [[0, 1, 10.0, 10, 10, 10], [0, 1, 20, 20, 5, 25], [0, 1, 40, 40, 80, 80]]
    )
    found = assigned(*random_predictions(1, 5), targets)
    assert set(found.values()) == {2}


def test_prediction_taken_by_two_boxes_is_given_to_the_cheaper_one():
    # Two boxes around one center; every prediction equals the first box, so its cost is lower for
    # the first one.
    targets = torch.tensor([[0, 0, 40.0, 40, 80, 80], [0, 0, 44.0, 44, 76, 76]])
    boxes, objectness, classes = random_predictions(1, 0)
    boxes[:] = targets[0, 2:]
    found = assigned(boxes, torch.zeros_like(objectness), torch.zeros_like(classes), targets)
    # The IoUs of the second box are 32^2 / 40^2 = 0.64: floor(10 * 0.64) = 6 predictions, all taken
    # by the first one.
    assert len(found) == 10
    assert set(found.values()) == {0}


def test_no_targets_assign_nothing():
    predictions = random_predictions(2, 0)
    assert assigned(*predictions, torch.zeros(0, 6)) == {}
    assert assigned(*predictions, pad_targets(torch.zeros(0, 6))) == {}


def test_extreme_logits_give_finite_costs():
    boxes, objectness, classes = random_predictions(1, 0)
    targets = random_targets(5, 1, 0)
    for value in (-500.0, 500.0):
        found = assigned(
            boxes, torch.full_like(objectness, value), torch.full_like(classes, value), targets
        )
        assert set(found.values()) <= set(range(5))
        assert found


def test_assignment_never_syncs_with_device():
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        boxes, objectness = (
            torch.empty(2, len(cells()), 4, device=device),
            torch.empty(2, len(cells()), device=device),
        )
        classes = torch.empty(2, len(cells()), CLASSES, device=device)
        found = simota(boxes, objectness, classes, GRIDS, STRIDES, torch.empty(7, 6, device=device))
    assert [part.shape for part in (found.prediction, found.target, found.valid)] == [(70,)] * 3


def test_assignment_equals_that_of_its_authors():
    step = training_step()
    decoded = [
        (boxes_in_cells(level) * stride).flatten(1, 2)
        for level, stride in zip(step.maps, STRIDES, strict=True)
    ]
    values = torch.cat([level.flatten(1, 2) for level in step.maps], 1)
    objectness, classes = values[..., 4], values[..., 5:]
    targets = pad_targets(step.targets)
    found = simota(torch.cat(decoded, 1), objectness, classes, YOLOX_GRIDS, STRIDES, targets)

    rows = zip(found.prediction.tolist(), found.target.tolist(), found.valid.tolist(), strict=True)
    ours = {divmod(number, values.shape[1]): row for number, row, valid in rows if valid}
    assert len(step.positives) == 78
    assert ours == step.positives
