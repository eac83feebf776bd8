"""The loss against its definition in plain loops, and properties that it must have."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from models.assign.anchor_ratio import match_anchors
from models.assign.targets import pad_targets
from models.losses import LossGains
from models.losses.anchor_based import AnchorBasedLoss, _rows_at
from utils.boxes import complete_iou

ANCHORS = torch.tensor(
    [
        [[10.0, 13], [16, 30], [33, 23]],
        [[30, 61], [62, 45], [59, 119]],
        [[116, 90], [156, 198], [373, 326]],
        [[400, 400], [500, 300], [600, 600]],
    ]
)
STRIDES = (8, 16, 32, 64)
SIDE = 64


def make_loss(num_classes: int = 3, levels: int = 3, **settings: float) -> AnchorBasedLoss:
    gains = LossGains(**settings)
    weights = torch.tensor(gains.class_weights) if gains.class_weights else None
    return AnchorBasedLoss(ANCHORS[:levels], STRIDES[:levels], num_classes, gains, weights)


def random_maps(
    images: int, num_classes: int = 3, levels: int = 3, seed: int = 0, spread: float = 1.5
) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    sides = [SIDE // stride for stride in STRIDES[:levels]]
    return [
        torch.randn(images, 3, side, side, 5 + num_classes, generator=g) * spread for side in sides
    ]


def random_targets(count: int, images: int, num_classes: int = 3, seed: int = 0) -> Tensor:
    """Return targets with boxes inside the image, without ignore regions."""
    g = torch.Generator().manual_seed(seed)
    corners = torch.rand(count, 2, 2, generator=g) * SIDE
    head = [
        torch.randint(0, images, (count,), generator=g),
        torch.randint(0, num_classes, (count,), generator=g),
    ]
    low, high = corners.amin(1), corners.amax(1) + 2
    return torch.cat([torch.stack(head, 1), low, high.clamp(max=SIDE)], 1).float()


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cross_entropy(logit: float, target: float, pos_weight: float, gamma: float) -> float:
    p = sigma(logit)
    loss = -pos_weight * target * math.log(p) - (1 - target) * math.log(1 - p)
    if gamma > 0:
        p_t = target * p + (1 - target) * (1 - p)
        loss *= (target * 0.25 + (1 - target) * 0.75) * (1 - p_t) ** gamma
    return loss


def slow_iou(ours: Sequence[float], theirs: Sequence[float]) -> float:
    both = torch.tensor([[*ours], [*theirs]], dtype=torch.float64)
    return complete_iou(both[:1], both[1:]).item()


def slow_loss(
    maps: list[Tensor], targets: Tensor, *, num_classes: int = 3, **settings: float
) -> dict[str, float]:
    """Compute the definition with loops over level, image, anchor and cell, one number at a
    time.
    """
    gains = LossGains(**settings)
    anchor_t, smoothing, gamma = gains.anchor_t, gains.label_smoothing, gains.fl_gamma
    levels, images = len(maps), len(maps[0])
    balance = {1: [4], 2: [4, 1], 3: [4, 1, 0.4], 4: [4, 1, 0.25, 0.06]}[levels]
    total = {"box": 0.0, "obj": 0.0, "cls": 0.0}
    for level, raw in enumerate(maps):
        stride, cells = STRIDES[level], raw.shape[2]
        box_terms, cls_terms, obj_terms = [], [], []
        for b in range(images):
            image_targets = [t[1:] for t in targets.tolist() if t[0] == b]
            for a in range(3):
                anchor = [side / stride for side in ANCHORS[level, a].tolist()]
                for row in range(cells):
                    for column in range(cells):
                        values = raw[b, a, row, column].tolist()
                        x, y = 2 * sigma(values[0]) - 0.5 + column, 2 * sigma(values[1]) - 0.5 + row
                        w, h = (
                            (2 * sigma(values[2])) ** 2 * anchor[0],
                            (2 * sigma(values[3])) ** 2 * anchor[1],
                        )
                        best = None
                        for class_id, *corners in image_targets:
                            truth = matched_box(
                                corners, class_id, anchor, stride, row, column, anchor_t
                            )
                            if truth is None:
                                continue
                            iou = slow_iou([x, y, w, h], truth)
                            best = max(best if best is not None else 0.0, iou, 0.0)
                            box_terms.append(1 - iou)
                            weight = dict(enumerate(gains.class_weights)).get(class_id, 1.0)
                            for c in range(num_classes):
                                target = 1 - smoothing / 2 if c == class_id else smoothing / 2
                                cls_terms.append(
                                    weight
                                    * cross_entropy(values[5 + c], target, gains.cls_pw, gamma)
                                )
                        center = (column + 0.5) * stride, (row + 0.5) * stride
                        ignored = any(
                            c == -1 and x1 < center[0] < x2 and y1 < center[1] < y2
                            for c, x1, y1, x2, y2 in image_targets
                        )
                        counted = best is not None or not ignored
                        obj_terms.append(
                            counted * cross_entropy(values[4], best or 0.0, gains.obj_pw, gamma)
                        )
        total["box"] += sum(box_terms) / max(len(box_terms), 1)
        total["cls"] += sum(cls_terms) / max(len(cls_terms), 1) if num_classes > 1 else 0.0
        total["obj"] += sum(obj_terms) / len(obj_terms) * balance[level]
    return {
        "box": total["box"] * gains.box * 3 / levels,
        "obj": total["obj"] * gains.obj * 3 / levels * (SIDE / 640) ** 2,
        "cls": total["cls"] * gains.cls * num_classes / 80 * 3 / levels,
    }


def matched_box(corners, class_id, anchor, stride, row, column, limit):
    """Return the target's box in cells if it matches this anchor at this cell, else None."""
    x1, y1, x2, y2 = (v / stride for v in corners)
    cx, cy, w, h = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
    if class_id < 0 or max(w / anchor[0], anchor[0] / w, h / anchor[1], anchor[1] / h) >= limit:
        return None
    near_column = math.floor(cx) + (-1 if cx % 1 < 0.5 else 1)
    near_row = math.floor(cy) + (-1 if cy % 1 < 0.5 else 1)
    own = (math.floor(cx), math.floor(cy))
    return (
        [cx, cy, w, h]
        if (column, row) in {own, (near_column, own[1]), (own[0], near_row)}
        else None
    )


