"""Dynamic soft label assignment against its five steps in plain loops, and its authors' results."""

import importlib
import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models.assign.dynamic_soft_label import dynamic_soft_label, fast_softplus, quality_focal
from models.assign.targets import pad_targets
from models.assign.task_aligned import ScoredAssignment
from models.heads.cells import cells_and_strides
from tests.models.assign.test_simota import iou_of, sigma
from tests.models.assign.test_task_aligned import assert_same
from tests.support.soft_label_cases import WITH_TIES, needs_cases, read_cases

STRIDES = (8, 16, 32)
HEIGHT, WIDTH = 64, 96
GRIDS = [(HEIGHT // stride, WIDTH // stride) for stride in STRIDES]
CLASSES = 3
Found = dict[tuple[int, int], tuple[int, float]]  # (image, prediction): target, target score


def corners() -> list[tuple[int, int, int]]:
    """Return the corner x, y and the stride of each prediction's cell."""
    return [
        (column * stride, row * stride, stride)
        for (height, width), stride in zip(GRIDS, STRIDES, strict=True)
        for row in range(height)
        for column in range(width)
    ]


def random_predictions(
    images: int, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Return boxes around their points, some of them inverted, and class logits."""
    g = torch.Generator().manual_seed(seed)
    points = torch.tensor(corners(), dtype=torch.float64)
    sides = 1.5 + 1.2 * torch.randn(images, len(points), 4, generator=g, dtype=torch.float64)
    sides *= points[:, 2:]
    boxes = torch.cat([points[:, :2] - sides[..., :2], points[:, :2] + sides[..., 2:]], -1)
    logits = torch.randn(images, len(points), CLASSES, generator=g, dtype=torch.float64)
    return boxes.to(dtype), logits.to(dtype)


def random_targets(count: int, images: int, seed: int) -> Tensor:
    """Return boxes of 2 to 60 px, some of them partly outside the images."""
    g = torch.Generator().manual_seed(seed)
    image = torch.randint(0, images, (count, 1), generator=g)
    class_id = torch.randint(0, CLASSES, (count, 1), generator=g)
    low = torch.rand(count, 2, generator=g) * torch.tensor([WIDTH, HEIGHT]) - 4
    size = 2 * 30 ** torch.rand(count, 2, generator=g)
    return torch.cat([image, class_id, low, low + size], 1).double()


def slow_quality_focal(logit: float, quality: float) -> float:
    p = sigma(logit)
    entropy = -quality * math.log(p) - (1 - quality) * math.log(1 - p)
    return entropy * abs(quality - p) ** 2


def slow_iou(box: list[float], target: list[float]) -> float:
    """Return the IoU, 0 for an inverted box."""
    return 0.0 if box[0] >= box[2] or box[1] >= box[3] else iou_of(box, target)


def slow_soft_label(boxes: Tensor, logits: Tensor, targets: Tensor) -> Found:
    """Follow the five steps, one box and one prediction at a time."""
    found: Found = {}
    for image in range(len(boxes)):
        objects = {
            row: t
            for row, t in enumerate(targets.tolist())
            if t[0] == image and t[1] >= 0 and t[4] > t[2] and t[5] > t[3]
        }
        # 1: points strictly inside any box.
        valid = [
            n
            for n, (x, y, _) in enumerate(corners())
            if any(t[2] < x < t[4] and t[3] < y < t[5] for t in objects.values())
        ]
        cost, iou, takers = {}, {}, {}
        for row, t in objects.items():
            middle = (t[2] + t[4]) / 2, (t[3] + t[5]) / 2
            for n in valid:
                # 2: the cost of every box and every valid point.
                x, y, stride = corners()[n]
                q = iou[row, n] = slow_iou(boxes[image, n].tolist(), t[2:])
                of_classes = sum(
                    slow_quality_focal(logits[image, n, c].item(), q if c == t[1] else 0.0)
                    for c in range(logits.shape[2])
                )
                strides_away = math.hypot(x - middle[0], y - middle[1]) / stride
                cost[row, n] = of_classes - 3 * math.log(q + 1e-7) + 10 ** (strides_away - 3)
            # 3: the k cheapest points.
            largest = sorted((iou[row, n] for n in valid), reverse=True)[:13]
            k = max(1, math.floor(sum(largest)))
            for n in sorted(valid, key=lambda n: cost[row, n])[:k]:
                takers.setdefault(n, []).append(row)
        for n, rows in takers.items():
            # 4: conflicts; 5: the target score.
            row = rows[0] if len(rows) == 1 else min(objects, key=lambda row: cost[row, n])
            found[image, n] = row, iou[row, n]
    return found


def as_found(assignment: ScoredAssignment, predictions: int) -> Found:
    """Return the valid entries, after checks of what must hold for all entries."""
    rows = zip(
        assignment.prediction.tolist(),
        assignment.target.tolist(),
        assignment.target_score.tolist(),
        assignment.valid.tolist(),
        strict=True,
    )
    chosen = [
        (divmod(number, predictions), (row, score)) for number, row, score, valid in rows if valid
    ]
    assert len(chosen) == len(dict(chosen))  # no prediction occurs twice
    assert not assignment.target_score[~assignment.valid].any()
    return dict(chosen)


def assigned(boxes: Tensor, logits: Tensor, targets: Tensor) -> Found:
    found = dynamic_soft_label(boxes, logits, GRIDS, STRIDES, targets)
    assert bool(((found.prediction >= 0) & (found.prediction < boxes.shape[:2].numel())).all())
    return as_found(found, boxes.shape[1])


def boxes_of(found: Found) -> dict[tuple[int, int], int]:
    return {where: row for where, (row, _) in found.items()}


@pytest.mark.parametrize(("seed", "count"), [(0, 1), (1, 3), (2, 12), (3, 40), (4, 90)])
def test_assignment_equals_slow_loops(seed, count, monkeypatch):
    # one target at a time, some, and all of them
    module = importlib.import_module("models.assign.row_blocks")
    predictions, targets = random_predictions(2, seed), random_targets(count, 2, seed)
    if count > 3:
        targets[0, 1], targets[1, 1] = -1, -2
        targets[2, 4] = targets[2, 2]  # of no width
    expected = slow_soft_label(*predictions, targets)
    assert expected
    for values in (1, 1000, 1 << 17):
        monkeypatch.setattr(module, "PAIRS_AT_A_TIME", values)
        assert_same(assigned(*predictions, targets), expected)
        assert_same(assigned(*predictions, pad_targets(targets)), expected)


def test_random_cases_contain_what_is_special_about_the_rule():
    """Otherwise the comparison with slow loops would say little."""
    (boxes, logits), targets = random_predictions(2, 3), random_targets(40, 2, 3)
    found = assigned(boxes, logits, targets)
    outside = 0
    for (_, n), (row, _) in found.items():
        x, y, _ = corners()[n]
        _, _, x1, y1, x2, y2 = targets[row].tolist()
        outside += not (x1 < x < x2 and y1 < y < y2)
    assert outside > 5
    # Boxes that lose all their predictions to others.
    assert len({row for row, _ in found.values()}) < len(targets)
    alone = [assigned(boxes, logits, targets[row : row + 1]) for row in range(len(targets))]
    assert any(not own for own in alone)  # no point inside
    assert (boxes[..., 2:] < boxes[..., :2]).any()


def test_assignment_by_hand():
    # Cells of stride 8, 16, 32. Only the point (8, 8) of stride 8 is inside the box 4 to 12; all
    # logits are 0. It predicts the box 4 to 12 itself: q = 1, k = 1.
    boxes, logits = random_predictions(1, 0)
    boxes[:] = torch.tensor([50.0, 50, 60, 60])
    number = 1 * (WIDTH // 8) + 1
    boxes[0, number] = torch.tensor([4.0, 4, 12, 12])
    box = torch.tensor([[0.0, 1, 4, 4, 12, 12]])
    assert assigned(boxes, 0 * logits, box) == {(0, number): (0, pytest.approx(1))}
    # A prediction that does not overlap is assigned too, for k is at least 1.
    elsewhere = torch.tensor([50.0, 50, 60, 60])
    assert assigned(elsewhere.expand_as(boxes), 0 * logits, box) == {(0, number): (0, 0.0)}
    # A box that ends at the point has no point inside, and gets nothing...
    at_point = torch.tensor([[0.0, 1, 4, 4, 8, 12]])
    assert assigned(boxes, 0 * logits, at_point) == {}
    # ... unless another box makes the point valid. The point is then of the box with the lower
    # cost: here IoU is 1 or 1/2, and - 3 log IoU is 0 or 2.08.
    both = torch.cat([box, at_point])
    assert boxes_of(assigned(boxes, 0 * logits, both)) == {(0, number): 0}
    boxes[0, number] = torch.tensor([4.0, 4, 8, 12])
    assert assigned(boxes, 0 * logits, both) == {(0, number): (1, pytest.approx(1))}


def test_equal_boxes_go_to_the_first_one():
    predictions, targets = random_predictions(1, 0), random_targets(1, 1, 3)
    one = assigned(*predictions, targets)
    assert one
    assert assigned(*predictions, targets.repeat(20, 1)) == one


def test_assignment_does_not_depend_on_order_or_other_images():
    predictions, targets = random_predictions(2, 5), random_targets(30, 2, 5)
    expected = assigned(*predictions, targets)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    shuffled = assigned(*predictions, targets[order])
    assert {where: (int(order[row]), q) for where, (row, q) in shuffled.items()} == expected
    rows = (targets[:, 0] == 1).nonzero()[:, 0]
    alone = assigned(*predictions, targets[rows])
    assert {where: (int(rows[row]), q) for where, (row, q) in alone.items()} == {
        where: found for where, found in expected.items() if where[0] == 1
    }


def test_boxes_far_from_all_candidates_get_none_of_infinite_cost():
    # One box makes a point of stride 8 valid; the other is 800 px, 100 strides, from it.
    grids = [(2, 128)]
    boxes, _ = cells_and_strides(grids, (8,), torch.zeros(1))
    boxes = torch.cat([boxes * 8 - 4, boxes * 8 + 4], 1)[None]
    targets = torch.tensor([[0.0, 0, 4, 4, 12, 12], [0, 0, 801, 9, 807, 15]])
    found = dynamic_soft_label(boxes, torch.zeros(1, 256, 1), grids, (8,), targets)
    assert as_found(found, 256) == {(0, 129): (0, 1.0)}


@pytest.mark.parametrize("rows", [torch.zeros(0, 6), torch.tensor([[0.0, -1, 0, 0, 64, 64]])])
def test_images_without_boxes_assign_nothing(rows):
    predictions = random_predictions(2, 0)
    assert assigned(*predictions, rows) == {}
    assert assigned(*predictions, pad_targets(rows)) == {}


def test_fewer_predictions_than_thirteen():
    boxes, logits = random_predictions(1, 0)
    targets = torch.tensor([[0.0, 1, -8, -8, 90, 60]])
    found = dynamic_soft_label(boxes[:, :3], logits[:, :3], [(1, 3)], (8,), targets)
    assert found.prediction.shape == (3,)
    assert 1 <= found.valid.sum() <= 3


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_predictions_that_are_not_finite_are_not_assigned(broken):
    """The sum of the target scores is shared between the processes, which must not all get NaN."""
    boxes, logits = random_predictions(2, seed=3)
    logits[0] = float("nan")
    boxes[1, ::2, 2] = broken
    found = dynamic_soft_label(boxes, logits, GRIDS, STRIDES, random_targets(20, 2, 3))
    assert found.target_score.isfinite().all()
    numbers = found.prediction[found.valid] - len(corners())
    assert (numbers >= 0).all()
    assert len(numbers) > 0
    assert (numbers % 2 == 1).all()


@pytest.mark.parametrize("logit", [-500.0, 500.0])
def test_extreme_logits_are_assigned(logit):
    boxes, logits = random_predictions(1, 0, torch.float32)
    assert assigned(boxes, torch.full_like(logits, logit), random_targets(5, 1, 0).float())


def test_inputs_are_not_changed():
    given = [*random_predictions(1, 0), random_targets(5, 1, 0)]
    copies = [part.clone() for part in given]
    assigned(*given)
    assert all(part.equal(copy) for part, copy in zip(given, copies, strict=True))


def test_assignment_never_syncs_with_device():
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        boxes = torch.empty(2, len(corners()), 4, device=device)
        logits = torch.empty(2, len(corners()), CLASSES, device=device)
        targets = torch.empty(7, 6, device=device)
        found = dynamic_soft_label(boxes, logits, GRIDS, STRIDES, targets)
    assert [
        part.shape for part in (found.prediction, found.target, found.target_score, found.valid)
    ] == [(91,)] * 4


def test_quality_focal_by_hand():
    # Logit ln 3: sigma = 3/4. Target 1/4: (1/4 - 3/4)^2 * (1/4 ln(4/3) + 3/4 ln 4).
    found = quality_focal(torch.tensor([3.0]).log(), torch.tensor([0.25]))
    assert found.item() == pytest.approx(0.25 * (math.log(4 / 3) / 4 + 0.75 * math.log(4)))


def test_fast_softplus_is_softplus():
    logits = torch.linspace(-120, 120, 4801)
    expected = torch.nn.functional.softplus(logits.double(), threshold=200)
    torch.testing.assert_close(fast_softplus(logits).double(), expected, rtol=2e-7, atol=2e-7)


@needs_cases
def test_assignments_equal_those_of_its_authors():
    cases = read_cases()
    assert len(cases) == 23
    for name, case in cases.items():
        points, strides = cells_and_strides(case.grids, STRIDES, torch.zeros(1))
        distances = torch.cat([level.flatten(1, 2) for level in case.distances], 1)
        corner = points * strides
        boxes = torch.cat([corner - distances[..., :2], corner + distances[..., 2:]], 2)
        logits = torch.cat([level.flatten(1, 2) for level in case.classes], 1)
        targets = pad_targets(case.targets)
        found = dynamic_soft_label(boxes, logits, case.grids, STRIDES, targets)
        ours = as_found(found, boxes.shape[1])
        theirs = {
            divmod(number, boxes.shape[1]): (row, score)
            for number, (row, score) in enumerate(
                zip(case.assigned.flatten().tolist(), case.metric.flatten().tolist(), strict=True)
            )
            if row >= 0
        }
        if name in WITH_TIES:
            assert len(ours) == len(theirs), name
            continue
        assert boxes_of(ours) == boxes_of(theirs), name
        scores = {where: score for where, (_, score) in theirs.items()}
        assert {where: score for where, (_, score) in ours.items()} == pytest.approx(
            scores, abs=1e-6
        ), name
