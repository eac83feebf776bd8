"""Box functions against hand-computed numbers and torchvision."""

import math

import pytest
import torch
from torchvision.ops import complete_box_iou_loss, generalized_box_iou_loss

from tests.support.boxes import to_xyxy
from utils.boxes import (
    complete_iou,
    complete_iou_of_terms,
    complete_iou_terms,
    generalized_iou,
    to_cxcywh,
)


def random_boxes(count: int, seed: int) -> torch.Tensor:
    """Random boxes [count, 4]: cx, cy, w, h in cells."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.rand(count, 2, generator=generator) * 4
    sizes = torch.rand(count, 2, generator=generator) * 6 + 0.05
    return torch.cat([centers, sizes], 1)


def test_xyxy_and_cxcywh_round_trip():
    boxes = random_boxes(50, 0)
    torch.testing.assert_close(to_cxcywh(to_xyxy(boxes)), boxes, rtol=0, atol=1e-5)
    assert to_xyxy(torch.zeros(0, 4)).shape == to_cxcywh(torch.zeros(0, 4)).shape == (0, 4)


def test_complete_iou_by_hand():
    # Boxes (0, 0, 4, 2) and (2, 0, 4, 4): overlap 2 * 2 = 4, union 8 + 8 - 4 = 12, IoU 1/3. Centers
    # (2, 1) and (3, 2): rho^2 = 2. Hull (0, 0, 4, 4): c^2 = 32. rho^2 / c^2 = 1/16. v = 4/pi^2 *
    # (atan(2/4) - atan(4/2))^2 = 0.405285 * 0.643501^2 = 0.167826; a = v / (1 - 1/3 + v) = 0.201121
    # CIoU = 0.333333 - 0.0625 - 0.201121 * 0.167826 = 0.237082
    v = 4 / math.pi**2 * (math.atan(0.5) - math.atan(2)) ** 2
    wanted = 1 / 3 - 1 / 16 - v * v / (1 - 1 / 3 + v)
    assert wanted == pytest.approx(0.237082, abs=1e-6)
    ciou = complete_iou(torch.tensor([[2.0, 1, 4, 2]]), torch.tensor([[3.0, 2, 2, 4]]))
    assert ciou.item() == pytest.approx(wanted, abs=1e-6)


def test_complete_iou_of_disjoint_boxes_is_distance_penalty():
    # Unit squares at x 0.5 and 3.5: IoU 0, rho^2 = 9, hull 4 x 1: c^2 = 17, equal aspect ratios.
    ciou = complete_iou(torch.tensor([[0.5, 0.5, 1, 1]]), torch.tensor([[3.5, 0.5, 1, 1]]))
    assert ciou.item() == pytest.approx(-9 / 17, abs=1e-6)


def test_complete_iou_equals_torchvision():
    ours, theirs = random_boxes(2000, 1), random_boxes(2000, 2)
    wanted = 1 - complete_box_iou_loss(to_xyxy(ours), to_xyxy(theirs))
    torch.testing.assert_close(complete_iou(ours, theirs), wanted, rtol=0, atol=1e-5)


def test_generalized_iou_by_hand_and_by_torchvision():
    # Boxes 0 to 4 x 0 to 2 and 2 to 4 x 0 to 4: overlap 4, union 8 + 8 - 4 = 12, hull 4 x 4 = 16.
    boxes, targets = torch.tensor([[0.0, 0, 4, 2]]), torch.tensor([[2.0, 0, 4, 4]])
    assert generalized_iou(boxes, targets).item() == pytest.approx(4 / 12 - 4 / 16)
    ours, theirs = to_xyxy(random_boxes(2000, 1)), to_xyxy(random_boxes(2000, 2))
    wanted = 1 - generalized_box_iou_loss(ours, theirs)
    torch.testing.assert_close(generalized_iou(ours, theirs), wanted, rtol=0, atol=1e-5)
    assert generalized_iou(ours[:0], theirs[:0]).shape == (0,)


def test_generalized_iou_of_inverted_boxes_has_the_bounds_of_others():
    """The first one lies in the target: 0 - (64 - 64) / 64. A wider one is not better."""
    target = torch.tensor([[0.0, 0, 8, 8]])
    for boxes in ([[4.0, 4, 2, 2]], [[1000.0, 1000, -1000, -1000]]):
        assert generalized_iou(torch.tensor(boxes), target).tolist() == [0]
    corners = torch.rand(500, 4, generator=torch.Generator().manual_seed(0)) * 20 - 6
    giou = generalized_iou(corners, target.expand(500, 4))
    assert giou.min() >= -1
    assert giou.max() <= 1


def test_generalized_iou_of_empty_and_inverted_boxes_is_finite():
    boxes = torch.tensor([[1.0, 1, 1, 1], [4, 4, 2, 2], [4, 0, 2, 2]], requires_grad=True)
    giou = generalized_iou(boxes, torch.tensor([[1.0, 1, 1, 1], [0, 0, 8, 8], [0, 0, 8, 8]]))
    giou.sum().backward()
    assert giou.isfinite().all()
    assert boxes.grad.isfinite().all()


def test_complete_iou_of_all_pairs_by_their_terms_is_bit_identical():
    """With terms [8, N] of boxes and [T, 8, 1] of targets, as the task-aligned assignment computes
    them.
    """
    ours, theirs = random_boxes(70, 1), random_boxes(30, 2)
    ciou = complete_iou_of_terms(complete_iou_terms(ours), complete_iou_terms(theirs[:, None]))
    assert ciou.equal(torch.stack([complete_iou(ours, one.expand(70, 4)) for one in theirs]))
    assert complete_iou(ours, theirs[:, None]).equal(ciou)
    assert complete_iou(ours[:0], theirs[:, None]).shape == (30, 0)


def test_complete_iou_gradient_equals_torchvision():
    ours, theirs = random_boxes(500, 3).requires_grad_(), random_boxes(500, 4)
    same = ours.detach().clone().requires_grad_()
    (1 - complete_iou(ours, theirs)).sum().backward()
    complete_box_iou_loss(to_xyxy(same), to_xyxy(theirs)).sum().backward()
    torch.testing.assert_close(ours.grad, same.grad, rtol=1e-3, atol=1e-4)


def test_complete_iou_never_exceeds_the_iou():
    ours = random_boxes(2000, 5)
    nearly = ours + torch.randn(2000, 4, generator=torch.Generator().manual_seed(6)) * 1e-4
    for theirs in (random_boxes(2000, 7), ours, nearly):
        ciou = complete_iou(ours, theirs)
        low = torch.maximum(
            ours[:, :2] - ours[:, 2:] / 2, theirs[:, :2] - theirs[:, 2:] / 2
        ).double()
        high = torch.minimum(
            ours[:, :2] + ours[:, 2:] / 2, theirs[:, :2] + theirs[:, 2:] / 2
        ).double()
        overlap = (high - low).clamp(min=0).prod(1)
        iou = overlap / (ours[:, 2:].double().prod(1) + theirs[:, 2:].double().prod(1) - overlap)
        assert (ciou.double() <= iou + 2e-6).all()


def test_complete_iou_gradient_is_finite_for_degenerate_boxes():
    rows = [
        [0, 0, 0, 0],  # empty
        [0, 0, 1e-20, 1e-20],
        [0, 0, 50, 0],
        [0, 0, 0, 50],
        [0, 0, 1e4, 1e-8],
        [100, 100, 1, 1],  # far away
        [0.5, 0.5, 1, 1],  # the same
    ]
    theirs = torch.tensor([[0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 30.0]])
    for row in rows:
        ours = torch.tensor([row, row], dtype=torch.float32, requires_grad=True)
        ciou = complete_iou(ours, theirs)
        ciou.sum().backward()
        assert ciou.isfinite().all()
        assert ours.grad.isfinite().all(), row


def test_no_gradient_flows_through_the_aspect_weight():
    # With one center and sizes (2, 1) against (1, 2), d/dw of a * v alone would differ if `a` were
    # differentiated.
    ours = torch.tensor([[0.0, 0, 2, 1]], dtype=torch.float64, requires_grad=True)
    theirs = torch.tensor([[0.0, 0, 1, 2]], dtype=torch.float64)
    complete_iou(ours, theirs).sum().backward()
    # IoU = 1 / (2 + 2 - 1) = 1/3, near these sizes min(w, 1) * min(h, 2) / (w h + 2 - ...): d IoU /
    # dw = -1 * 1/9 v = k (atan 1/2 - atan w/h)^2 with k = 4/pi^2; dv/dw = -2 k (atan 1/2 - atan 2)
    # * h / (h^2 + w^2)
    k, turn = 4 / math.pi**2, math.atan(0.5) - math.atan(2)
    v = k * turn**2
    weight = v / (1 - 1 / 3 + v)
    wanted = -1 / 9 - weight * (-2 * k * turn * 1 / 5)
    assert ours.grad[0, 2].item() == pytest.approx(wanted, abs=1e-6)


def test_complete_iou_of_no_boxes_is_empty():
    none = torch.zeros(0, 4, requires_grad=True)
    ciou = complete_iou(none, torch.zeros(0, 4))
    assert ciou.shape == (0,)
    ciou.sum().backward()