def values(terms: dict[str, Tensor]) -> dict[str, float]:
    return {name: term.item() for name, term in terms.items()}


SETTINGS = [
    {},
    {"label_smoothing": 0.1},
    {"fl_gamma": 1.5},
    {"fl_gamma": 0.5, "label_smoothing": 0.2},
    {"obj_pw": 0.67, "cls_pw": 0.5},
    {"box": 0.02, "obj": 0.7, "cls": 0.3, "anchor_t": 2.91},
    {"class_weights": (0.5, 3.0, 1.25), "label_smoothing": 0.1, "fl_gamma": 1.5},
]


@pytest.mark.parametrize("num_classes", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(s) or "plain")
def test_anchor_based_loss_equals_slow_loops(settings, num_classes):
    maps, targets = random_maps(2, num_classes), random_targets(8, 2, num_classes)
    found = values(make_loss(num_classes, **settings)(maps, targets))
    assert found == pytest.approx(
        slow_loss(maps, targets, num_classes=num_classes, **settings), rel=2e-5, abs=1e-7
    )
    assert found["box"] > 0
    assert (found["cls"] > 0) is (num_classes > 1)


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_loss_with_other_level_counts_equals_slow_loops(levels):
    maps, targets = random_maps(2, levels=levels), random_targets(8, 2)
    found = values(make_loss(levels=levels)(maps, targets))
    assert found == pytest.approx(slow_loss(maps, targets), rel=2e-5)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_order_of_levels_changes_nothing(levels):
    """A head may list its coarsest level first: the weights of the objectness follow the
    strides.
    """
    maps, targets = random_maps(2, levels=levels), random_targets(8, 2)
    expected = values(make_loss(levels=levels)(maps, targets))
    backwards = AnchorBasedLoss(ANCHORS[:levels].flip(0), STRIDES[:levels][::-1], 3, LossGains())
    assert values(backwards(maps[::-1], targets)) == pytest.approx(expected, rel=1e-6)


def test_loss_with_ignore_regions_equals_slow_loops():
    maps, targets = random_maps(2), random_targets(8, 2)
    regions = torch.tensor(
        [[0.0, -1, 5, 5, 40, 64], [1, -1, 0, 0, 20, 20], [1, -1, 10, 10, 30, 30]]
    )
    mixed = torch.cat([targets[:3], regions, targets[3:]])
    found = values(make_loss()(maps, mixed))
    assert found == pytest.approx(slow_loss(maps, mixed), rel=2e-5)
    assert found["obj"] < values(make_loss()(maps, targets))["obj"]


