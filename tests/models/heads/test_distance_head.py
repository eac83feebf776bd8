"""The heads of distances: decoding by hand, candidates, initial values, published counts, and the
choice of outputs.
"""

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from models.detector import count_parameters
from models.heads.distance import DistanceHead, DualDistanceHead, sides_of
from models.heads.point_distance import boxes_around
from models.weights.transfer import transfer
from tests.models.test_detector import randomize_statistics
from tests.models.test_published_models import measured, with_auxiliary

# Parameters of published heads for 80 classes; those with bins count the 16 numbers that the bins
# stand for.
PUBLISHED = {
    "yolov5nu": 897_664,
    "yolov5su": 2_147_008,
    "yolov5mu": 4_264_384,
    "yolov5lu": 7_119_040,
    "yolov5xu": 11_099_008,
    "yolov8n": 897_664,
    "yolov8s": 2_147_008,
    "yolov8m": 3_822_016,
    "yolov8l": 5_644_480,
    "yolov8x": 8_795_008,
    "yolo11n": 464_912,
    "yolo11s": 850_368,
    "yolo11m": 1_472_704,
    "yolo11l": 1_472_704,
    "yolo11x": 3_237_952,
    "yolo26n": 309_656,
    "yolo26s": 993_784,
    "yolo26m": 2_921_976,
    "yolo26l": 2_921_976,
    "yolo26x": 6_440_952,
}
ONE_BRANCH_PAIR = {"yolo26n": 154_828, "yolo26s": 496_892, "yolo26m": 1_460_988}
CHANNELS = [8, 16]
C = 3


def make_head(kind: type[DistanceHead] = DistanceHead, *args: Any) -> DistanceHead:
    torch.manual_seed(0)
    return randomize_statistics(kind(CHANNELS, C, *args, strides=[Fraction(8), Fraction(16)]))


def random_features() -> list[Tensor]:
    g = torch.Generator().manual_seed(1)
    return [torch.randn(2, 8, 4, 6, generator=g), torch.randn(2, 16, 2, 3, generator=g)]


def random_raw(bins: int, seed: int = 2) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(2, *grid, 4 * bins + C, generator=g) for grid in ((4, 6), (2, 3))]


each_kind = pytest.mark.parametrize(
    "head",
    [
        (DistanceHead,),
        (DistanceHead, 4, True),
        (DistanceHead, 1),
        (DualDistanceHead,),
        (DualDistanceHead, 16, False),
    ],
    ids=["bins", "separable", "no bins", "dual", "dual bins"],
    indirect=True,
)


@pytest.fixture
def head(request: pytest.FixtureRequest) -> DistanceHead:
    return make_head(*request.param)


@pytest.fixture
def dual() -> DualDistanceHead:
    """Return a dual head whose o2o branches differ from those of o2m, as after training."""
    head = make_head(DualDistanceHead)
    assert isinstance(head, DualDistanceHead)
    with torch.no_grad():
        for parameter in head.one_to_one.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return head


# ---------------------------------------------------------------------- decoding


def test_decode_with_bins_by_hand():
    raw = [torch.zeros(1, 2, 3, 4 * 4 + C), torch.zeros(1, 1, 1, 4 * 4 + C)]
    # Stride 8, row 1, column 2: the middle is x 20, y 12. Logits of 50 leave one bin each: 0 left,
    # 3 top, 1 right; at the bottom bins 1 and 2 have half each: 1.5. In pixels 0, 24, 8, 12: the
    # box is 20 - 0, 12 - 24, 20 + 8, 12 + 12.
    sides = raw[0][0, 1, 2, :16].view(4, 4)
    sides[0, 0] = sides[1, 3] = sides[2, 1] = sides[3, 1] = sides[3, 2] = 50.0
    raw[0][0, 1, 2, 16:] = torch.tensor([0.0, 1, -1]) * torch.log(torch.tensor(3.0))
    boxes, scores = make_head(DistanceHead, 4).decode(raw)
    assert (boxes.shape, scores.shape) == ((1, 7, 4), (1, 7, 3))
    torch.testing.assert_close(boxes[0, 5], torch.tensor([20.0, -12, 28, 24]))
    torch.testing.assert_close(scores[0, 5], torch.tensor([0.5, 0.75, 0.25]))
    # All logits are equal: the mean of 0, 1, 2, 3 is 1.5 strides. Stride 16: 24 px around 8, 8.
    torch.testing.assert_close(boxes[0, 6], torch.tensor([-16.0, -16, 32, 32]))
    assert boxes.dtype == scores.dtype == torch.float32


