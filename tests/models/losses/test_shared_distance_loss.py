"""The loss of the head with shared convolutions against plain loops and its authors' numbers."""

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models import LossGains, build_loss
from models.assign.targets import pad_targets
from models.heads.shared_distance import SharedDistanceHead
from models.losses.shared_distance import SharedDistanceLoss
from tests.models.assign.test_dynamic_soft_label import (
    CLASSES,
    GRIDS,
    HEIGHT,
    STRIDES,
    WIDTH,
    corners,
    random_targets,
    slow_soft_label,
)
from tests.models.losses.test_distance_loss import batch_parts, in_processes, values
from tests.support.soft_label_cases import WITH_TIES, Case, needs_cases, read_cases

CLASS_WEIGHTS = (0.5, 3.0, 1.25)
each_kind = pytest.mark.parametrize("exponential", [False, True], ids=["linear", "exponential"])


def random_maps(
    images: int, exponential: bool, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Return maps whose distances are about two strides; some linear ones are negative."""
    g = torch.Generator().manual_seed(seed)
    maps = []
    for grid in GRIDS:
        sides = torch.randn(images, *grid, 4, generator=g, dtype=torch.float64)
        sides = 0.5 + 0.5 * sides if exponential else 1.5 + 1.2 * sides
        classes = torch.randn(images, *grid, CLASSES, generator=g, dtype=torch.float64)
        maps.append(torch.cat([sides, classes], 3).to(dtype))
    return maps


def some_targets(count: int = 14, images: int = 2, seed: int = 1) -> Tensor:
    targets = random_targets(count, images, seed)
    if count > 3:
        targets[3, 1] = -1
    return targets


def slow_loss(
    maps: list[Tensor],
    targets: Tensor,
    exponential: bool,
    class_weights: tuple[float, ...] = (1.0,) * CLASSES,
) -> dict[str, Tensor]:
    """Compute the terms one prediction at a time, with torch's and torchvision's functions."""
    from torchvision.ops import generalized_box_iou_loss

    rows = torch.cat([level.flatten(1, 2) for level in maps], 1)
    points = torch.tensor(corners(), dtype=torch.float64)
    distances = rows[..., :4].exp() if exponential else rows[..., :4]
    distances = distances * points[:, 2:]
    low, high = points[:, :2] - distances[..., :2], points[:, :2] + distances[..., 2:]
    boxes = torch.cat([low, high], 2)
    found = slow_soft_label(boxes.detach(), rows[..., 4:].detach(), targets)
    box = cls = rows.sum() * 0
    for image in range(len(rows)):
        for n, (x, y, stride) in enumerate(corners()):
            row, quality = found.get((image, n), (None, 0.0))
            wanted = torch.zeros(CLASSES, dtype=rows.dtype)
            weight = 1.0
            if row is not None:
                class_id = int(targets[row, 1])
                wanted[class_id] = quality
                weight = class_weights[class_id]
                if quality > 0:
                    box = box + quality * generalized_box_iou_loss(
                        boxes[image, n], targets[row, 2:]
                    )
            elif any(
                t[0] == image
                and t[1] == -1
                and t[2] < x + stride / 2 < t[4]
                and t[3] < y + stride / 2 < t[5]
                for t in targets.tolist()
            ):
                continue
            logits = rows[image, n, 4:]
            entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
            cls = cls + weight * (entropy * (wanted - logits.sigmoid()) ** 2).sum()
    count = max(sum(quality for _, quality in found.values()), 1)
    return {"box": 2 * box / count, "cls": cls / count}


@each_kind
@pytest.mark.parametrize("count", [0, 1, 14])
def test_loss_and_gradient_equal_slow_loops(count, exponential):
    fast, slow = ([level.requires_grad_() for level in random_maps(2, exponential)] for _ in "12")
    targets = some_targets(count)
    expected = slow_loss(slow, targets, exponential)
    assert (expected["box"] > 0) == (count > 1)  # the single box has no point inside
    loss = SharedDistanceLoss(STRIDES, exponential)
    found = loss(fast, pad_targets(targets))
    assert list(found) == list(SharedDistanceLoss.terms)
    assert values(found) == pytest.approx(values(expected), rel=1e-6)
    assert values(loss(fast, targets)) == pytest.approx(values(found), rel=1e-12)

    sum(found.values()).backward()
    sum(expected.values()).backward()
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-8)

    expected = slow_loss(slow, targets, exponential, CLASS_WEIGHTS)
    loss = SharedDistanceLoss(STRIDES, exponential, class_weights=torch.tensor(CLASS_WEIGHTS))
    assert values(loss(fast, targets)) == pytest.approx(values(expected), rel=1e-6)


@each_kind
@pytest.mark.parametrize("at", [0, 1, 3])
def test_shares_sum_to_batch_loss_and_gradient(at, exponential):
    loss, targets = SharedDistanceLoss(STRIDES, exponential), some_targets(24, 4)
    whole = [level.requires_grad_() for level in random_maps(4, exponential)]
    expected = loss(whole, targets)
    sum(expected.values()).backward()
    divided = [level.requires_grad_() for level in random_maps(4, exponential)]
    shares = in_processes(loss, batch_parts(divided, targets, at))
    sum(sum(share.values()) for share in shares).backward()
    for name, term in expected.items():
        assert sum(share[name].item() for share in shares) == pytest.approx(term.item(), rel=1e-12)
    for one, other in zip(whole, divided, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_ignore_regions_train_no_negatives():
    maps = random_maps(1, False)
    everywhere = torch.tensor([[0.0, -1, 0, 0, WIDTH, HEIGHT]], dtype=torch.float64)
    loss = SharedDistanceLoss(STRIDES, False)
    assert values(loss(maps, everywhere)) == {"box": 0, "cls": 0}
    inside = torch.cat([everywhere, torch.tensor([[0.0, 1, 2, 2, 50, 40]])])
    expected = slow_loss(maps, inside, False)
    assert expected["cls"] > 0
    assert values(loss(maps, inside)) == pytest.approx(values(expected), rel=1e-6)


def test_gains_are_those_of_authors_times_given_ones_relative_to_defaults():
    head = SharedDistanceHead([8] * 3, CLASSES, strides=[Fraction(s) for s in STRIDES])
    maps, targets = random_maps(2, False), some_targets()
    authors = values(SharedDistanceLoss(STRIDES, False)(maps, targets))
    assert values(build_loss(head, LossGains())(maps, targets)) == pytest.approx(authors, rel=1e-12)
    gains = LossGains(box=0.1, obj=9.0, cls=0.25)  # twice and half the defaults
    expected = {"box": 2 * authors["box"], "cls": authors["cls"] / 2}
    assert values(build_loss(head, gains)(maps, targets)) == pytest.approx(expected, rel=1e-12)


@each_kind
@pytest.mark.parametrize("size", [1e2, 1e30])
def test_extreme_predictions_give_finite_terms_and_gradients(exponential, size):
    maps = [level.requires_grad_() for level in random_maps(2, exponential, dtype=torch.float32)]
    loss = SharedDistanceLoss(STRIDES, exponential)
    terms = loss([level * size for level in maps], some_targets().float())
    # the classes of 1e30 are as wrong as they are sure
    assert terms["box"].isfinite()
    assert size > 1e9 or terms["cls"].isfinite()
    gradients = torch.autograd.grad(terms["box"], maps)
    assert all(gradient.isfinite().all() for gradient in gradients)


@each_kind
def test_half_precision_maps_are_computed_in_single_precision(exponential):
    maps = random_maps(2, exponential, dtype=torch.float16)
    targets, loss = some_targets().float(), SharedDistanceLoss(STRIDES, exponential)
    terms = loss(maps, targets)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert values(terms) == values(loss([level.float() for level in maps], targets))
    assert terms["box"] > 0


@pytest.mark.slow
def test_loss_never_syncs_with_device():
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        maps = [torch.empty(2, *grid, 4 + CLASSES, device=device) for grid in GRIDS]
        loss = SharedDistanceLoss(STRIDES, True)
        terms = loss(maps, torch.empty(5, 6, device=device), lambda count: count)
    assert [term.device.type for term in terms.values()] == ["cuda", "cuda"]


# ---------------------------------------------------------------------- its authors' numbers


def raw_maps(case: Case, exponential: bool) -> list[Tensor]:
    """Return the raw maps that decode to a case's distances."""
    maps = []
    for distances, classes, stride in zip(case.distances, case.classes, STRIDES, strict=True):
        sides = distances / stride
        sides = sides.log() if exponential else sides
        maps.append(torch.cat([sides, classes], 3).requires_grad_())
    return maps


def raw_gradients(case: Case, exponential: bool) -> list[Tensor]:
    """Return a case's gradients by raw values: times stride or, for exp(r), the distance."""
    maps = []
    for level, stride in enumerate(STRIDES):
        factor = case.distances[level] if exponential else float(stride)
        sides = case.distance_gradients[level] * factor
        maps.append(torch.cat([sides, case.class_gradients[level]], 3))
    return maps


@needs_cases
@each_kind
def test_terms_and_gradients_equal_those_of_its_authors(exponential):
    compared = 0
    for name, case in read_cases().items():
        smallest = min(level.min().item() for level in case.distances)
        if exponential and smallest <= 0:
            continue  # of a linear head only
        maps = raw_maps(case, exponential)
        terms = SharedDistanceLoss(STRIDES, exponential)(maps, pad_targets(case.targets))
        assert values(terms) == pytest.approx(case.terms, rel=1e-5, abs=1e-6), name
        compared += 1
        if name in WITH_TIES:
            continue
        sum(terms.values()).backward()
        for level, expected in zip(maps, raw_gradients(case, exponential), strict=True):
            largest = max(expected.abs().max().item(), 1e-6)
            found = level.grad
            assert found is not None
            assert math.isfinite(largest)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * largest)
    assert compared == (2 if exponential else 23)