def test_loss_rejects_more_than_five_levels():
    with pytest.raises(ValueError, match="the loss supports 1 to 5 levels, got 6"):
        AnchorBasedLoss(torch.ones(6, 3, 2), (4, 8, 16, 32, 64, 128), 3, LossGains())


def test_anchor_based_loss_by_hand():
    # One image of 64 px, one level of stride 8, one anchor 16 x 16, all logits 0, one class. Target
    # 16 x 16 px at center (28, 28), in cells (3.5, 3.5): the middle of a cell, so the neighbors
    # are the next column and the next row. Each predicted box has its center at the cell + 0.5 and
    # the anchor's size, 2 x 2 cells. The own cell has IoU 1, the others are one cell off: overlap
    # 2, union 6, IoU 1/3, rho^2 = 1, enclosing box 3 x 2, so c^2 = 13 and CIoU = 1/3 - 1/13 =
    # 0.256410. box = (0 + 2 * (1 - 0.256410)) / 3 * 0.05 * 3 = 0.0743590 obj = -mean ln 0.5 for any
    # target = 0.693147 * 4 * 3 * (64 / 640)^2 = 0.0831777
    loss = AnchorBasedLoss(torch.tensor([[[16.0, 16]]]), (8,), 1, LossGains())
    terms = values(loss([torch.zeros(1, 1, 8, 8, 6)], torch.tensor([[0.0, 0, 20, 20, 36, 36]])))
    assert terms == pytest.approx({"box": 0.0743590, "obj": 0.0831777, "cls": 0.0}, rel=1e-5)


def test_batch_without_targets_trains_only_objectness():
    maps = [raw.requires_grad_() for raw in random_maps(2)]
    terms = make_loss()(maps, torch.zeros(0, 6))
    assert values(terms) == pytest.approx(slow_loss(maps, torch.zeros(0, 6)), rel=2e-5)
    assert (terms["box"].item(), terms["cls"].item()) == (0, 0)
    sum(terms.values()).backward()
    for raw in maps:
        assert raw.grad[..., 4].abs().min() > 0
        assert raw.grad[..., :4].abs().max() == raw.grad[..., 5:].abs().max() == 0


def test_ignored_cells_train_objectness_only_where_matched():
    maps = [raw.requires_grad_() for raw in random_maps(1)]
    # Predicted boxes of almost no size: their CIoU with the target is 0 or below, but they are
    # still matches.
    with torch.no_grad():
        maps[0][..., :4] = -20
    targets = torch.tensor(
        [[0.0, -1, 0, 0, 64, 64], [0, 1, 20, 16, 36, 46]]
    )  # center (28, 31): cell 3, 3
    make_loss()(maps, targets)["obj"].backward()
    has_gradient = maps[0].grad[0, :, :, :, 4] != 0
    # 16 x 30 px matches the anchors 10 x 13, 16 x 30 and 33 x 23. (3.5, 3.875): the next column and
    # the next row.
    assert {tuple(cell) for cell in has_gradient.nonzero().tolist()} == {
        (a, row, column) for a in range(3) for row, column in ((3, 3), (3, 4), (4, 3))
    }


def test_loss_does_not_depend_on_target_order_or_repetition():
    maps, targets = random_maps(2), random_targets(12, 2)
    targets[6:, 2:] = targets[
        :6, 2:
    ]  # pairs of equal boxes, so that several targets match the same cells
    targets[6:, 0] = targets[:6, 0]
    expected = values(make_loss()(maps, targets))
    for seed in range(3):
        shuffled = targets[torch.randperm(12, generator=torch.Generator().manual_seed(seed))]
        assert values(make_loss()(maps, shuffled)) == pytest.approx(expected, rel=1e-6)
    # Each target twice: the means over matches and the best quality of each cell do not change.
    assert values(make_loss()(maps, targets.repeat(2, 1))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(s) or "plain")
def test_loss_with_many_targets_equals_slow_loops(settings):
    maps, targets = random_maps(1), random_targets(50, 1)
    assert 50 * 9 > 3 * 8 * 8  # more candidates than the finest level has predictions
    found = values(make_loss(**settings)(maps, targets))
    assert found == pytest.approx(slow_loss(maps, targets, **settings), rel=2e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(s) or "plain")