def test_decode_without_bins_by_hand():
    raw = [torch.zeros(1, 2, 3, 4 + C), torch.zeros(1, 1, 1, 4 + C)]
    # Stride 8, row 1, column 2: the middle is x 20, y 12. 1, -0.5, 2 and 3 strides are 8, -4, 16
    # and 24 px.
    raw[0][0, 1, 2, :4] = torch.tensor([1.0, -0.5, 2, 3])
    raw[1][0, 0, 0, :4] = torch.tensor([2.0, 2, 2, 2])
    boxes, _ = make_head(DistanceHead, 1).decode(raw)
    torch.testing.assert_close(boxes[0, 5], torch.tensor([12.0, 16, 36, 36]))
    torch.testing.assert_close(boxes[0, 6], torch.tensor([-24.0, -24, 40, 40]))
    torch.testing.assert_close(boxes[0, 0], torch.tensor([4.0, 4, 4, 4]))


def test_predictions_are_ordered_by_level_row_and_column():
    boxes, _ = make_head(DistanceHead, 1).decode(
        [torch.zeros(1, 2, 3, 4 + C), torch.zeros(1, 1, 1, 4 + C)]
    )
    middles = [[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12], [8, 8]]
    assert boxes[0, :, :2].tolist() == middles


def test_sides_are_means_of_distributions():
    # ln 1, ln 2, ln 5 are shares 1/8, 2/8, 5/8 of bins 0, 1, 2: (2 + 10) / 8 = 1.5. Class logits
    # are not looked at.
    raw = torch.cat([torch.tensor([1.0, 2, 5]).log().repeat(4), torch.tensor([9.0])])
    torch.testing.assert_close(sides_of(raw, 3), torch.full((4,), 1.5))
    assert sides_of(torch.tensor([-1.0, 2, 3, 4, 5]), 1).tolist() == [-1, 2, 3, 4]


def test_boxes_around_inverts_distances():
    boxes, cells = torch.tensor([[3.0, 1, 9, 4], [0, 0, 2, 2]]), torch.tensor([[5.0, 2], [7, 7]])
    sides = torch.cat([cells + 0.5 - boxes[:, :2], boxes[:, 2:] - cells - 0.5], 1)
    torch.testing.assert_close(boxes_around(sides, cells, 0.5), boxes)


@each_kind
@pytest.mark.parametrize("confidence", [0.3, 0.5, 0.999999])
def test_candidates_are_the_decoded_predictions_above_the_confidence(head, confidence):
    maps = random_raw(head.bins)
    maps[0][0, ..., 4 * head.bins :] -= 20  # images differ in their number of candidates
    raw = [random_raw(head.bins, 3), maps] if isinstance(head, DualDistanceHead) else maps
    boxes, scores = head.decode(raw)
    some_boxes, some_scores = head.decode_candidates(raw, confidence)
    kept = scores.amax(-1) > confidence
    assert kept.sum(1).unique().numel() == (1 if confidence > 0.9 else 2)
    assert some_boxes.shape[:2] == some_scores.shape[:2] == (2, int(kept.sum(1).max()))
    for image in range(2):
        number = int(kept[image].sum())
        torch.testing.assert_close(some_boxes[image, :number], boxes[image, kept[image]])
        torch.testing.assert_close(some_scores[image, :number], scores[image, kept[image]])
        assert not some_scores[image, number:].any()


@each_kind
def test_decode_accepts_empty_batch(head):
    boxes, scores = head.decode(head([torch.zeros(0, 8, 4, 4), torch.zeros(0, 16, 2, 2)]))
    assert (boxes.shape, scores.shape) == ((0, 20, 4), (0, 20, 3))


def test_half_precision_maps_are_decoded_in_single_precision():
    raw = [level.half() for level in random_raw(16)]
    boxes, scores = make_head().decode(raw)
    assert boxes.dtype == scores.dtype == torch.float32
    expected, _ = make_head().decode([level.float() for level in raw])
    assert boxes.equal(expected)


