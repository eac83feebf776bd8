"""YOLOX's head: decoding by hand, candidates, initial values, and transfer of classes."""

import math
from fractions import Fraction

import pytest
import torch

from models.heads.decoupled import DecoupledHead


@pytest.fixture
def head() -> DecoupledHead:
    torch.manual_seed(0)
    return DecoupledHead([8, 16], 3, strides=[Fraction(8), Fraction(16)]).eval()


def test_decoupled_decode_by_hand(head):
    raw = [torch.zeros(1, 2, 3, 8), torch.zeros(1, 1, 1, 8)]
    # Stride 8, row 1, column 2: center (2 + 0.5, 1 - 0.25) cells = (20, 6) px, size (e^0, e^ln 2)
    # cells = (8, 16) px.
    raw[0][0, 1, 2] = torch.tensor([0.5, -0.25, 0, math.log(2), 0, 0, math.log(3), -math.log(3)])
    boxes, scores = head.decode(raw)
    assert boxes.shape == (1, 7, 4)
    assert scores.shape == (1, 7, 3)
    torch.testing.assert_close(boxes[0, 5], torch.tensor([16.0, -2, 24, 14]))
    # Objectness 1/2, classes 1/2, 3/4 and 1/4.
    torch.testing.assert_close(scores[0, 5], torch.tensor([1 / 4, 3 / 8, 1 / 8]))
    torch.testing.assert_close(boxes[0, 6], torch.tensor([-8.0, -8, 8, 8]))


@pytest.mark.parametrize("confidence", [0.2, 0.5, 0.999999])
def test_decoupled_candidates_are_the_predictions_above_the_confidence(head, confidence):
    torch.manual_seed(1)
    raw = [torch.randn(2, 4, 6, 8), torch.randn(2, 2, 3, 8)]
    raw[0][0, ..., 4] = -20.0  # images differ in their number of candidates
    boxes, scores = head.decode(raw)
    some_boxes, some_scores = head.decode_candidates(raw, confidence)
    objectness = torch.cat([level[..., 4].flatten(1) for level in raw], 1).sigmoid()
    for image in range(2):
        kept = objectness[image] > confidence
        number = int(kept.sum())
        torch.testing.assert_close(some_boxes[image, :number], boxes[image, kept])
        torch.testing.assert_close(some_scores[image, :number], scores[image, kept])
        assert not some_scores[image, number:].any()


def test_extreme_sides_stay_finite(head):
    """e^100 is infinite in float32; boxes of infinite size would make NMS and the loss not a
    number.
    """
    raw = [torch.full((1, 1, 1, 8), 100.0, requires_grad=True), torch.full((1, 1, 1, 8), -200.0)]
    boxes, _ = head.decode(raw)
    assert (boxes[0, 0, 2:] - boxes[0, 0, :2]).tolist() == pytest.approx(
        [8 * math.exp(11)] * 2, rel=1e-6
    )
    assert boxes[0, 1].isfinite().all()
    boxes.sum().backward()
    assert raw[0].grad.isfinite().all()


def test_decoupled_decode_accepts_empty_batch(head):
    boxes, scores = head.decode(head([torch.zeros(0, 8, 4, 4), torch.zeros(0, 16, 2, 2)]))
    assert boxes.shape == (0, 20, 4)
    assert scores.shape == (0, 20, 3)


def test_initial_objectness_and_classes_are_one_percent(head):
    for output in (*head.cls_preds, *head.obj_preds):
        torch.testing.assert_close(output.bias.sigmoid(), torch.full_like(output.bias, 0.01))


def test_both_branches_are_as_wide_as_the_first_level(head):
    assert [stem.conv.weight.shape[:2] for stem in head.stems] == [(8, 8), (8, 16)]
    assert head.reg_preds[1].weight.shape == (4, 8, 1, 1)


def test_separable_head_has_depthwise_convolutions():
    head = DecoupledHead([8], 3, True, strides=[Fraction(8)])
    assert head.cls_convs[0][0].dconv.conv.groups == 8


def test_only_class_outputs_have_rows_per_class(head):
    for key, values in head.state_dict().items():
        shared, classes = head.split_classes(key, values)
        assert (classes is not None) == key.startswith("cls_preds.")
        if classes is not None:
            assert shared.numel() == 0
            assert classes.data_ptr() == values.data_ptr()
            assert len(classes) == 3


def test_outputs_are_float32_under_autocast(head):
    with torch.autocast("cpu", torch.bfloat16):
        raw = head([torch.randn(1, 8, 4, 4), torch.randn(1, 16, 2, 2)])
    assert {level.dtype for level in raw} == {torch.float32}