def test_repeated_targets_do_not_change_gradients(settings):
    loss, few = make_loss(**settings).double(), random_targets(6, 2)
    gradients = []
    for targets in (few, few.repeat(30, 1)):  # 54 and 1620 candidates; 384, 96 and 24 predictions
        maps = [raw.double().requires_grad_() for raw in random_maps(2)]
        sum(loss(maps, targets).values()).backward()
        gradients.append([raw.grad for raw in maps])
    for one, many in zip(*gradients, strict=True):
        torch.testing.assert_close(many, one, rtol=1e-12, atol=1e-12 * one.abs().max().item())


# ---------------------------------------------------------------------- shares of a global batch


def split_batch(maps: list[Tensor], targets: Tensor, at: int) -> list[tuple[list[Tensor], Tensor]]:
    """Split a batch into the first `at` images and the others, each numbered from 0."""
    first, second = targets[targets[:, 0] < at], targets[targets[:, 0] >= at].clone()
    second[:, 0] -= at
    return [([raw[:at] for raw in maps], first), ([raw[at:] for raw in maps], second)]


def loss_counts(loss: AnchorBasedLoss, part: tuple[list[Tensor], Tensor]) -> Tensor:
    """Return the counts that a process passes to `total`, to be summed over all processes."""
    seen = []
    loss(*part, lambda counts: seen.append(counts.clone()) or counts)
    return seen[0]


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_anchor_based_loss_shares_sum_to_batch_loss(at):
    loss, maps = make_loss().double(), [raw.double() for raw in random_maps(4)]
    targets = random_targets(15, 4)
    targets = targets[
        targets[:, 0] != 0
    ]  # with at = 1, one process has no targets; with at = 0, no images
    targets[0, 1] = -1
    parts = split_batch(maps, targets, at)
    counts = sum(loss_counts(loss, part) for part in parts)
    shares = [values(loss(*part, lambda _: counts)) for part in parts]
    full_batch = values(loss(maps, targets))
    assert {name: sum(share[name] for share in shares) for name in full_batch} == pytest.approx(
        full_batch, rel=1e-12
    )


def test_mean_of_local_losses_differs_from_batch_loss():
    loss, maps, targets = make_loss(), random_maps(4), random_targets(15, 4)
    local = [
        values(loss(*part)) for part in split_batch(maps, targets, 1)
    ]  # each normalized by its own counts
    full_batch = values(loss(maps, targets))
    for name in ("box", "cls"):
        assert (
            abs(sum(share[name] for share in local) / 2 - full_batch[name])
            > 1e-3 * full_batch[name]
        )


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(s) or "plain")
def test_loss_gradients_of_shares_equal_batch_gradients(settings, at):
    loss, targets = make_loss(**settings).double(), random_targets(15, 4)
    targets[:2, 1] = -1
    full_batch = [raw.double().requires_grad_() for raw in random_maps(4)]
    sum(loss(full_batch, targets).values()).backward()
    divided = [raw.double().requires_grad_() for raw in random_maps(4)]
    parts = split_batch(divided, targets, at)
    counts = sum(loss_counts(loss, part) for part in parts)
    for part in parts:
        sum(loss(*part, lambda _: counts).values()).backward()
    for ours, theirs in zip(full_batch, divided, strict=True):
        assert ours.grad.dtype == torch.float64
        torch.testing.assert_close(
            ours.grad, theirs.grad, rtol=1e-12, atol=1e-12 * ours.grad.abs().max().item()
        )


def test_loss_counts_are_integers():
    counts = loss_counts(make_loss(), (random_maps(4), random_targets(15, 4)))
    assert counts.dtype == torch.int64
    assert counts.shape == (4,)
    assert counts[-1] == 4


# -------------------------------------------------------------------- extreme numbers and precision


