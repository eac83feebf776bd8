"""The head with shared convolutions: decoding by hand, sharing, initial values, fusing, and its
authors' maps.
"""

import copy
from fractions import Fraction
from math import e, exp

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import build_model
from models.backends.packed import pack_convolutions
from models.detector import count_parameters
from models.heads.shared_distance import SharedDistanceHead
from tests.models.test_detector import randomize_statistics
from tests.support.exporting import lively_detector, micro_table
from tests.support.soft_label_cases import FOLDER, STRIDES, needs_cases
from utils.distributed.sync_bn import SyncBatchNorm2d, synchronize_batch_norm

C = 3
PUBLISHED = {96: 358_524, 128: 625_404, 192: 1_380_348, 256: 2_430_204}  # by width, 80 classes
each_kind = pytest.mark.parametrize("exponential", [False, True], ids=["linear", "exponential"])


def make_head(exponential: bool = False, levels: int = 2) -> SharedDistanceHead:
    torch.manual_seed(0)
    strides = [Fraction(8 << level) for level in range(levels)]
    return randomize_statistics(SharedDistanceHead([8] * levels, C, exponential, strides=strides))


def random_features() -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(2, 8, 4, 6, generator=g), torch.randn(2, 8, 2, 3, generator=g)]


def test_decode_by_hand():
    # Stride 8, row 1, column 2: the corner is x 16, y 8.
    raw = [torch.zeros(1, 2, 3, 4 + C), torch.zeros(1, 1, 1, 4 + C)]
    raw[0][0, 1, 2] = torch.tensor([1.0, -0.5, 2, 3, 0, 1, -1])
    # Linear: 8, -4, 16, 24 px, so the top is below the corner. Zeros are empty boxes.
    boxes, scores = make_head().decode(raw)
    assert boxes[0, 5].tolist() == [8, 12, 32, 32]
    assert boxes[0, [0, 1, 6]].tolist() == [[0, 0, 0, 0], [8, 0, 8, 0], [0, 0, 0, 0]]
    torch.testing.assert_close(scores[0, 5], torch.tensor([0.0, 1, -1]).sigmoid())
    assert boxes.dtype == scores.dtype == torch.float32
    # Exponential: 8 e, 8 / sqrt(e), 8 e^2, 8 e^3. Zeros are one stride.
    boxes, _ = make_head(True).decode(raw)
    expected = torch.tensor([16 - 8 * e, 8 - 8 / e**0.5, 16 + 8 * e**2, 8 + 8 * e**3])
    torch.testing.assert_close(boxes[0, 5], expected)
    assert boxes[0, 6].tolist() == [-16, -16, 16, 16]


@each_kind
def test_distances_are_bounded(exponential):
    raw = [torch.full((1, 1, 1, 4 + C), 1e9)]
    boxes, _ = make_head(exponential, levels=1).decode(raw)
    torch.testing.assert_close(boxes[0, 0, 2:], torch.full((2,), 8 * exp(11)))
    boxes, _ = make_head(exponential, levels=1).decode([-raw[0]])
    smallest = 0.0 if exponential else -8 * exp(11)
    torch.testing.assert_close(boxes[0, 0, 2:], torch.full((2,), smallest))


@each_kind
def test_candidates_are_the_decoded_predictions_above_the_confidence(exponential):
    head, g = make_head(exponential), torch.Generator().manual_seed(2)
    raw = [torch.randn(2, *grid, 4 + C, generator=g) for grid in ((4, 6), (2, 3))]
    boxes, scores = head.decode(raw)
    some_boxes, some_scores = head.decode_candidates(raw, 0.7)
    kept = scores.amax(-1) > 0.7
    for image in range(2):
        number = int(kept[image].sum())
        assert 0 < number < 30
        torch.testing.assert_close(some_boxes[image, :number], boxes[image, kept[image]])
        torch.testing.assert_close(some_scores[image, :number], scores[image, kept[image]])


