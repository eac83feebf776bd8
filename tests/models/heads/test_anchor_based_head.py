"""The anchor-based head against hand-computed boxes and a slow loop."""

from fractions import Fraction
from math import exp, log

import pytest
import torch

from models import build_model
from models.heads.anchor_based import AnchorBasedHead, decode_boxes, order_anchors, square_anchors

ANCHORS = [[10, 13, 16, 30, 33, 23], [30, 61, 62, 45, 59, 119]]
STRIDES = [Fraction(8), Fraction(16)]


def make_head(num_classes: int = 3) -> AnchorBasedHead:
    return AnchorBasedHead([4, 6], num_classes, ANCHORS, strides=STRIDES)


def sigma(logit: float) -> float:
    return 1 / (1 + exp(-logit))


def test_anchor_based_decode_by_hand():
    # Cell (x 2, y 1), stride 8, anchor 10 x 20, raw (0, ln 3, ln 3, 0): sigmas 1/2, 3/4, 3/4, 1/2.
    # center x = (2 * 1/2 - 0.5 + 2) * 8 = 20, y = (2 * 3/4 - 0.5 + 1) * 8 = 16
    # width = (2 * 3/4)^2 * 10 = 22.5, height = (2 * 1/2)^2 * 20 = 20
    raw = torch.zeros(1, 1, 2, 3, 4)
    raw[0, 0, 1, 2] = torch.tensor([0, log(3), log(3), 0])
    box = decode_boxes(raw, torch.tensor([[10.0, 20.0]]), 8)[0, 0, 1, 2]
    assert box.tolist() == pytest.approx([20 - 11.25, 16 - 10, 20 + 11.25, 16 + 10], rel=1e-6)