# ------------------------------------------------------------------ layers and their initial values


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_of_heads_equal_published_values(name):
    assert measured(name).of_head == PUBLISHED[name]


@pytest.mark.parametrize("name", ONE_BRANCH_PAIR)
def test_branch_pairs_of_dual_heads_are_of_equal_size(name):
    head = with_auxiliary(name).head
    counts = [count_parameters(part) for part in (head.branches, head.one_to_one)]
    assert counts == [ONE_BRANCH_PAIR[name]] * 2


@pytest.mark.parametrize(
    ("channels", "num_classes", "bins", "widths"),
    [
        (64, 80, 16, (64, 80)),  # 4 * 16 bins; 80 classes are more than 64 channels
        (64, 80, 1, (16, 80)),  # 64 / 4
        (32, 3, 1, (16, 32)),  # at least 16
        (512, 80, 16, (128, 512)),  # 512 / 4 is more than 4 * 16
        (64, 1000, 16, (64, 100)),  # classes widen the branch to 100 at most
    ],
)
def test_widths_of_branches(channels, num_classes, bins, widths):
    head = DistanceHead([channels, 24], num_classes, bins, strides=[Fraction(8), Fraction(16)])
    for level in range(2):
        assert (
            head.branches.sides[level][1].out_channels,
            head.branches.classes[level][1].out_channels,
        ) == widths
        assert head.branches.sides[level][2].weight.shape[:2] == (4 * bins, widths[0])
        assert head.branches.classes[level][2].weight.shape[:2] == (num_classes, widths[1])


def test_only_the_class_branch_is_separable():
    head = make_head(DistanceHead, 16, True)
    assert head.branches.classes[0][0].dconv.conv.groups == 8
    assert head.branches.sides[0][0].conv.groups == 1


@pytest.mark.parametrize(("bins", "distance"), [(16, 1.0), (1, 2.0)])
def test_initial_classes_expect_five_boxes_per_image_and_level(bins, distance):
    head = DualDistanceHead(CHANNELS, C, bins, strides=[Fraction(8), Fraction(16)])
    for branches in (head.branches, head.one_to_one):
        for sides, classes, cells in zip(
            branches.sides, branches.classes, (80**2, 40**2), strict=True
        ):
            # An image of 640 px has 80 * 80 cells of stride 8. Of 3 classes each: 5 / 3 / 6400 =
            # 0.00026.
            assert (classes[2].bias.exp().sum() * cells).item() == pytest.approx(5, rel=1e-5)
            assert classes[2].bias.sigmoid().sum().item() * cells == pytest.approx(5, rel=2e-3)
            assert set(sides[2].bias.tolist()) == {distance}


@pytest.mark.parametrize("bins", [0, -1])
def test_bins_below_one_are_refused(bins):
    with pytest.raises(ValueError, match=f"a distance needs 1 or more bins, got {bins}"):
        DistanceHead(CHANNELS, C, bins, strides=[Fraction(8), Fraction(16)])


@each_kind
def test_outputs_are_float32_under_autocast(head):
    with torch.autocast("cpu", torch.bfloat16):
        raw = head(random_features())
    levels = (
        [level for maps in raw for level in maps] if isinstance(head, DualDistanceHead) else raw
    )
    assert {level.dtype for level in levels} == {torch.float32}


# ---------------------------------------------------------------------- classes


@each_kind
def test_only_class_outputs_have_rows_per_class(head):
    found = set()
    for key, values in head.state_dict().items():
        shared, classes = head.split_classes(key, values)
        if classes is None:
            assert shared is values
            continue
        found.add(key)
        assert shared.numel() == 0
        assert classes.data_ptr() == values.data_ptr()
        assert len(classes) == C
    branches = ["branches", "one_to_one"] if isinstance(head, DualDistanceHead) else ["branches"]
    outputs = [f"classes.{level}.2.{part}" for level in range(2) for part in ("weight", "bias")]
    assert found == {f"{branch}.{output}" for branch in branches for output in outputs}