def test_empty_batch():
    head = make_head().eval()
    boxes, scores = head.decode(head([torch.zeros(0, 8, 4, 4), torch.zeros(0, 8, 2, 2)]))
    assert (boxes.shape, scores.shape) == ((0, 20, 4), (0, 20, 3))


# ------------------------------------------------------------------ layers and their initial values


@pytest.mark.parametrize("width", PUBLISHED)
def test_parameter_counts_equal_published_values(width):
    strides = [Fraction(stride) for stride in STRIDES]
    head = SharedDistanceHead([width] * 3, 80, strides=strides)
    assert count_parameters(head) == PUBLISHED[width]


def test_levels_share_convolutions_and_have_statistics_of_their_own():
    head = make_head().train()
    names = {
        f"{branch}.{name}"
        for branch in ("classes", "sides")
        for name in (
            *(f"convs.{j}.weight" for j in range(2)),
            *(f"norms.{level}.{j}.{n}" for level in range(2) for j in range(2) for n in NORM),
            *(f"outputs.{level}.{n}" for level in range(2) for n in ("weight", "bias")),
        )
    }
    assert set(head.state_dict()) == names

    # The forward pass by functions; the gradient of a shared weight is the sum over the levels.
    state = {name: value.clone() for name, value in head.state_dict().items()}
    weight = state["classes.convs.0.weight"].requires_grad_()
    maps, total, raw = random_features(), torch.zeros(()), head(random_features())
    for level, x in enumerate(maps):
        for j in range(2):
            conv = weight if j == 0 else state[f"classes.convs.{j}.weight"]
            norm = [state[f"classes.norms.{level}.{j}.{n}"] for n in NORM[:4]]
            x = F.batch_norm(
                F.conv2d(x, conv, padding=1), norm[2], norm[3], norm[0], norm[1], True, 0.03, 1e-3
            )
            x = F.silu(x)
        output = [state[f"classes.outputs.{level}.{n}"] for n in ("weight", "bias")]
        x = F.conv2d(x, *output)
        torch.testing.assert_close(raw[level][..., 4:], x.permute(0, 2, 3, 1))
        total = total + x.square().sum()
    sum(level[..., 4:].square().sum() for level in raw).backward()
    (expected,) = torch.autograd.grad(total, weight)
    torch.testing.assert_close(head.classes.convs[0].weight.grad, expected)


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


@pytest.mark.parametrize(("exponential", "distance"), [(False, 2.0), (True, 0.0)])
def test_initial_values(exponential, distance):
    torch.manual_seed(0)
    head = SharedDistanceHead([64] * 3, 80, exponential, strides=[Fraction(s) for s in STRIDES])
    convolutions = [module for module in head.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 2 * (2 + 3)
    for module in convolutions:
        assert module.weight.std().item() == pytest.approx(0.01, rel=0.2)
    for level in range(3):
        # 1 / 100: ln(1 / 99)
        assert head.classes.outputs[level].bias.tolist() == pytest.approx([-4.59512] * 80)
        assert head.sides.outputs[level].bias.tolist() == [distance] * 4
    norms = [module for module in head.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.03)}
    assert len(norms) == 2 * 3 * 2


def test_levels_of_different_widths_are_refused():
    text = r"row 5 \[\[4, 2\], 1, SharedDistanceDetect, \['nc'\]\]: levels that share convolutions"
    table = micro_table("SharedDistanceDetect", "nc")
    table["backbone"] = [*table["backbone"][:4], [-1, 1, "Conv", [512, 3, 2]]]
    table["head"] = [[[4, 2], 1, "SharedDistanceDetect", ["nc"]]]
    with pytest.raises(ValueError, match=text + " need equal channels, got 64, 32"):
        build_model(table, C)


def test_only_class_outputs_have_rows_per_class():
    found = set()
    head = make_head()
    for key, values in head.state_dict().items():
        shared, classes = head.split_classes(key, values)
        if classes is None:
            assert shared is values
            continue
        found.add(key)
        assert (shared.numel(), classes.data_ptr(), len(classes)) == (0, values.data_ptr(), C)
    parts = [f"classes.outputs.{level}.{part}" for level in range(2) for part in NORM[:2]]
    assert found == set(parts)