def slow_decode(
    head: AnchorBasedHead, maps: list[torch.Tensor], image: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Compute the definition with loops, one number at a time."""
    boxes, scores = [], []
    for level, raw in enumerate(maps):
        _, anchors, height, width, _ = raw.shape
        for anchor in range(anchors):
            anchor_w, anchor_h = head.anchors_px[level, anchor].tolist()
            for row in range(height):
                for column in range(width):
                    x, y, w, h, objectness, *classes = (
                        sigma(v) for v in raw[image, anchor, row, column].tolist()
                    )
                    stride = head.strides[level]
                    cx, cy = (2 * x - 0.5 + column) * stride, (2 * y - 0.5 + row) * stride
                    w, h = (2 * w) ** 2 * anchor_w, (2 * h) ** 2 * anchor_h
                    boxes.append([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])
                    scores.append(
                        [objectness] if head.num_classes == 1 else [objectness * p for p in classes]
                    )
    return boxes, scores


@pytest.mark.parametrize("num_classes", [1, 3])
def test_decode_equals_slow_loop(num_classes):
    head = make_head(num_classes)
    maps = [torch.randn(2, 3, 4, 6, 5 + num_classes), torch.randn(2, 3, 2, 3, 5 + num_classes)]
    boxes, scores = head.decode(maps)
    assert boxes.shape == (2, 3 * (4 * 6 + 2 * 3), 4)
    assert scores.shape == (2, 3 * (4 * 6 + 2 * 3), num_classes)
    slow_boxes, slow_scores = slow_decode(head, maps, image=1)
    torch.testing.assert_close(boxes[1], torch.tensor(slow_boxes), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(scores[1], torch.tensor(slow_scores), rtol=1e-5, atol=1e-6)


def test_decode_of_bfloat16_maps_is_float32():
    maps = [torch.randn(1, 3, 2, 2, 8), torch.randn(1, 3, 1, 1, 8)]
    low = [raw.bfloat16() for raw in maps]
    boxes, scores = make_head().decode(low)
    assert boxes.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(
        boxes, make_head().decode([raw.float() for raw in low])[0], rtol=0, atol=0
    )


def test_float64_maps_stay_float64():
    head, x = make_head(), [torch.randn(2, 4, 4, 6), torch.randn(2, 6, 2, 3)]
    single = head(x)
    double = head.double()([raw.double() for raw in x])
    assert all(raw.dtype == torch.float64 for raw in double)
    for ours, theirs in zip(single, double, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)


def test_raw_maps_are_anchor_major():
    head, x = make_head(), [torch.randn(2, 4, 4, 6), torch.randn(2, 6, 2, 3)]
    maps = head(x)
    assert [tuple(raw.shape) for raw in maps] == [(2, 3, 4, 6, 8), (2, 3, 2, 3, 8)]
    # anchor 2, number 5 is channel 2 * 8 + 5 of the convolution
    torch.testing.assert_close(maps[0][1, 2, 3, 4, 5], head.m[0](x[0])[1, 2 * 8 + 5, 3, 4])


def test_anchor_based_decode_accepts_empty_batch():
    head = make_head()
    boxes, scores = head.decode(head([torch.empty(0, 4, 4, 4), torch.empty(0, 6, 2, 2)]))
    assert boxes.shape == (0, 3 * 20, 4)
    assert scores.shape == (0, 3 * 20, 3)


def test_init_biases_adds_to_torch_initialization():
    head = make_head()
    before = [conv.bias.detach().clone() for conv in head.m]
    head.init_biases()
    for conv, old, stride in zip(head.m, before, (8, 16), strict=True):
        added = (conv.bias.detach() - old).view(3, 8)
        # stride 8: log(8 / 80^2) = -6.684612; 3 classes: log(0.6 / 2.00001) = -1.203978
        assert added[:, :4].abs().max() == 0
        assert added[:, 4].tolist() == pytest.approx([log(8 / (640 / stride) ** 2)] * 3, abs=1e-5)
        assert added[:, 5:].flatten().tolist() == pytest.approx([-1.203978] * 9, abs=1e-5)


def test_anchors_are_a_buffer_in_pixels():
    head = make_head()
    assert [name for name, _ in head.named_buffers()] == ["anchors_px"]
    assert head.anchors_px.shape == (2, 3, 2)
    assert head.anchors_px[1, 2].tolist() == [59, 119]


def test_anchors_are_ordered_by_stride():
    assert order_anchors(ANCHORS, (8, 16)) == ANCHORS
    assert order_anchors(ANCHORS[::-1], (8, 16)) == ANCHORS
    assert order_anchors(ANCHORS, (16, 8)) == ANCHORS[::-1]
    assert order_anchors(ANCHORS[:1], (8,)) == ANCHORS[:1]


def test_anchor_levels_must_match_head_levels():
    with pytest.raises(ValueError, match="anchors are given for 2 levels, but the head has 3"):
        AnchorBasedHead([4, 4, 4], 3, ANCHORS, strides=[Fraction(8), Fraction(16), Fraction(32)])


def test_anchor_count_gives_square_anchors():
    # two per level: 2 * 4^(1/4) = 2.828 and 2 * 4^(3/4) = 5.657 strides
    assert square_anchors(2, (8,))[0] == pytest.approx([22.627, 22.627, 45.255, 45.255], abs=1e-3)
    assert AnchorBasedHead([4], 1, 2, strides=[Fraction(8)]).anchors_px.shape == (1, 2, 2)


def test_strides_must_be_whole_numbers():
    with pytest.raises(ValueError, match="strides must be whole numbers, got 1/2"):
        AnchorBasedHead([4], 1, 2, strides=[Fraction(1, 2)])


@torch.no_grad()
@pytest.mark.parametrize("num_classes", [1, 3])
@pytest.mark.parametrize("confidence", [0.001, 0.5, 0.999])
def test_candidates_are_the_decoded_predictions_above_the_confidence(
    tiny_model, num_classes, confidence
):
    """The two routes give the same bits in the same order; what is left out has no score above the
    confidence.
    """
    torch.manual_seed(0)
    model = build_model(tiny_model, num_classes).eval()
    for conv in model.head.m:
        conv.bias += 5
    raw = model(torch.rand(3, 3, 64, 96))
    raw[0][1] -= 100  # an image without any candidate at the first level
    boxes, scores = model.decode(raw)
    few_boxes, few_scores = model.decode(raw, confidence)
    assert few_scores.shape[1] <= scores.shape[1]
    for image in range(3):
        wanted = scores[image].amax(-1) > confidence
        found = few_scores[image].amax(-1) > confidence
        torch.testing.assert_close(
            few_boxes[image][found], boxes[image][wanted], rtol=1e-6, atol=1e-5
        )
        torch.testing.assert_close(
            few_scores[image][found], scores[image][wanted], rtol=1e-6, atol=0
        )
    assert (few_scores.amax(-1) > confidence).sum() == (scores.amax(-1) > confidence).sum()


@torch.no_grad()
def test_no_candidates_at_all_give_empty_predictions(tiny_model):
    model = build_model(tiny_model, 3).eval()
    boxes, scores = model.head.decode_candidates(model(torch.rand(2, 3, 64, 64)), 1.0)
    assert (boxes.shape, scores.shape) == ((2, 0, 4), (2, 0, 3))