@pytest.mark.parametrize("fl_gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("size", [0.0, 1e-6, 30.0, 300.0, 1e4])
def test_gradients_are_finite_for_any_logit(size, fl_gamma):
    g = torch.Generator().manual_seed(1)
    targets = torch.cat(
        [random_targets(10, 2), torch.tensor([[0.0, 1, 0, 0, 64, 64], [1, 0, 30, 30, 30, 30]])]
    )
    for sign in (-1, 1, None):
        maps = random_maps(2)
        for raw in maps:
            raw.copy_(
                torch.randn(raw.shape, generator=g).sign()
                if sign is None
                else torch.full_like(raw, sign)
            )
            raw.mul_(size).requires_grad_()
        terms = make_loss(fl_gamma=fl_gamma, label_smoothing=0.1)(maps, targets)
        sum(terms.values()).backward()
        assert all(math.isfinite(term) for term in values(terms).values())
        assert all(raw.grad.isfinite().all() for raw in maps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_maps_are_computed_in_float32(dtype):
    targets = random_targets(10, 2)
    half = [raw.to(dtype).requires_grad_() for raw in random_maps(2)]
    terms = make_loss()(half, targets)
    assert all(term.dtype == torch.float32 for term in terms.values())
    same = values(make_loss()([raw.detach().float() for raw in half], targets))
    assert values(terms) == same
    sum(terms.values()).backward()
    assert all(raw.grad.dtype == dtype for raw in half)


@pytest.mark.parametrize("num_classes", [1, 3])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: ",".join(s) or "plain")
def test_float64_maps_are_computed_in_float64(settings, num_classes):
    # Corners on quarter pixels: centers and sizes in cells are exact in the targets' float32.
    maps, targets = random_maps(2, num_classes), (random_targets(8, 2, num_classes) * 4).round() / 4
    loss = make_loss(num_classes, **settings)
    single = values(loss(maps, targets))
    terms = loss.double()([raw.double() for raw in maps], targets)
    assert all(term.dtype == torch.float64 for term in terms.values())
    assert values(terms) == pytest.approx(
        slow_loss(maps, targets, num_classes=num_classes, **settings), rel=1e-12
    )
    assert values(terms) == pytest.approx(single, rel=2e-6)


def test_float64_without_targets():
    terms = make_loss().double()([raw.double() for raw in random_maps(2)], torch.zeros(0, 6))
    assert all(term.dtype == torch.float64 for term in terms.values())
    assert (terms["box"].item(), terms["cls"].item()) == (0, 0)


def test_loss_anchors_are_at_least_float32():
    losses = [
        AnchorBasedLoss(ANCHORS.to(dtype), STRIDES, 3, LossGains())
        for dtype in (torch.float16, torch.float64)
    ]
    assert [loss.anchors_px.dtype for loss in losses] == [torch.float32, torch.float64]


def test_float64_anchors_match_like_float32_anchors():
    # Widths around 2.91 times an anchor's, in steps of one float32: in float64 the limit would be
    # at another step.
    steps = torch.arange(-20, 21, dtype=torch.int32)
    for anchors in ANCHORS / 3:
        widths = ((anchors[0, 0] * 2.91).view(torch.int32) + steps).view(torch.float32)
        corner = torch.zeros(len(widths), 2)
        sizes = torch.stack([widths, anchors[0, 1].expand(len(widths))], 1)
        targets = torch.cat([corner, corner, sizes], 1)
        single = match_anchors(targets, anchors[None], [8], 1, [(64, 64)], 2.91)
        double = match_anchors(targets, anchors[None].double(), [8], 1, [(64, 64)], 2.91)
        assert single.valid.any()
        assert not single.valid.all()
        for name in vars(single):
            assert getattr(single, name).equal(getattr(double, name)), name


def finite_difference(
    loss: AnchorBasedLoss,
    maps: list[Tensor],
    targets: Tensor,
    index: tuple[int, ...],
    names: Sequence[str],
) -> float:
    """Return the central difference of the named terms with respect to one number of the first
    level.
    """
    with torch.no_grad():
        sums = []
        for step in (1e-5, -1e-5):
            changed = [maps[0].detach().clone(), *maps[1:]]
            changed[0][index] += step
            terms = loss(changed, targets)
            sums.append(sum(terms[name].item() for name in names))
    return (sums[0] - sums[1]) / 2e-5


@pytest.mark.parametrize("fl_gamma", [0.0, 1.5])
def test_loss_gradients_equal_finite_differences(fl_gamma):
    # No gradient flows through the CIoU as the target of objectness, nor through CIoU's weight of
    # the aspect term. So box numbers are compared with slopes of the box term alone, for a box with
    # the target's aspect ratio, where that weight is 0.
    loss = make_loss(fl_gamma=fl_gamma, cls_pw=0.7, label_smoothing=0.1).double()
    maps = [raw.double() for raw in random_maps(1)]
    targets, own = (
        torch.tensor([[0.0, 2, 31, 22, 47, 52]]),
        (0, 1, 4, 4),
    )  # 16 x 30 px as anchor 1; center in cell 4, 4
    maps[0][own][:4] = torch.tensor([0.3, -0.2, 0.4, 0.4])
    maps = [raw.requires_grad_() for raw in maps]
    terms = loss(maps, targets)
    (box,) = torch.autograd.grad(terms["box"], maps[0], retain_graph=True)
    (logits,) = torch.autograd.grad(terms["obj"] + terms["cls"], maps[0])
    for number in range(4):
        index = (*own, number)
        assert box[index].item() == pytest.approx(
            finite_difference(loss, maps, targets, index, ["box"]), rel=1e-7
        )
    for index in [(*own, number) for number in range(4, 8)] + [(0, 0, 0, 0, 4), (0, 2, 7, 3, 4)]:
        assert logits[index].item() == pytest.approx(
            finite_difference(loss, maps, targets, index, ["obj", "cls"]), rel=1e-7
        )
        assert logits[index] != 0


def test_box_outputs_get_gradients_only_from_box_term():
    loss, targets = make_loss(2).double(), random_targets(4, 1, 2)
    maps = [raw[:1].double().requires_grad_() for raw in random_maps(1, 2)]
    terms = loss(maps, targets)
    (terms["cls"] + terms["obj"]).backward()
    # No gradient flows through the target of objectness, so box numbers get no gradient.
    assert all(raw.grad[..., :4].abs().max() == 0 for raw in maps)
    before = maps[0].grad.clone()
    terms = loss(maps, targets)
    terms["box"].backward()
    assert maps[0].grad[..., 4:].equal(before[..., 4:])
    assert (maps[0].grad[..., :4] != 0).any()


class Recorder(TorchDispatchMode):
    """Records the name of each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_anchor_based_loss_never_syncs_with_device():
    # A fake CUDA device raises an error for what needs a tensor's value on the host: item, nonzero,
    # boolean indexing. It does not for a tensor made from a list, which is copied to the device
    # while the host waits: that calls lift_fresh.
    with FakeTensorMode(allow_non_fake_inputs=False), Recorder() as recorder:
        device = torch.device("cuda")
        gains = LossGains(fl_gamma=1.5, cls_pw=0.5)
        loss = AnchorBasedLoss(torch.ones(3, 3, 2, device=device), STRIDES[:3], 3, gains)
        maps = [torch.empty(2, 3, side, side, 8, device=device) for side in (8, 4, 2)]
        terms = loss(maps, torch.empty(5, 6, device=device), lambda counts: counts)
    assert all(term.device.type == "cuda" for term in terms.values())
    assert not [name for name in recorder.names if "lift" in name]


def test_padding_rows_do_not_change_the_loss():
    for count in (0, 3, 17, 40):
        maps, targets = random_maps(4), random_targets(count, 4)
        if count:
            targets[0, 1] = -1
        padded = pad_targets(targets)
        assert len(padded) >= max(count, 16)
        assert padded[:count].equal(targets)
        expected = values(make_loss()(maps, targets))
        assert values(make_loss()(maps, padded)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


# ---------------------------------------------------------------------- the same bits in every run


@pytest.mark.parametrize("rows", [0, 7, 20000])
def test_rows_at_is_indexing_with_an_ordered_gradient(rows):
    """On a CPU the gradient of indexing has another order of sums in each run if several threads
    take part.
    """
    values = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    index = torch.randint(0, 50, (2, rows), generator=torch.Generator().manual_seed(1))
    picked = _rows_at(values, index)
    assert picked.equal(values[index])

    weights = torch.randn(2, rows, 4, generator=torch.Generator().manual_seed(2))
    (found,) = torch.autograd.grad(picked, values, weights)
    one_after_another = torch.zeros(50, 4)
    for row, weight in zip(index.flatten().tolist(), weights.view(-1, 4), strict=True):
        one_after_another[row] += weight
    assert found.equal(one_after_another)


def test_crowded_batch_adds_gradients_without_racing_threads():
    """Its backward pass has no `index_put` that accumulates."""
    maps = [level.requires_grad_() for level in random_maps(2)]
    loss = make_loss()
    for number in (1, 400):
        targets = random_targets(number, images=2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            sum(loss(maps, targets).values()).backward()
        names = {event.name for event in profiled.events()}
        assert "aten::scatter_add_" in names
        assert "aten::_index_put_impl_" not in names
