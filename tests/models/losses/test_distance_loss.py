"""The losses of the heads of distances against plain loops, and properties that they must have."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models import LossGains, build_loss
from models.assign.targets import pad_targets
from models.assign.task_aligned import ScoredAssignment
from models.heads.distance import DistanceHead, DualDistanceHead
from models.losses.distance import DistanceLoss, DualDistanceLoss, bin_entropy
from models.losses.fixed_point import normalizers
from models.losses.point_distance import target_score_sums
from tests.models.assign.test_task_aligned import (
    CLASSES,
    SIDE,
    STRIDES,
    random_targets,
    slow_task_aligned,
)

AUTHORS = {16: {"box": 7.5, "cls": 0.5, "dfl": 1.5}, 1: {"box": 7.5, "cls": 0.5, "dfl": 6.0}}
CLASS_WEIGHTS = (0.5, 3.0, 1.25)
O2O = {"candidates": 7, "kept": 1}
each_head = pytest.mark.parametrize("bins", [16, 1])


def random_maps(
    images: int, bins: int, seed: int = 0, dtype: torch.dtype = torch.float64, width: int = SIDE
) -> list[Tensor]:
    """Return maps whose distances are about two strides; without bins some are negative, and some
    boxes inverted.
    """
    g = torch.Generator().manual_seed(seed)
    maps = []
    for stride in STRIDES:
        grid = SIDE // stride, width // stride
        sides = torch.randn(images, *grid, 4, bins, generator=g, dtype=torch.float64)
        sides = 2 + 1.5 * sides if bins == 1 else 3 * sides - (torch.arange(bins) - 2.0).abs() / 2
        classes = torch.randn(images, *grid, CLASSES, generator=g, dtype=torch.float64)
        maps.append(torch.cat([sides.flatten(3), classes], 3).to(dtype))
    return maps


def some_targets(count: int = 14, images: int = 2, seed: int = 1) -> Tensor:
    targets = random_targets(count, images, seed)
    if count > 3:
        targets[3, 1] = -1
    return targets


def values(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


def slow_distance(row: Tensor, bins: int, side: int) -> Tensor:
    if bins == 1:
        return row[side]
    return sum(k * share for k, share in enumerate(row[side * bins : (side + 1) * bins].softmax(0)))


def slow_loss(
    maps: list[Tensor],
    targets: Tensor,
    bins: int,
    class_weights: tuple[float, ...] = (),
    **assignment: int,
) -> dict[str, Tensor]:
    """Compute the terms without gains, one prediction at a time, with torch's and torchvision's
    losses.
    """
    from torchvision.ops import complete_box_iou_loss

    rows = torch.cat([level.flatten(1, 2) for level in maps], 1)
    places = [
        (column + 0.5, row + 0.5, stride)
        for level, stride in zip(maps, STRIDES, strict=True)
        for row in range(level.shape[1])
        for column in range(level.shape[2])
    ]
    cells, strides = torch.tensor(places, dtype=torch.float64).split([2, 1], 1)
    points, targets = cells * strides, targets.to(rows.dtype)
    size = maps[0].shape[2] * STRIDES[0], maps[0].shape[1] * STRIDES[0]
    boxes = torch.empty(*rows.shape[:2], 4, dtype=rows.dtype)
    for image in range(len(rows)):
        for n, (x, y) in enumerate(cells):
            left, top, right, bottom = (
                slow_distance(rows[image, n], bins, side) for side in range(4)
            )
            boxes[image, n] = torch.stack([x - left, y - top, x + right, y + bottom])
    smallest = 16.0 if bins == 1 else 0.0
    in_pixels = (boxes * strides).detach()
    found = slow_task_aligned(
        in_pixels, rows[..., 4 * bins :].detach(), points, targets, smallest=smallest, **assignment
    )
    box = cls = dfl = rows.sum() * 0
    for image in range(len(rows)):
        for n, (x, y) in enumerate(points.tolist()):
            row, weight = found.get((image, n), (None, 0.0))
            wanted = torch.zeros(rows.shape[2] - 4 * bins, dtype=rows.dtype)
            class_weight = 1.0
            if row is not None:
                wanted[int(targets[row, 1])] = weight
                if class_weights:
                    class_weight = class_weights[int(targets[row, 1])]
                truth = targets[row, 2:] / strides[n]
                box = box + weight * complete_box_iou_loss(boxes[image, n], truth)
                dfl = dfl + weight * slow_difference(
                    rows[image, n], cells[n], truth, bins, strides[n] / torch.tensor(size)
                )
            elif any(
                t[0] == image and t[1] == -1 and t[2] <= x < t[4] and t[3] <= y < t[5]
                for t in targets.tolist()
            ):
                continue
            cls = cls + class_weight * F.binary_cross_entropy_with_logits(
                rows[image, n, 4 * bins :], wanted, reduction="sum"
            )
    count = max(sum(score for _, score in found.values()), 1)
    return {"box": box / count, "cls": cls / count, "dfl": dfl / count}


def slow_difference(
    row: Tensor, cell: Tensor, truth: Tensor, bins: int, cell_size: Tensor
) -> Tensor:
    """Return the mean of the four sides' terms of one prediction.

    truth: its box, in cells. cell_size: width and height of a cell, as fractions of the image's.
    """
    aims = [cell[0] - truth[0], cell[1] - truth[1], truth[2] - cell[0], truth[3] - cell[1]]
    if bins == 1:
        return (
            sum((row[side] - aim).abs() * cell_size[side % 2] for side, aim in enumerate(aims)) / 4
        )
    terms = []
    for side, aim in enumerate(aims):
        at, logits = min(max(aim.item(), 0), bins - 1 - 0.01), row[side * bins : (side + 1) * bins]
        low = int(at)
        near = (
            F.cross_entropy(logits, torch.tensor(low)),
            F.cross_entropy(logits, torch.tensor(low + 1)),
        )
        terms.append(near[0] * (low + 1 - at) + near[1] * (at - low))
    return sum(terms) / 4


def weighted(terms: dict[str, Tensor], bins: int) -> dict[str, float]:
    return {name: term.item() * AUTHORS[bins][name] for name, term in terms.items()}


# ---------------------------------------------------------------------- DistanceLoss


@each_head
@pytest.mark.parametrize("count", [0, 1, 14])
@pytest.mark.parametrize("assignment", [{}, O2O], ids=["o2m", "o2o"])
def test_distance_loss_equals_slow_loops(count, bins, assignment):
    maps, targets = random_maps(2, bins), some_targets(count)
    expected = weighted(slow_loss(maps, targets, bins, **assignment), bins)
    assert (expected["box"] > 0) == (expected["dfl"] > 0) == (count > 0)
    for given in (targets, pad_targets(targets)):
        found = values(DistanceLoss(STRIDES, bins, **assignment)(maps, given))
        assert found == pytest.approx(expected, rel=1e-5)
        assert list(found) == list(DistanceLoss.terms)


@each_head
@pytest.mark.parametrize("count", [0, 14])
def test_weighted_distance_loss_equals_slow_loops(count, bins):
    maps, targets = random_maps(2, bins), some_targets(count)
    expected = weighted(slow_loss(maps, targets, bins, CLASS_WEIGHTS), bins)
    loss = DistanceLoss(STRIDES, bins, class_weights=torch.tensor(CLASS_WEIGHTS))
    assert values(loss(maps, pad_targets(targets))) == pytest.approx(expected, rel=1e-5)


@each_head
def test_loss_of_wide_images_equals_slow_loops(bins):
    maps, targets = random_maps(2, bins, width=3 * SIDE), some_targets()
    targets[:, [2, 4]] *= 3
    expected = weighted(slow_loss(maps, targets, bins), bins)
    assert values(DistanceLoss(STRIDES, bins)(maps, targets)) == pytest.approx(expected, rel=1e-5)


@each_head
def test_single_class_loss_equals_slow_loops(bins):
    maps, targets = [level[..., : 4 * bins + 1] for level in random_maps(2, bins)], some_targets()
    targets[:, 1] = targets[:, 1].clamp(max=0)
    expected = weighted(slow_loss(maps, targets, bins), bins)
    assert values(DistanceLoss(STRIDES, bins)(maps, pad_targets(targets))) == pytest.approx(
        expected, rel=1e-5
    )


@each_head
def test_gradient_equals_that_of_slow_loops(bins):
    fast, slow = ([level.requires_grad_() for level in random_maps(2, bins)] for _ in range(2))
    sum(DistanceLoss(STRIDES, bins)(fast, some_targets()).values()).backward()
    terms = slow_loss(slow, some_targets(), bins)
    sum(term * AUTHORS[bins][name] for name, term in terms.items()).backward()
    for one, other in zip(fast, slow, strict=True):
        assert one.grad.abs().max() > 1e-3
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)


@each_head
def test_gradients_of_classes_and_distances_equal_finite_differences(bins):
    """With the assignment held. The box term's weight of the aspect ratio has no gradient: finite
    differences do.
    """
    maps, loss = random_maps(1, bins), DistanceLoss(STRIDES, bins)
    targets = random_targets(2, 1, 0)
    predictions = loss.assigned(maps, targets)
    assigned = predictions.slots.prediction[predictions.slots.valid]

    def terms(rows: Tensor) -> tuple[Tensor, Tensor]:
        given = predictions.values[0].index_put((assigned,), rows)
        ignored = torch.zeros(1, len(given), dtype=torch.bool)
        found = loss.terms_of(
            predictions._replace(values=given[None]), targets, torch.ones(()), ignored
        )
        return found["cls"], found["dfl"]

    rows = predictions.values[0][assigned].clone().requires_grad_()
    assert rows.numel() > 20
    assert torch.autograd.gradcheck(terms, (rows,), fast_mode=True)


@each_head
@pytest.mark.parametrize("at", [0, 1, 3])
def test_distance_loss_shares_sum_to_batch_loss_and_gradient(at, bins):
    loss, targets = DistanceLoss(STRIDES, bins), some_targets(24, 4)
    whole = [level.requires_grad_() for level in random_maps(4, bins)]
    expected = loss(whole, targets)
    sum(expected.values()).backward()
    divided = [level.requires_grad_() for level in random_maps(4, bins)]
    parts = batch_parts(divided, targets, at)
    shares = in_processes(loss, parts)
    sum(sum(share.values()) for share in shares).backward()
    for name, term in expected.items():
        assert sum(share[name].item() for share in shares) == pytest.approx(term.item(), rel=1e-12)
    for one, other in zip(whole, divided, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def batch_parts(
    levels: list[Tensor], targets: Tensor, at: int
) -> list[tuple[list[Tensor], Tensor]]:
    """Return maps and targets of the first `at` images, and of the others."""
    first, second = targets[targets[:, 0] < at], targets[targets[:, 0] >= at].clone()
    second[:, 0] -= at
    return [([level[:at] for level in levels], first), ([level[at:] for level in levels], second)]


def in_processes(
    loss: Callable[..., dict[str, Tensor]], parts: list[tuple]
) -> list[dict[str, Tensor]]:
    """Return the shares of processes that sum their counts."""
    counts: list[Tensor] = []
    for part in parts:
        loss(*part, lambda count: counts.append(count.clone()) or count)
    assert len(counts) == len(parts)  # one call per forward pass
    assert all(count.dtype == torch.int64 for count in counts)
    return [loss(*part, lambda _: sum(counts)) for part in parts]


@each_head
def test_no_boxes_train_only_negatives(bins):
    maps = [level.requires_grad_() for level in random_maps(2, bins)]
    terms = DistanceLoss(STRIDES, bins)(maps, pad_targets(torch.zeros(0, 6)))
    logits = torch.cat([level[..., 4 * bins :].flatten() for level in maps])
    # Nothing is wanted: the normalizer is 1, and the gain 0.5.
    assert values(terms) == {
        "box": 0,
        "cls": pytest.approx(F.softplus(logits).sum().item() / 2, rel=1e-12),
        "dfl": 0,
    }
    sum(terms.values()).backward()
    for level in maps:
        assert not level.grad[..., : 4 * bins].any()
        torch.testing.assert_close(
            level.grad[..., 4 * bins :], level[..., 4 * bins :].sigmoid() / 2
        )


@each_head
def test_ignore_regions_train_no_negatives(bins):
    maps = [level.requires_grad_() for level in random_maps(1, bins)]
    everywhere = torch.tensor([[0.0, -1, 0, 0, SIDE, SIDE]])
    assert values(DistanceLoss(STRIDES, bins)(maps, everywhere)) == {"box": 0, "cls": 0, "dfl": 0}


@each_head
@pytest.mark.parametrize("padded", [False, True])
def test_boxes_inside_ignore_regions_are_trained(bins, padded):
    """A box at the first predictions, whose numbers are also those of slots without a
    prediction.
    """
    maps, box = random_maps(1, bins), [0.0, 1, 2, 2, 40, 30]
    targets = torch.tensor([box, [0, -1, 0, 0, SIDE, SIDE]])
    expected = slow_loss(maps, targets, bins)
    assert expected["cls"] > 0
    found = DistanceLoss(STRIDES, bins)(maps, pad_targets(targets) if padded else targets)
    assert values(found) == pytest.approx(weighted(expected, bins), rel=1e-5)


@each_head
def test_gains_are_those_of_authors_times_given_ones_relative_to_defaults(bins):
    head = DistanceHead([8, 8, 8], CLASSES, bins, strides=[Fraction(s) for s in STRIDES])
    maps, targets = random_maps(2, bins), some_targets()
    authors = values(DistanceLoss(STRIDES, bins)(maps, targets))
    assert values(build_loss(head, LossGains())(maps, targets)) == pytest.approx(authors, rel=1e-12)
    gains = LossGains(box=0.1, obj=9.0, cls=0.25)  # twice and half the defaults
    expected = {"box": 2 * authors["box"], "cls": authors["cls"] / 2, "dfl": 2 * authors["dfl"]}
    assert values(build_loss(head, gains)(maps, targets)) == pytest.approx(expected, rel=1e-12)
    own = values(DistanceLoss(STRIDES, bins, {"box": 1, "cls": 1, "dfl": 1})(maps, targets))
    assert own == pytest.approx(authors, rel=1e-12)


def test_normalizer_is_exact_and_at_least_one():
    def of_scores(*scores: float) -> ScoredAssignment:
        rows = torch.zeros(len(scores), dtype=torch.int64)
        return ScoredAssignment(rows, rows, rows > 0, torch.tensor(scores))

    # 1/4 + 1/2 = 0.75 is raised to 1; 3 * 3/4 = 2.25 is not. Two processes with the same: twice
    # that.
    sums = target_score_sums([of_scores(0.25, 0.5, 0.0), of_scores(0.75, 0.75, 0.75)])
    assert normalizers(sums, torch.float32).tolist() == [1, 2.25]
    assert normalizers(2 * sums, torch.float32).tolist() == [1.5, 4.5]
    assert normalizers(target_score_sums([of_scores()]), torch.float32).tolist() == [1]
    scores = torch.rand(1000, generator=torch.Generator().manual_seed(0)).tolist()
    rotated = [of_scores(*scores[i:], *scores[:i]) for i in range(0, 1000, 7)]
    assert len(set(target_score_sums(rotated).tolist())) == 1


def test_bin_entropy_by_hand():
    # Logits ln 1, ln 2, ln 5 are probabilities 1/8, 2/8, 5/8. A distance of 1.25 counts 3/4 for bin
    # 1, 1/4 for bin 2.
    logits = torch.tensor([1.0, 2, 5], dtype=torch.float64).log().expand(1, 4, 3)
    found = bin_entropy(logits, torch.tensor([[1.25, 0.0, -3.0, 7.0]], dtype=torch.float64))
    log = torch.tensor([8 / 1, 8 / 2, 8 / 5], dtype=torch.float64).log()
    expected = [
        0.75 * log[1] + 0.25 * log[2],
        log[0],
        log[0],
        0.01 * log[1] + 0.99 * log[2],
    ]  # 7 counts as 1.99
    torch.testing.assert_close(found[0], torch.stack(expected))


# ---------------------------------------------------------------------- boxes of all kinds


def maps_of_distances(sides: list[float]) -> list[Tensor]:
    """Return maps of one image, without bins, whose predictions all have these distances, and class
    logits 0.
    """
    return [
        torch.tensor([*sides, *[0.0] * CLASSES], dtype=torch.float64).repeat(
            1, SIDE // s, SIDE // s, 1
        )
        for s in STRIDES
    ]


def test_tiny_box_between_points_is_trained_without_bins():
    # The middles around 16 px of stride 8 are 12 and 20. The one at 12, 12 predicts 14 to 18: the
    # box itself.
    maps = maps_of_distances([-9.0, -9, -9, -9])
    maps[0][0, 1, 1, :4] = torch.tensor(
        [(12 - 14) / 8, (12 - 14) / 8, (18 - 12) / 8, (18 - 12) / 8]
    )
    tiny = torch.tensor([[0.0, 2, 14, 14, 18, 18]])
    found = DistanceLoss(STRIDES, 1).assigned(maps, tiny).slots
    assert found.prediction[found.valid].tolist() == [1 * 8 + 1]
    assert found.target_score.sum().item() == pytest.approx(1, abs=1e-6)
    # Moved by one px, a quarter of its side, the prediction has box and distance terms.
    maps[0][0, 1, 1, :4] += torch.tensor([-1 / 8, 0, 1 / 8, 0])
    terms = values(DistanceLoss(STRIDES, 1)(maps, tiny))
    assert terms["box"] > 0
    # Two sides differ by 1 px of 64: 1/128 is the mean of four. IoU is 12 / 20, and the hull 5 x 4
    # px: the target score is the CIoU, 0.6 - 1 / 41, and the normalizer 1.
    assert terms["dfl"] == pytest.approx(6 / 128 * (0.6 - 1 / 41), rel=1e-5)


def test_tiny_box_between_points_has_no_prediction_with_bins():
    tiny = torch.tensor([[0.0, 2, 14, 14, 18, 18]])
    assert not DistanceLoss(STRIDES, 16).assigned(random_maps(1, 16), tiny).slots.valid.any()


def test_small_boxes_are_lengthened_to_the_second_stride_without_bins():
    assert DistanceLoss((8, 16, 32), 1).smallest == 16
    assert DistanceLoss((4, 8, 16, 32), 1).smallest == 8
    assert DistanceLoss((16,), 1).smallest == 16
    assert DistanceLoss((8, 16, 32), 16).smallest == 0


@pytest.mark.parametrize(
    "sides", [[-3.0, -3, -3, -3], [-3.0, 2, 1, 2], [0.0, 0, 0, 0], [-2.0, 1, 2, 1]], ids=str
)
def test_inverted_and_empty_predictions_give_finite_gradients(sides):
    """Also where such a prediction is assigned, which task_aligned never does."""
    maps = [level.requires_grad_() for level in maps_of_distances(sides)]
    targets, loss = torch.tensor([[0.0, 1, 10, 12, 40, 44]]), DistanceLoss(STRIDES, 1)
    predictions = loss.assigned(maps, targets)
    assert not predictions.slots.valid.any()
    number = torch.tensor([9])
    wrong = ScoredAssignment(number, torch.tensor([0]), torch.tensor([True]), torch.tensor([0.5]))
    for found in (predictions.slots, wrong):
        ignored = torch.zeros(predictions.values.shape[:2], dtype=torch.bool)
        terms = loss.terms_of(
            predictions._replace(slots=found), targets.double(), torch.ones(()), ignored
        )
        gradients = torch.autograd.grad(sum(terms.values()), maps, retain_graph=True)
        assert all(term.isfinite() for term in terms.values())
        assert all(gradient.isfinite().all() for gradient in gradients)
    assert terms["box"] > 0


@each_head
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_extreme_logits_give_finite_gradients(bins, size):
    maps = [level.requires_grad_() for level in random_maps(2, bins, dtype=torch.float32)]
    terms = DistanceLoss(STRIDES, bins)([level * size for level in maps], some_targets().float())
    sum(terms.values()).backward()
    assert all(level.grad.isfinite().all() for level in maps)


@each_head
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_maps_are_computed_in_single_precision(bins, dtype):
    maps, targets = random_maps(2, bins, dtype=dtype), some_targets().float()
    terms = DistanceLoss(STRIDES, bins)(maps, targets)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert values(terms) == values(
        DistanceLoss(STRIDES, bins)([level.float() for level in maps], targets)
    )
    assert terms["box"] > 0


@each_head
def test_wider_image_only_halves_the_l1_of_x(bins):
    maps, targets = [level[:1] for level in random_maps(2, bins)], random_targets(4, 1, 0)
    background = [torch.cat([level, torch.full_like(level, -50)], 2) for level in maps]
    loss = DistanceLoss(STRIDES, bins)
    assert loss.assigned(background, targets).size == (2 * SIDE, SIDE)
    square, wide = values(loss(maps, targets)), values(loss(background, targets))
    assert wide["box"] == pytest.approx(square["box"], rel=1e-9)
    assert wide["cls"] == pytest.approx(square["cls"], rel=1e-9)
    if bins == 1:
        assert square["dfl"] / 2 < wide["dfl"] < square["dfl"]
    else:
        assert wide["dfl"] == pytest.approx(square["dfl"], rel=1e-9)


@pytest.mark.slow
@each_head
def test_distance_loss_never_syncs_with_device(bins):
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        maps = [
            torch.empty(2, SIDE // s, SIDE // s, 4 * bins + CLASSES, device=device) for s in STRIDES
        ]
        losses = DistanceLoss(STRIDES, bins), dual_loss(bins)
        targets = torch.empty(5, 6, device=device)
        terms = losses[0](maps, targets, lambda count: count) | losses[1](
            [maps, maps], targets, lambda count: count
        )
    assert len(terms) == 6
    assert all(term.device.type == "cuda" for term in terms.values())


# ---------------------------------------------------------------------- DualDistanceLoss


def dual_loss(bins: int = 1) -> DualDistanceLoss:
    return DualDistanceLoss(DistanceLoss(STRIDES, bins), DistanceLoss(STRIDES, bins, **O2O))


@each_head
@pytest.mark.parametrize("weights", [(), CLASS_WEIGHTS], ids=["plain", "class weights"])
def test_dual_loss_equals_slow_loops(bins, weights):
    many, one, targets = random_maps(2, bins, 0), random_maps(2, bins, 1), some_targets()
    first = weighted(slow_loss(many, targets, bins, weights), bins)
    second = weighted(slow_loss(one, targets, bins, weights, **O2O), bins)
    expected = first | {f"o2o_{name}": term for name, term in second.items()}
    head = DualDistanceHead([8, 8, 8], CLASSES, bins, strides=[Fraction(s) for s in STRIDES])
    built = build_loss(head, LossGains(class_weights=weights))
    for loss in (built,) if weights else (dual_loss(bins), built):
        loss.start_epoch(0, 100, without_mosaic=False)
        found = loss([many, one], targets)
        assert values(found) == pytest.approx(expected, rel=1e-5)
        assert list(found) == list(loss.terms)
        whole = 0.8 * sum(first.values()) + 0.2 * sum(second.values())
        assert loss.weighted_sum(found).item() == pytest.approx(whole, rel=1e-5)


def test_share_of_o2m_falls_from_80_to_10_percent():
    loss, terms = dual_loss(), dict.fromkeys(DualDistanceLoss.terms, torch.ones(()))
    # 0.1 + 0.7 * (1 - e / 7): a tenth less in each of eight epochs. Three terms of 2 and three of
    # 1.
    terms |= dict.fromkeys(DistanceLoss.terms, torch.tensor(2.0))
    for epoch, share in enumerate([0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]):
        loss.start_epoch(epoch, 8, without_mosaic=epoch == 7)
        assert loss.weighted_sum(terms).item() == pytest.approx(
            6 * share + 3 * (1 - share), rel=1e-6
        )


@pytest.mark.parametrize(
    ("epoch", "epochs", "share"), [(0, 1, 0.8), (1, 2, 0.1), (5, 3, 0.1), (2, 5, 0.45)]
)
def test_share_depends_only_on_the_epoch(epoch, epochs, share):
    loss = dual_loss()
    for earlier in (3, 0, epoch):
        loss.start_epoch(earlier, epochs, without_mosaic=False)
    assert loss.o2m_weight == pytest.approx(share)


@pytest.mark.parametrize("training", [True, False])
def test_terms_do_not_depend_on_the_epoch(training):
    loss, maps, targets = dual_loss(), [random_maps(2, 1, 0), random_maps(2, 1, 1)], some_targets()
    found = []
    for epoch in (0, 4, 9):
        loss.start_epoch(epoch, 10, without_mosaic=False)
        with torch.set_grad_enabled(training):
            found.append(values(loss(maps, targets)))
    assert found[0] == found[1] == found[2]
    plain = values(loss.many(maps[0], targets)) | {
        f"o2o_{name}": term for name, term in values(loss.one(maps[1], targets)).items()
    }
    assert found[0] == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_dual_loss_shares_sum_to_batch_loss(at):
    loss, targets, maps = (
        dual_loss(),
        some_targets(24, 4),
        [random_maps(4, 1, 0), random_maps(4, 1, 1)],
    )
    expected = values(loss(maps, targets))
    many, one = (batch_parts(levels, targets, at) for levels in maps)
    parts = [([own[0], other[0]], own[1]) for own, other in zip(many, one, strict=True)]
    shares = [values(share) for share in in_processes(loss, parts)]
    summed = {name: sum(share[name] for share in shares) for name in expected}
    assert summed == pytest.approx(expected, rel=1e-12)


def test_gradients_of_o2o_do_not_reach_the_maps():
    torch.manual_seed(0)
    head = DualDistanceHead([8, 8, 8], CLASSES, strides=[Fraction(s) for s in STRIDES])
    maps = [torch.randn(2, 8, SIDE // s, SIDE // s, requires_grad=True) for s in STRIDES]
    loss, parameters = build_loss(head, LossGains()), dict(head.named_parameters())
    terms = loss(head(maps), random_targets(20, 2, 0).float())
    assert all(term > 0 for term in terms.values())

    def reached(names: tuple[str, ...]) -> tuple[set[str], list[bool]]:
        """Return the first names of the parameters that these terms train, and whether they reach
        each map.
        """
        total = sum(terms[name] for name in names)
        found = torch.autograd.grad(
            total, [*maps, *parameters.values()], retain_graph=True, allow_unused=True
        )
        some = [gradient is not None and bool(gradient.any()) for gradient in found]
        return {
            name.split(".")[0] for name, any_ in zip(parameters, some[3:], strict=True) if any_
        }, some[:3]

    assert reached(DistanceLoss.terms) == ({"branches"}, [True] * 3)
    assert reached(tuple(f"o2o_{name}" for name in DistanceLoss.terms)) == (
        {"one_to_one"},
        [False] * 3,
    )


def test_fused_head_has_no_loss():
    head = DualDistanceHead([8, 8, 8], CLASSES, strides=[Fraction(s) for s in STRIDES])
    head.fuse()
    with pytest.raises(
        ValueError, match=r"^a fused head cannot be trained: it has one of its two outputs only$"
    ):
        build_loss(head, LossGains())