def test_transfer_matches_classes_by_name_in_both_branch_pairs(dual):
    class Model(torch.nn.Module):
        def __init__(self, head: DistanceHead) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([head])
            self.head_position = 0
            self.auxiliary_head = None

        @property
        def head(self) -> torch.nn.Module:
            return self.layers[0]

    other = DualDistanceHead(CHANNELS, 2, strides=[Fraction(8), Fraction(16)])
    fresh = other.one_to_one.classes[1][2].bias[1].item()
    copied, total, common, _ = transfer(Model(other), ["c", "new"], Model(dual), ["a", "b", "c"])
    assert (copied, common) == (total, 1)
    for ours, theirs in ((other.branches, dual.branches), (other.one_to_one, dual.one_to_one)):
        assert ours.classes[1][2].weight[0].equal(theirs.classes[1][2].weight[2])
        assert ours.classes[1][0].dconv.conv.weight.equal(theirs.classes[1][0].dconv.conv.weight)
        assert ours.sides[1][2].weight.equal(theirs.sides[1][2].weight)
        assert ours.classes[1][2].bias[1].item() == fresh


# ---------------------------------------------------------------------- DualDistanceHead


def test_copy_starts_equal_and_has_parameters_of_its_own():
    head = DualDistanceHead(CHANNELS, C, strides=[Fraction(8), Fraction(16)]).eval()
    many, one = head(random_features())
    assert all(level.equal(other) for level, other in zip(many, one, strict=True))
    own = {parameter.data_ptr() for parameter in head.branches.parameters()}
    assert not own & {parameter.data_ptr() for parameter in head.one_to_one.parameters()}


def test_dual_head_decodes_o2o_unless_told_otherwise(dual):
    raw = dual(random_features())
    plain = make_head(DistanceHead, 1)
    expected = {name: plain.decode(maps) for name, maps in zip(("o2m", "o2o"), raw, strict=True)}
    assert not expected["o2m"][0].equal(expected["o2o"][0])
    assert not dual.needs_nms
    for name in (None, "o2m", "o2o"):
        if name:
            dual.choose_output(name)
        assert dual.needs_nms == (name == "o2m")
        for decoded in (dual.decode(raw), dual.decode_candidates(raw, 1e-9)):
            torch.testing.assert_close(decoded, expected[name or "o2o"])


@pytest.mark.parametrize("name", ["o2m", "o2o"])
def test_fuse_removes_the_other_branches_and_keeps_the_boxes(dual, name):
    dual.choose_output(name)
    expected, before = dual.decode(dual(random_features())), count_parameters(dual)
    for _ in range(2):  # a second call changes nothing
        dual.fuse()
        assert [key for key, _ in dual.named_children()] == [
            "branches" if name == "o2m" else "one_to_one"
        ]
        assert count_parameters(dual) == before / 2
        raw = dual(random_features())
        assert len(raw) == 1
        assert all(
            found.equal(wanted) for found, wanted in zip(dual.decode(raw), expected, strict=True)
        )
        some_boxes, _ = dual.decode_candidates(raw, 1e-9)
        torch.testing.assert_close(some_boxes, expected[0])
    dual.choose_output(name)
    with pytest.raises(ValueError, match=f"--head .*: choose {name}$"):
        dual.choose_output("o2o" if name == "o2m" else "o2m")


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (DualDistanceHead, "o3o", "--head o3o: choose o2o or o2m"),
        (DistanceHead, "o2o", "--head o2o: this model's head has only one output"),
    ],
)
def test_unknown_outputs_are_refused(kind, name, text):
    head = make_head(kind)
    needed = head.needs_nms
    with pytest.raises(ValueError, match=text):
        head.choose_output(name)
    assert head.needs_nms == needed


def test_heads_with_many_predictions_per_box_need_nms():
    head = make_head()
    head.fuse()
    assert head.needs_nms
    assert head.outputs == ()
    assert DualDistanceHead.outputs == ("o2o", "o2m")


@pytest.mark.parametrize("name", ["o2m", "o2o"])
def test_o2o_reads_maps_whose_gradient_is_cut(dual, name):
    maps = [x.requires_grad_() for x in random_features()]
    raw = dict(zip(("o2m", "o2o"), dual(maps), strict=True))[name]
    gradients = torch.autograd.grad(sum(level.sum() for level in raw), maps, allow_unused=True)
    assert all((gradient is None) == (name == "o2o") for gradient in gradients)
