"""Task-aligned assignment against its definition in plain loops, and against numbers worked by
hand.
"""

import importlib
import math

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models.assign.targets import pad_targets
from models.assign.task_aligned import ScoredAssignment, task_aligned
from tests.support.boxes import to_xyxy

Found = dict[
    tuple[int, int], tuple[int, float]
]  # (image, prediction): row of its target, target score

STRIDES = (8, 16, 32)
SIDE = 64
CLASSES = 3
LOGIT_OF_QUARTER = -math.log(3)  # score 1/4, whose square root is 1/2


def middles(side: int = SIDE, strides: tuple[int, ...] = STRIDES) -> Tensor:
    """Return x, y of the middles of all cells, [N, 2], in float64."""
    points = [
        ((column + 0.5) * stride, (row + 0.5) * stride)
        for stride in strides
        for row in range(side // stride)
        for column in range(side // stride)
    ]
    return torch.tensor(points, dtype=torch.float64)


def random_predictions(images: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return boxes around their points, class logits, and the points; float64."""
    g = torch.Generator().manual_seed(seed)
    points = middles()
    strides = torch.tensor(
        [float(s) for s in STRIDES for _ in range((SIDE // s) ** 2)], dtype=torch.float64
    )[:, None]
    centers = (
        points + torch.randn(images, len(points), 2, generator=g, dtype=torch.float64) * strides / 2
    )
    sizes = (
        strides
        * 3
        * torch.exp(torch.randn(images, len(points), 2, generator=g, dtype=torch.float64) / 2)
    )
    logits = torch.randn(images, len(points), CLASSES, generator=g, dtype=torch.float64)
    return to_xyxy(torch.cat([centers, sizes], -1)), logits, points


def random_targets(count: int, images: int, seed: int) -> Tensor:
    """Return boxes of 4 px or more. The second half are shifted copies of the first, of the same or
    another class.
    """
    g = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, 2, generator=g, dtype=torch.float64) * (SIDE - 4)
    head = [
        torch.randint(0, images, (count,), generator=g),
        torch.randint(0, CLASSES, (count,), generator=g),
    ]
    targets = torch.cat([torch.stack(head, 1), corners.amin(1), corners.amax(1) + 4], 1)
    half = count // 2
    targets[half : 2 * half, 0] = targets[:half, 0]
    targets[half : 2 * half : 2, 1] = targets[
        :half:2, 1
    ]  # every other copy has the class of its box
    shifts = torch.rand(half, 2, generator=g, dtype=torch.float64) * 4
    targets[half : 2 * half, 2:] = targets[:half, 2:] + shifts.repeat(1, 2)
    return targets


def ciou_of(one: list[float], other: list[float]) -> float:
    """Return the CIoU of two boxes x1, y1, x2, y2; 0 if the first is inverted or empty."""
    (w, h), (v, g) = ((box[2] - box[0], box[3] - box[1]) for box in (one, other))
    if w <= 0 or h <= 0:
        return 0.0
    sides = [max(min(one[i + 2], other[i + 2]) - max(one[i], other[i]), 0) for i in (0, 1)]
    iou = sides[0] * sides[1] / (w * h + v * g - sides[0] * sides[1])
    rho2 = sum(((one[i] + one[i + 2]) / 2 - (other[i] + other[i + 2]) / 2) ** 2 for i in (0, 1))
    c2 = sum((max(one[i + 2], other[i + 2]) - min(one[i], other[i])) ** 2 for i in (0, 1))
    shape = 4 / math.pi**2 * (math.atan(v / g) - math.atan(w / h)) ** 2
    return iou - rho2 / c2 - (shape**2 / (1 - iou + shape) if shape else 0)


def slow_task_aligned(
    boxes: Tensor,
    classes: Tensor,
    points: Tensor,
    targets: Tensor,
    *,
    candidates: int = 10,
    kept: int | None = None,
    smallest: float = 0.0,
    reach: Tensor | None = None,
) -> Found:
    """A candidate of alignment 0 is left out: its target score is 0, as that of a prediction that
    is not assigned.
    """
    claims: dict[int, list[tuple[float, float, tuple[int, int]]]] = {}
    for row, (image, of_class, x1, y1, x2, y2) in enumerate(targets.tolist()):
        if of_class < 0:
            continue
        more_x, more_y = max(smallest - (x2 - x1), 0) / 2, max(smallest - (y2 - y1), 0) / 2
        claims[row] = []
        everywhere = []
        for n, (x, y) in enumerate(points.tolist()):
            is_candidate = x1 - more_x < x < x2 + more_x and y1 - more_y < y < y2 + more_y
            if reach is not None:
                distances = (x - x1, y - y1, x2 - x, y2 - y)
                is_candidate = min(distances) >= 0 and max(distances) <= reach[n]
            if is_candidate or reach is not None:
                u = max(ciou_of(boxes[int(image), n].tolist(), [x1, y1, x2, y2]), 0)
                t = (
                    1 / (1 + math.exp(-classes[int(image), n, int(of_class)].item()))
                ) ** 0.5 * u**6
                if t > 0:
                    everywhere.append((t, u, (int(image), n)))
                    claims[row] += everywhere[-1:] if is_candidate else []
        if reach is not None and not claims[row]:
            claims[row] = sorted(everywhere, reverse=True)[:1]
        claims[row] = sorted(claims[row], reverse=True)[:candidates]
    winner: dict[tuple[int, int], tuple[float, int]] = {}
    for row, those in claims.items():
        for _, u, where in those:
            if where not in winner or u > winner[where][0]:
                winner[where] = (u, row)
    found: Found = {}
    for row, those in claims.items():
        won = [claim for claim in those if winner[claim[2]][1] == row][:kept]
        for t, _, where in won:
            found[where] = (row, t * max(u for _, u, _ in won) / (max(t for t, _, _ in won) + 1e-9))
    return found


def as_found(aligned: ScoredAssignment, predictions: int) -> Found:
    """Return the valid entries, after checks of what must hold for all entries."""
    numbers, rows = aligned.prediction.tolist(), aligned.target.tolist()
    wanted, valid = aligned.target_score.tolist(), aligned.valid.tolist()
    chosen = [
        (divmod(number, predictions), (row, score))
        for number, row, score, counts in zip(numbers, rows, wanted, valid, strict=True)
        if counts
    ]
    assert len(chosen) == len(dict(chosen))  # no prediction occurs twice
    assert not any(score for score, counts in zip(wanted, valid, strict=True) if not counts)
    assert all(0 < score <= 1 for _, (_, score) in chosen)
    return dict(chosen)


def assigned(
    boxes: Tensor, classes: Tensor, points: Tensor, targets: Tensor, **settings: float | None
) -> Found:
    aligned = task_aligned(boxes, classes, points, targets, **settings)
    assert bool(((aligned.prediction >= 0) & (aligned.prediction < boxes.shape[:2].numel())).all())
    return as_found(aligned, boxes.shape[1])


def assert_same(one: Found, other: Found, rel: float = 1e-5) -> None:
    assert {where: row for where, (row, _) in one.items()} == {
        where: row for where, (row, _) in other.items()
    }
    assert {where: score for where, (_, score) in one.items()} == pytest.approx(
        {where: score for where, (_, score) in other.items()}, rel=rel, abs=1e-8
    )


SETTINGS = [
    {},
    {"candidates": 7, "kept": 1, "smallest": 16.0},
    {"candidates": 3},
    {"smallest": 16.0},
    {"kept": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(16))
def test_assignment_equals_slow_loops(seed, settings, monkeypatch):
    # from one target at a time to all of them
    module = importlib.import_module("models.assign.row_blocks")
    monkeypatch.setattr(module, "PAIRS_AT_A_TIME", 1 << (4 + seed))
    predictions, targets = random_predictions(3, seed), random_targets(5 + 2 * seed, 3, seed)
    targets[0, 1], targets[1, 1] = -1, -2
    expected = slow_task_aligned(*predictions, targets, **settings)
    assert expected
    assert_same(assigned(*predictions, targets, **settings), expected)
    assert_same(assigned(*predictions, pad_targets(targets), **settings), expected)


@pytest.mark.parametrize("strides", [0.4, 1.6, 14.99])
@pytest.mark.parametrize("seed", range(4))
def test_assignment_within_reach_equals_slow_loops(seed, strides, monkeypatch):
    module = importlib.import_module("models.assign.row_blocks")
    monkeypatch.setattr(module, "PAIRS_AT_A_TIME", 1 << (6 + seed))
    predictions, targets = random_predictions(3, seed), random_targets(21, 3, seed)
    targets[0, 1], targets[1, 1] = -1, -2
    targets[2:8, 2:] = (targets[2:8, 2:] / 4).round() * 4  # some sides lie on points
    targets[5, 4:] = targets[5, 2:4] + 2  # a box that no point is inside
    of_each = [float(s) for s in STRIDES for _ in range((SIDE // s) ** 2)]
    reach = torch.tensor(of_each, dtype=torch.float64) * strides
    expected = slow_task_aligned(*predictions, targets, reach=reach)
    assert expected
    assert_same(assigned(*predictions, targets, reach=reach), expected)
    assert_same(assigned(*predictions, pad_targets(targets), reach=reach), expected)
    assert assigned(*predictions, targets[:0], reach=reach) == {}


def test_random_cases_contain_conflicts():
    """Otherwise the comparison with slow loops would say little."""
    conflicts = set()
    for seed in range(4):
        predictions, targets = random_predictions(3, seed), random_targets(30, 3, seed)
        alone: dict[tuple[int, int], list[int]] = {}
        for row in range(len(targets)):
            for where in slow_task_aligned(*predictions, targets[row : row + 1]):
                alone.setdefault(where, []).append(row)
        conflicts |= {
            len({targets[row, 1].item() for row in rows})
            for rows in alone.values()
            if len(rows) > 1
        }
    assert conflicts >= {1, 2}  # of one class, and of two


@pytest.mark.parametrize("settings", [{}, {"candidates": 7, "kept": 1, "smallest": 16.0}], ids=str)
def test_assignment_does_not_depend_on_targets_order(settings):
    predictions, targets = random_predictions(2, 5), random_targets(24, 2, 5)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    shuffled = assigned(*predictions, targets[order], **settings)
    expected = assigned(*predictions, targets, **settings)
    assert expected
    assert_same(
        {where: (int(order[row]), score) for where, (row, score) in shuffled.items()},
        expected,
        rel=1e-12,
    )


def test_boxes_of_one_image_do_not_change_another():
    predictions, targets = random_predictions(2, 1), random_targets(20, 2, 1)
    second = targets[:, 0] == 1
    expected = {
        where: score
        for where, (_, score) in assigned(*predictions, targets).items()
        if where[0] == 1
    }
    alone = assigned(*predictions, targets[second])
    assert {where: score for where, (_, score) in alone.items()} == pytest.approx(
        expected, rel=1e-12
    )


# ---------------------------------------------------------------------- numbers by hand

POINTS = middles(16, (8,))  # (4, 4), (12, 4), (4, 12), (12, 12)
BOX = [0.0, 0, 16, 16]
SHIFTED = [4.0, 0, 20, 16]
# IoU of BOX and SHIFTED: 12 * 16 / (2 * 256 - 192) = 192 / 320 = 0.6. Centers 4 px apart, hull 20 x
# 16: 16 / 656. The shapes are equal: CIoU = 0.6 - 0.024390 = 0.575610.
SHIFTED_CIOU = 0.6 - 16 / 656
AWAY = [100.0, 100, 116, 116]


def predictions_of(boxes: list[list[float]], logits: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Return predictions of one image and one class."""
    return (
        torch.tensor([boxes], dtype=torch.float64),
        torch.tensor(logits, dtype=torch.float64)[None, :, None],
        POINTS[: len(boxes)],
    )


def test_target_scores_by_hand():
    # Scores 1/4 and 16/25 (logit ln(16/9)): t = 1/2 * 1 = 0.5 and 4/5 * 0.575610^6 = 0.8 * 0.036373
    # = 0.029099. The largest t is wanted to be the largest CIoU, 1; the other 0.029099 / 0.5 =
    # 0.058197.
    boxes, logits, points = predictions_of(
        [BOX, SHIFTED, AWAY, AWAY], [LOGIT_OF_QUARTER, math.log(16 / 9), 5, 5]
    )
    found = assigned(boxes, logits, points, torch.tensor([[0.0, 0, *BOX]]))
    assert found[0, 0] == (0, pytest.approx(1, abs=1e-6))
    assert found[0, 1] == (0, pytest.approx(0.8 * SHIFTED_CIOU**6 / 0.5, rel=1e-6))
    assert found[0, 1][1] == pytest.approx(0.0582, abs=5e-5)
    assert len(found) == 2  # AWAY's CIoU is negative


def test_largest_alignment_and_largest_ciou_may_be_of_different_predictions():
    # Score 1/10001 (logit -ln 10000), root 0.0099995: t = 0.0099995 < 0.029099. The second gets the
    # first one's CIoU.
    boxes, logits, points = predictions_of([BOX, SHIFTED], [-math.log(1e4), math.log(16 / 9)])
    found = assigned(boxes, logits, points, torch.tensor([[0.0, 0, *BOX]]))
    assert found[0, 1] == (0, pytest.approx(1, abs=1e-6))
    assert found[0, 0] == (0, pytest.approx(0.0099995 / 0.029099, rel=1e-3))


def test_prediction_of_two_boxes_is_given_to_the_larger_ciou_not_the_larger_alignment():
    # Both predictions equal BOX; its class 0 scores 1/10001, class 1 of the shifted box 16/25: t is
    # 0.0100 < 0.0291.
    boxes = torch.tensor([[BOX, BOX]], dtype=torch.float64)
    logits = torch.tensor([[[-math.log(1e4), math.log(16 / 9)]] * 2], dtype=torch.float64)
    targets = torch.tensor([[0.0, 1, *SHIFTED], [0, 0, *BOX]])
    # The points are x 4 and 12; SHIFTED starts at x 4, so that only the second one is strictly
    # inside it.
    found = assigned(boxes, logits, POINTS[:2], targets)
    assert {where: row for where, (row, _) in found.items()} == {(0, 0): 1, (0, 1): 1}
    found = assigned(boxes, logits, POINTS[:2], targets[:1])
    assert {where: row for where, (row, _) in found.items()} == {(0, 1): 0}


def test_equal_boxes_share_no_prediction():
    boxes, logits, points = predictions_of([BOX, SHIFTED], [0, 0])
    found = assigned(boxes, logits, points, torch.tensor([[0.0, 0, *BOX], [0, 0, *BOX]]))
    assert {where: row for where, (row, _) in found.items()} == {
        (0, 0): 0,
        (0, 1): 0,
    }  # the first one's, if equal


def test_one_is_kept_after_conflicts_are_resolved():
    # The best prediction of both boxes is the first: t = 1/2 for BOX, 1/2 * 0.575610^6 for the
    # other one. BOX has the larger CIoU, and the other box keeps its second best, equal to itself
    # but of score 1/10001: wanted 1, its CIoU.
    inside = torch.tensor([[6.0, 4], [12, 4]], dtype=torch.float64)
    boxes, logits, _ = predictions_of([BOX, SHIFTED], [LOGIT_OF_QUARTER, -2 * math.log(1e4)])
    targets = torch.tensor([[0.0, 0, *BOX], [0, 0, *SHIFTED]])
    found = assigned(boxes, logits, inside, targets, candidates=2, kept=1)
    assert {where: row for where, (row, _) in found.items()} == {(0, 0): 0, (0, 1): 1}
    assert found[0, 1][1] == pytest.approx(1, abs=1e-4)
    # With a single candidate both choose the first, and the other box has none.
    found = assigned(boxes, logits, inside, targets, candidates=1, kept=1)
    assert {where: row for where, (row, _) in found.items()} == {(0, 0): 0}


def test_points_must_be_strictly_inside():
    boxes, logits, points = predictions_of([BOX] * 4, [0.0] * 4)
    on_edges = torch.tensor([[0.0, 0, 4, 4, 12, 12]])  # all four points are corners of the box
    assert assigned(boxes, logits, points, on_edges) == {}
    larger = torch.tensor([[0.0, 0, 3.75, 3.75, 12, 12]])  # x and y of the first point are inside
    assert list(assigned(boxes, logits, points, larger)) == [(0, 0)]


def test_points_on_the_sides_count_within_reach():
    boxes, logits, points = predictions_of([BOX] * 4, [0.0] * 4)
    on_edges = torch.tensor([[0.0, 0, 4, 4, 12, 12]])  # all four points are corners of the box
    found = assigned(boxes, logits, points, on_edges, reach=torch.full((4,), 8.0))
    assert sorted(found) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    # 8 px are out of reach for the first three: one candidate is left.
    reach = torch.tensor([7.99, 7.99, 7.99, 8])
    assert list(assigned(boxes, logits, points, on_edges, reach=reach)) == [(0, 3)]
    # For all of them: the box gets one, as the best prediction of all.
    found = assigned(boxes, logits, points, on_edges, reach=torch.full((4,), 7.99))
    assert len(found) == 1


def test_box_without_a_point_gets_its_best_prediction_if_one_overlaps():
    # No point is inside a box of 4 x 4 px around (8, 8). t = 1/2 for the second prediction, which
    # equals it, and the score 1 - the largest CIoU.
    small = [6.0, 6, 10, 10]
    boxes, logits, points = predictions_of([AWAY, small, AWAY, AWAY], [LOGIT_OF_QUARTER] * 4)
    reach = torch.full((4,), 100.0)
    found = assigned(boxes, logits, points, torch.tensor([[0.0, 0, *small]]), reach=reach)
    assert found == {(0, 1): (0, pytest.approx(1, abs=1e-6))}
    # None overlaps this one; and neither ignore regions nor padding rows get any.
    assert assigned(boxes, logits, points, torch.tensor([[0.0, 0, 1, 1, 2, 2]]), reach=reach) == {}
    others = torch.tensor([[0.0, -1, *small], [0, -2, *small], [0, -1, 0, 0, 16, 16]])
    assert assigned(boxes, logits, points, others, reach=reach) == {}


def test_small_boxes_get_candidates_when_lengthened():
    # No point is inside a box of 4 x 4 px around (8, 8). Lengthened to 16 px it is 0 to 16 and has
    # all four, of which only one predicts a box that overlaps; its CIoU is with the box itself: 1.
    small = [6.0, 6, 10, 10]
    boxes, logits, points = predictions_of([AWAY, small, AWAY, AWAY], [0.0] * 4)
    targets = torch.tensor([[0.0, 0, *small]])
    assert assigned(boxes, logits, points, targets) == {}
    assert (
        assigned(boxes, logits, points, targets, smallest=8.0) == {}
    )  # 4 to 12: the points are its corners
    assert assigned(boxes, logits, points, targets, smallest=16.0) == {
        (0, 1): (0, pytest.approx(1, abs=1e-6))
    }


def test_only_short_sides_are_lengthened():
    # 2 px wide, 15 px high, lengthened to 10 px: x from 3 to 13, y still from 0 to 9 and without
    # the lower points.
    boxes, logits, points = predictions_of([[7.0, 0, 9, 10]] * 4, [0.0] * 4)
    found = assigned(boxes, logits, points, torch.tensor([[0.0, 0, 7, 0, 9, 10]]), smallest=10.0)
    assert set(found) == {(0, 0), (0, 1)}


# ---------------------------------------------------------------------- inputs of all kinds


@pytest.mark.parametrize("settings", [{}, {"kept": 1}], ids=str)
def test_no_targets_assign_nothing(settings):
    predictions = random_predictions(2, 0)
    assert assigned(*predictions, torch.zeros(0, 6), **settings) == {}
    assert assigned(*predictions, pad_targets(torch.zeros(0, 6)), **settings) == {}


def test_ignore_regions_and_padding_are_not_assigned():
    predictions, targets = random_predictions(1, 0), random_targets(8, 1, 0)
    targets[:, 1] = torch.tensor([-1, -2] * 4)
    assert assigned(*predictions, targets) == {}


def test_ignore_regions_and_padding_of_a_single_class():
    """Their class numbers, -1 and -2, are no columns of the logits."""
    (boxes, logits, points), targets = random_predictions(2, 0), random_targets(12, 2, 0)
    targets[:, 1], targets[3, 1] = 0, -1
    expected = slow_task_aligned(boxes, logits[..., :1], points, targets)
    assert_same(assigned(boxes, logits[..., :1], points, pad_targets(targets)), expected)


def test_fewer_predictions_than_candidates():
    boxes, logits, points = predictions_of([BOX, SHIFTED, BOX], [0.0, 1, 2])
    targets = torch.tensor([[0.0, 0, *BOX], [0, 0, *SHIFTED]], dtype=torch.float64)
    assert len(task_aligned(boxes, logits, points, targets, candidates=10).prediction) == 6
    expected = slow_task_aligned(boxes, logits, points, targets)
    assert {row for row, _ in expected.values()} == {0, 1}
    assert_same(assigned(boxes, logits, points, targets), expected)


def test_inverted_and_empty_predicted_boxes_are_never_assigned():
    boxes, logits, points = random_predictions(2, 2)
    targets = random_targets(16, 2, 2)
    boxes[:, ::3] = boxes[:, ::3][..., [2, 3, 0, 1]]  # x2 < x1 and y2 < y1
    boxes[:, 1::9, 2] = boxes[:, 1::9, 0] - 5  # x2 < x1 only
    boxes[:, 2::9, 3] = boxes[:, 2::9, 1]  # of no height
    found = assigned(boxes, logits, points, targets)
    assert found
    assert not any(n % 3 == 0 or n % 9 in (1, 2) for _, n in found)
    assert_same(found, slow_task_aligned(boxes, logits, points, targets))


def test_targets_of_no_size_are_not_assigned():
    predictions = random_predictions(1, 0)
    targets = torch.tensor([[0.0, 1, 20, 20, 20, 20], [0, 1, 10, 10, 10, 40]])
    assert assigned(*predictions, targets, smallest=16.0) == {}


@pytest.mark.parametrize("logit", [-80.0, 80.0])
def test_extreme_logits_are_assigned(logit):
    boxes, logits, points = (part.float() for part in random_predictions(1, 0))
    found = assigned(boxes, torch.full_like(logits, logit), points, random_targets(5, 1, 0).float())
    assert found  # target scores are in (0, 1]: see as_found


@pytest.mark.parametrize("kept", [None, 1])
def test_nan_predictions_have_a_target_score_of_0(kept):
    """Their sum is shared between the processes, which must not all get NaN from one."""
    boxes, classes, points = random_predictions(2, seed=3)
    classes[0] = float("nan")
    targets = random_targets(6, 2, seed=3)
    targets[:, 0] = torch.arange(6) % 2
    found = task_aligned(boxes, classes, points, targets, kept=kept)
    of_other = targets[found.target, 0] == 1
    assert not found.valid[~of_other].any()
    assert found.valid[of_other].any()
    assert (found.target_score[~found.valid] == 0).all()
    assert (found.target_score[found.valid] > 0).all()


def test_single_precision_gives_the_same_assignment():
    predictions, targets = random_predictions(2, 4), random_targets(24, 2, 4)
    aligned = task_aligned(*(part.float() for part in predictions), targets.float())
    assert aligned.target_score.dtype == torch.float32
    assert_same(as_found(aligned, len(predictions[2])), assigned(*predictions, targets), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_may_have_half_precision(dtype):
    (boxes, logits, points), targets = random_predictions(2, 4), random_targets(24, 2, 4).float()
    half = logits.to(dtype)
    aligned = task_aligned(boxes.float(), half, points.float(), targets)
    assert_same(
        as_found(aligned, len(points)), assigned(boxes, half.double(), points, targets), rel=3e-2
    )


def test_inputs_are_not_changed():
    given = [*random_predictions(1, 0), random_targets(5, 1, 0)]
    copies = [part.clone() for part in given]
    task_aligned(*given, smallest=16.0, kept=1)
    assert all(part.equal(copy) for part, copy in zip(given, copies, strict=True))


@pytest.mark.parametrize("kept", [None, 1])
def test_assignment_never_syncs_with_device(kept):
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        predictions = [
            torch.empty(2, 84, 4),
            torch.empty(2, 84, CLASSES),
            torch.empty(84, 2),
            torch.empty(7, 6),
        ]
        found = task_aligned(*(part.to(device) for part in predictions), kept=kept)
    assert [
        part.shape for part in (found.prediction, found.target, found.target_score, found.valid)
    ] == [(70,)] * 4
