"""The loss of YOLOX's head against plain loops, its authors' numbers, and properties that it must
have.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models import LossGains, build_loss, build_model
from models.assign.targets import pad_targets
from models.losses.decoupled import DecoupledLoss
from tests.models.assign.test_simota import (
    CLASSES,
    GRIDS,
    HEIGHT,
    STRIDES,
    WIDTH,
    iou_of,
    random_targets,
    sigma,
    slow_simota,
)
from tests.support.yolox import FIXTURES, training_step

TABLE = Path(__file__).parents[2] / "tables" / "decoupled.yaml"


def random_maps(images: int, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(images, *grid, 5 + CLASSES, generator=g) * 0.7 for grid in GRIDS]


def values(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


def entropy(logit: float, target: float) -> float:
    return -target * math.log(sigma(logit)) - (1 - target) * math.log(1 - sigma(logit))


def make_loss(*, without_mosaic: bool = True) -> DecoupledLoss:
    loss = DecoupledLoss(STRIDES)
    loss.start_epoch(9, 10, without_mosaic=without_mosaic)
    return loss


def slow_loss(
    maps: list[Tensor], targets: Tensor, class_weights: tuple[float, ...] = ()
) -> dict[str, float]:
    rows, boxes, numbers = [], [], []
    for level, stride in zip(maps, STRIDES, strict=True):
        for y in range(level.shape[1]):
            for x in range(level.shape[2]):
                at = level[:, y, x].tolist()
                rows.append(at)
                numbers.append((x, y, stride))
                boxes.append(
                    [
                        [
                            (x + v[0] - math.exp(v[2]) / 2) * stride,
                            (y + v[1] - math.exp(v[3]) / 2) * stride,
                            (x + v[0] + math.exp(v[2]) / 2) * stride,
                            (y + v[1] + math.exp(v[3]) / 2) * stride,
                        ]
                        for v in at
                    ]
                )
    decoded, raw = torch.tensor(boxes).transpose(0, 1), torch.tensor(rows).transpose(0, 1)
    found = slow_simota(decoded, raw[..., 4], raw[..., 5:], targets)
    box = obj = cls = l1 = 0.0
    for image in range(len(raw)):
        for n, (x, y, stride) in enumerate(numbers):
            v, row = raw[image, n].tolist(), found.get((image, n))
            middle = ((x + 0.5) * stride, (y + 0.5) * stride)
            ignored = any(
                t[0] == image
                and t[1] == -1
                and t[2] <= middle[0] < t[4]
                and t[3] <= middle[1] < t[5]
                for t in targets.tolist()
            )
            if row is not None or not ignored:
                obj += entropy(v[4], row is not None)
            if row is None:
                continue
            wanted = targets[row, 2:].tolist()
            iou = iou_of(decoded[image, n].tolist(), wanted)
            box += 5 * (1 - iou**2)
            weight = class_weights[int(targets[row, 1])] if class_weights else 1.0
            cls += weight * sum(
                entropy(v[5 + c], iou if c == targets[row, 1] else 0) for c in range(CLASSES)
            )
            aim = [
                (wanted[0] + wanted[2]) / 2 / stride - x,
                (wanted[1] + wanted[3]) / 2 / stride - y,
                math.log((wanted[2] - wanted[0]) / stride),
                math.log((wanted[3] - wanted[1]) / stride),
            ]
            l1 += sum(abs(one - other) for one, other in zip(v[:4], aim, strict=True))
    count = max(len(found), 1)
    return {"box": box / count, "obj": obj / count, "cls": cls / count, "l1": l1 / count}


@pytest.mark.parametrize("count", [0, 1, 12])
def test_decoupled_loss_equals_slow_loops(count):
    maps, targets = random_maps(2), random_targets(count, 2, 3)
    if count > 1:
        targets[0, 1] = -1
    expected = slow_loss(maps, targets)
    assert (expected["box"] > 0) == (count > 0)
    for given in (targets, pad_targets(targets)):
        assert values(DecoupledLoss(STRIDES)(maps, given)) == pytest.approx(expected, rel=1e-4)

    weights = (0.5, 3.0, 1.25)
    expected = slow_loss(maps, targets, weights)
    loss = DecoupledLoss(STRIDES, class_weights=torch.tensor(weights))
    assert values(loss(maps, pad_targets(targets))) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_decoupled_loss_shares_sum_to_batch_loss_and_gradient(at):
    loss, targets = make_loss(), random_targets(15, 4, 1)
    targets[0, 1] = -1
    whole = [level.double().requires_grad_() for level in random_maps(4)]
    expected = loss(whole, targets)
    sum(expected.values()).backward()
    divided = [level.double().requires_grad_() for level in random_maps(4)]
    first, second = targets[targets[:, 0] < at], targets[targets[:, 0] >= at].clone()
    second[:, 0] -= at
    parts = [
        ([level[:at] for level in divided], first),
        ([level[at:] for level in divided], second),
    ]
    counts: list[Tensor] = []
    for part in parts:
        loss(*part, lambda count: counts.append(count.clone()) or count)
    assert all(count.dtype == torch.int64 for count in counts)
    shares = [loss(*part, lambda _: sum(counts)) for part in parts]
    sum(sum(share.values()) for share in shares).backward()
    for name, term in expected.items():
        assert sum(share[name].item() for share in shares) == pytest.approx(term.item(), rel=1e-12)
    for one, other in zip(whole, divided, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-12)


def test_gains_are_relative_to_their_defaults():
    model = build_model(TABLE, CLASSES)
    maps, targets = random_maps(2), random_targets(5, 2, 0)
    plain, authors = (
        values(build_loss(model.head, LossGains())(maps, targets)),
        values(DecoupledLoss(STRIDES)(maps, targets)),
    )
    assert {name: 64 * value for name, value in plain.items()} == pytest.approx(authors, rel=1e-6)
    gains = LossGains(box=0.1, obj=0.5, cls=1.5)  # twice, half and three times the defaults
    weighted = values(build_loss(model.head, gains)(maps, targets))
    expected = {
        "box": 2 * plain["box"],
        "obj": plain["obj"] / 2,
        "cls": 3 * plain["cls"],
        "l1": 2 * plain["l1"],
    }
    assert weighted == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("size", [1e2, 80.0])
def test_extreme_class_and_objectness_logits_give_finite_gradients(size):
    maps = [level.requires_grad_() for level in random_maps(2)]
    terms = DecoupledLoss(STRIDES)(
        [torch.cat([m[..., :4], m[..., 4:] * size], -1) for m in maps], random_targets(9, 2, 0)
    )
    sum(terms.values()).backward()
    assert all(level.grad.isfinite().all() for level in maps)


def test_half_precision_maps_are_computed_in_float32():
    maps, targets = [level.bfloat16() for level in random_maps(2)], random_targets(9, 2, 0)
    terms = DecoupledLoss(STRIDES)(maps, targets)
    assert {term.dtype for term in terms.values()} == {torch.float32}
    assert values(terms) == values(
        DecoupledLoss(STRIDES)([level.float() for level in maps], targets)
    )


@pytest.mark.slow
def test_decoupled_loss_never_syncs_with_device():
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        maps = [torch.empty(2, *grid, 5 + CLASSES, device=device) for grid in GRIDS]
        terms = make_loss()(maps, torch.empty(5, 6, device=device), lambda count: count)
    assert all(term.device.type == "cuda" for term in terms.values())


def test_ignore_regions_train_no_objectness():
    maps = [level.requires_grad_() for level in random_maps(1)]
    everywhere = torch.tensor([[0.0, -1, 0, 0, WIDTH, HEIGHT]])
    terms = DecoupledLoss(STRIDES)(maps, everywhere)
    assert values(terms) == {"box": 0, "obj": 0, "cls": 0, "l1": 0}


def test_loss_equals_that_of_its_authors():
    step = training_step()
    targets = pad_targets(step.targets)
    theirs = json.loads((FIXTURES / "losses.json").read_text())
    keys = {"box": "iou_loss", "obj": "conf_loss", "cls": "cls_loss", "l1": "l1_loss"}
    for name, without_mosaic in (("plain", False), ("l1", True)):
        loss = make_loss(without_mosaic=without_mosaic)
        terms = loss(step.maps, targets)
        expected = {
            term: theirs[name][key] for term, key in keys.items() if without_mosaic or term != "l1"
        }
        assert {term: terms[term].item() for term in expected} == pytest.approx(expected, rel=1e-4)
        assert loss.weighted_sum(terms).item() == pytest.approx(
            theirs[name]["total_loss"], rel=1e-4
        )


def test_l1_is_in_the_weighted_sum_of_epochs_without_mosaic_only():
    maps, targets = random_maps(2), random_targets(5, 2, 0)
    terms = DecoupledLoss(STRIDES)(maps, targets)
    found = {
        without_mosaic: make_loss(without_mosaic=without_mosaic).weighted_sum(terms).item()
        for without_mosaic in (False, True)
    }
    assert terms["l1"] > 0
    assert found[True] == pytest.approx(sum(values(terms).values()), rel=1e-6)
    assert found[True] - found[False] == pytest.approx(terms["l1"].item(), rel=1e-4)