def test_outputs_are_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        raw = make_head()(random_features())
    assert {level.dtype for level in raw} == {torch.float32}


# ---------------------------------------------------------------------- used by others


def test_fused_head_has_the_maps_of_the_unfused_one():
    head = make_head(True).eval()
    assert head.classes.norms[0][0].running_mean.ne(head.classes.norms[1][0].running_mean).any()
    expected = head(random_features())
    other = copy.deepcopy(head)
    numbers = torch.get_rng_state()
    for _ in range(2):  # a second call changes nothing
        head.fuse()
        for found, wanted in zip(head(random_features()), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert torch.get_rng_state().equal(numbers)
    assert not [module for module in head.modules() if isinstance(module, nn.BatchNorm2d)]
    convolutions = [module for module in head.modules() if isinstance(module, nn.Conv2d)]
    assert sum(module.out_channels == 8 for module in convolutions) == 2 * 2 * 2
    assert all(x.equal(y) for x, y in zip(other(random_features()), expected, strict=True))


def test_fused_convolutions_are_packed():
    detector = lively_detector(micro_table("SharedDistanceDetect", "nc", True)).fuse()
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = detector(image)
        if not pack_convolutions(detector, torch.float32):
            pytest.skip("torch without oneDNN")
        assert not [module for module in detector.modules() if isinstance(module, nn.SiLU)]
        for found, wanted in zip(detector(image), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_statistics_are_synchronized_on_each_level():
    head = synchronize_batch_norm(make_head().train())
    norms = [module for module in head.modules() if isinstance(module, SyncBatchNorm2d)]
    assert len(norms) == 2 * 2 * 2
    expected = make_head().train()
    for found, wanted in zip(head(random_features()), expected(random_features()), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@needs_cases
@pytest.mark.parametrize(("name", "exponential"), [("tiny", False), ("m", True)])
def test_maps_and_boxes_equal_those_of_its_authors(name, exponential):
    state = torch.load(FOLDER / f"rtmdet_{name}_narrow.pth", weights_only=True)["state_dict"]
    prefix = "bbox_head."
    with np.load(FOLDER / f"forward_{name}_narrow.npz") as stored:
        forward = {key: torch.from_numpy(stored[key]) for key in stored.files if "/" not in key}
    maps = [forward[f"neck_{level}"] for level in range(3)]
    strides = [Fraction(stride) for stride in STRIDES]
    head = SharedDistanceHead([maps[0].shape[1]] * 3, 5, exponential, strides=strides).eval()
    for module in head.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-5  # as the `batch_norm` of the authors' tables

    own = {}
    for key in head.state_dict():
        branch, part, *rest = key.split(".")
        kind = {"classes": "cls", "sides": "reg"}[branch]
        convs, output = f"{kind}_convs", f"rtm_{kind}"
        if part == "convs":
            theirs = f"{convs}.0.{rest[0]}.conv.weight"
        elif part == "norms":
            theirs = f"{convs}.{rest[0]}.{rest[1]}.bn.{rest[2]}"
        else:
            theirs = f"{output}.{rest[0]}.{rest[1]}"
        own[key] = state[prefix + theirs]
    head.load_state_dict(own)

    with torch.no_grad():
        raw = head(maps)
    for level, stride in enumerate(STRIDES):
        logits = raw[level][..., 4:].permute(0, 3, 1, 2)
        distances = head.distances(raw[level]).permute(0, 3, 1, 2) * stride
        torch.testing.assert_close(logits, forward[f"cls_{level}"], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(distances, forward[f"dist_px_{level}"], rtol=1e-5, atol=1e-4)
    boxes, scores = head.decode(raw)
    torch.testing.assert_close(boxes, forward["boxes_xyxy"], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(scores, forward["scores"], rtol=1e-5, atol=1e-5)
