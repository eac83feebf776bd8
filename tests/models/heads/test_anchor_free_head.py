"""A second kind of head: its parts against hand-computed numbers and plain loops, and what must
work with any head.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from models import LossGains, build_loss, build_model
from models.detector import Detector
from models.head_registry import HEADS
from models.losses.anchor_based import AnchorBasedLoss
from models.weights.transfer import transfer
from tests.support.anchor_free import FAMILY
from tests.support.anchor_free.assign import assign_cells
from tests.support.anchor_free.head import AnchorFreeHead
from tests.support.anchor_free.loss import AnchorFreeLoss
from utils.boxes import complete_iou, to_cxcywh

ABC = ["a", "b", "c"]
TABLE = str(Path(__file__).parents[2] / "tables" / "anchor_free.yaml")


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HEADS, "AnchorFree", FAMILY)


@pytest.fixture
def model() -> Detector:
    torch.manual_seed(0)
    return build_model(TABLE, 3)


def make_head(num_classes: int = 3) -> AnchorFreeHead:
    return AnchorFreeHead([4, 6], num_classes, strides=[Fraction(8), Fraction(16)])


def some_targets() -> Tensor:
    """Return targets of two 64 px images: a small box in a large one, a tall box, an ignore region,
    a padding row.
    """
    rows = [
        [0, 2, 4, 4, 60, 60],
        [0, 0, 20, 20, 44, 40],
        [1, 1, 8, 0, 24, 64],
        [1, -1, 32, 32, 64, 64],
        [0, -2, 0, 0, 0, 0],
    ]
    return torch.tensor(rows, dtype=torch.float32)


# ------------------------------------------------------------ the head, its assignment and its loss


def test_anchor_free_decode_by_hand():
    head, ln3 = make_head(), math.log(math.e - 1)  # softplus(ln(e - 1)) = 1
    far = math.log(math.e**2 - 1)  # softplus = 2
    raw = [
        (torch.full((1, 4, 2, 2), ln3), torch.zeros(1, 3, 2, 2)),
        (torch.full((1, 4, 1, 1), far), torch.zeros(1, 3, 1, 1)),
    ]
    raw[0][1][0, 1, 0, 1] = math.log(3)
    boxes, scores = head.decode(raw)
    # Stride 8: center of row 0, column 1 is x 12, y 4, and one stride away on each side 4 to 20, -4
    # to 12.
    torch.testing.assert_close(boxes[0, 1], torch.tensor([4.0, -4, 20, 12]))
    # Stride 16: center 8, 8, two strides: -24 to 40.
    torch.testing.assert_close(boxes[0, 4], torch.tensor([-24.0, -24, 40, 40]))
    torch.testing.assert_close(scores[0, 1], torch.tensor([0.5, 0.75, 0.5]))
    assert boxes.dtype == scores.dtype == torch.float32


def test_anchor_free_decode_accepts_empty_batch():
    boxes, scores = make_head().decode(
        make_head()([torch.empty(0, 4, 4, 4), torch.empty(0, 6, 2, 2)])
    )
    assert (boxes.shape, scores.shape) == ((0, 20, 4), (0, 20, 3))


def slow_assignment(
    targets: Tensor, stride: int, images: int, grid: tuple[int, int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (image, row, column, target) of each cell that is assigned to a box, with loops over
    the cells.
    """
    for image in range(images):
        for row in range(grid[0]):
            for column in range(grid[1]):
                x, y, found = (column + 0.5) * stride, (row + 0.5) * stride, []
                for number, (owner, kind, x1, y1, x2, y2) in enumerate(targets.tolist()):
                    near = max(abs(x - (x1 + x2) / 2), abs(y - (y1 + y2) / 2)) < 1.5 * stride
                    if owner == image and kind >= 0 and x1 < x < x2 and y1 < y < y2 and near:
                        found.append(((x2 - x1) * (y2 - y1), number))
                if found:
                    yield image, row, column, min(found)[1]


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_assignment_equals_the_slow_loops(stride):
    targets, grid = some_targets(), (64 // stride, 64 // stride)
    assigned, boxes, classes = assign_cells(targets, stride, 2, grid)
    expected = list(slow_assignment(targets, stride, 2, grid))
    assert expected
    assert assigned.sum() == len(expected)
    for image, row, column, number in expected:
        cell = row * grid[1] + column
        assert assigned[image, cell]
        assert boxes[image, cell].tolist() == (targets[number, 2:] / stride).tolist()
        assert classes[image, cell] == targets[number, 1]


def test_no_targets_assign_no_cells():
    assigned, boxes, classes = assign_cells(torch.zeros(0, 6), 8, 2, (4, 4))
    assert not assigned.any()
    assert (boxes.shape, classes.shape) == ((2, 16, 4), (2, 16))


def raw_maps(
    head: AnchorFreeHead, images: int = 2, dtype: torch.dtype = torch.float64
) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    sides = [64 // stride for stride in head.strides]
    shapes = [((images, 4, side, side), (images, head.num_classes, side, side)) for side in sides]
    return [
        tuple(torch.randn(shape, generator=random, dtype=dtype) for shape in level)
        for level in shapes
    ]


def slow_loss(
    head: AnchorFreeHead, raw: list[tuple[Tensor, Tensor]], targets: Tensor
) -> dict[str, float]:
    """Compute the definition with loops, one cell at a time."""
    box, cls, cells = 0.0, 0.0, 0
    decoded, _ = head.decode(raw)
    start = 0
    for (_, logits), stride in zip(raw, head.strides, strict=True):
        images, classes, height, width = logits.shape
        owners = {
            (b, y, x): t for b, y, x, t in slow_assignment(targets, stride, images, (height, width))
        }
        for b in range(images):
            for y in range(height):
                for x in range(width):
                    target = owners.get((b, y, x))
                    if target is not None:
                        pair = (
                            decoded[b, start + y * width + x].double(),
                            targets[target, 2:].double(),
                        )
                        box += (
                            1
                            - complete_iou(*(to_cxcywh(one[None] / stride) for one in pair)).item()
                        )
                        cells += 1
                    px, py = (x + 0.5) * stride, (y + 0.5) * stride
                    regions = targets[(targets[:, 0] == b) & (targets[:, 1] == -1), 2:].tolist()
                    if target is None and any(
                        x1 < px < x2 and y1 < py < y2 for x1, y1, x2, y2 in regions
                    ):
                        continue
                    for c in range(classes):
                        p = 1 / (1 + math.exp(-logits[b, c, y, x].item()))
                        cls -= math.log(
                            p if target is not None and targets[target, 1] == c else 1 - p
                        )
        start += height * width
    return {"box": box / max(cells, 1), "cls": cls / max(cells, 1)}


@pytest.mark.parametrize("targets", [some_targets(), torch.zeros(0, 6)], ids=["boxes", "none"])
def test_loss_equals_the_slow_loops(targets):
    head = make_head()
    raw, loss = raw_maps(head), AnchorFreeLoss(head.strides, box_gain=2.0, cls_gain=0.5)
    terms, expected = loss(raw, targets), slow_loss(head, raw, targets)
    assert terms["box"].item() == pytest.approx(expected["box"] * 2.0, rel=1e-5)
    assert terms["cls"].item() == pytest.approx(expected["cls"] * 0.5, rel=1e-9)
    assert list(terms) == list(loss.terms) == ["box", "cls"]


def test_anchor_free_loss_shares_sum_to_batch_loss():
    head, targets, counts = make_head(), some_targets(), []
    raw, loss = raw_maps(head), AnchorFreeLoss(head.strides)
    full_batch = loss(raw, targets)
    second = targets[targets[:, 0] == 1] - torch.tensor([1.0, 0, 0, 0, 0, 0])
    parts = [([tuple(x[:1] for x in level) for level in raw], targets[targets[:, 0] == 0])]
    parts += [([tuple(x[1:] for x in level) for level in raw], second)]
    for part in parts:
        loss(*part, lambda own: counts.append(own) or own)
    shares = [loss(*part, lambda _: sum(counts)) for part in parts]
    for term in loss.terms:
        assert sum(share[term] for share in shares).item() == pytest.approx(
            full_batch[term].item(), rel=1e-12
        )


def test_anchor_free_loss_never_syncs_with_device():
    with FakeTensorMode(allow_non_fake_inputs=False):
        device = torch.device("cuda")
        raw = [
            (torch.empty(2, 4, s, s, device=device), torch.empty(2, 3, s, s, device=device))
            for s in (8, 4)
        ]
        terms = AnchorFreeLoss((8, 16))(
            raw, torch.empty(5, 6, device=device), lambda counts: counts
        )
    assert all(term.device.type == "cuda" for term in terms.values())


# --------------------------------------------------------------------- what must work with any head


def test_table_without_anchors_ignores_given_anchor_count(model):
    assert "anchors" not in model.table
    assert model.strides == (8, 16, 32)
    assert Detector(model.table).state_dict().keys() == model.state_dict().keys()
    with_anchors = build_model(
        TABLE, 3, anchors=5
    )  # as from `anchors` in the hyper-parameters: ignored
    assert with_anchors.table == model.table


def test_build_loss_selects_the_loss_of_the_head(model, tiny_model):
    loss = build_loss(model.head, LossGains(box=3.0, cls=2.0, obj=9.0))
    assert isinstance(loss, AnchorFreeLoss)
    assert (loss.strides, loss.box_gain, loss.cls_gain) == ((8, 16, 32), 3.0, 2.0)
    other = build_loss(build_model(tiny_model, 3).head, LossGains(box=3.0, cls=2.0, obj=9.0))
    assert isinstance(other, AnchorBasedLoss)
    assert (other.box_gain, other.obj_gain, other.cls_gain) == (3.0, 9.0, 2.0 * 3 / 80)


def test_build_loss_supports_fully_sharded_heads(model):
    """fully_shard changes the class of a layer to a subclass."""
    model.head.__class__ = type("FSDPAnchorFreeHead", (AnchorFreeHead,), {})
    assert isinstance(build_loss(model.head, LossGains()), AnchorFreeLoss)


def test_build_loss_of_undeclared_head_is_refused():
    with pytest.raises(
        ValueError, match="no loss is declared in HEADS for a head of class Identity"
    ):
        build_loss(torch.nn.Identity(), LossGains())


def test_anchor_free_model_fits_no_anchors(model, tmp_path):
    sizes = torch.rand(50, 2).double().numpy() * 50
    settings = {"anchor_t": 4.0, "seed": 0, "placeholders": False}
    assert (
        model.fit_to_boxes(
            sizes, **settings, broadcast=lambda value: pytest.fail("nothing to broadcast")
        )
        is None
    )
    assert "anchors" not in model.table


def test_anchor_free_transfer_matches_classes_by_name(model):
    other = build_model(TABLE, 4)
    fresh = other.head.classes[1].weight.detach().clone()
    copied, total, common, _ = transfer(other, ["c", "new", "a", "newer"], model, ABC)
    assert (copied, common) == (total, 2)
    assert total == len(model.state_dict())
    for name in ("weight", "bias"):
        for level in range(3):
            ours, theirs = (getattr(m.head.classes[level], name).detach() for m in (other, model))
            assert ours[[0, 2]].equal(theirs[[2, 0]])
            ours, theirs = (getattr(m.head.boxes[level], name).detach() for m in (other, model))
            assert ours.equal(theirs)
    assert other.head.classes[1].weight[[1, 3]].equal(fresh[[1, 3]])


def test_transfer_without_common_classes_keeps_class_weights(model):
    other = build_model(TABLE, 2)
    before = {key: value.clone() for key, value in other.head.classes.state_dict().items()}
    copied, total, common, _ = transfer(other, ["x", "y"], model, ABC)
    assert (total - copied, common) == (len(before), 0)
    assert all(value.equal(before[key]) for key, value in other.head.classes.state_dict().items())


@pytest.mark.parametrize("to_anchor_free", [True, False])
def test_transfer_between_head_kinds_does_not_change_the_head(model, tiny_model, to_anchor_free):
    given, other = build_model(tiny_model, 3), build_model(TABLE, 3)
    given, other = (given, other) if to_anchor_free else (other, given)
    before = {key: value.clone() for key, value in other.head.state_dict().items()}
    copied, total, common, _ = transfer(other, ABC, given, ABC)
    assert (total - copied, common) == (len(list(other.head.parameters())), 0)
    assert all(value.equal(before[key]) for key, value in other.head.state_dict().items())
    assert other.layers[5].conv.weight.equal(given.layers[5].conv.weight)


def test_row_that_refers_to_anchors_requires_anchors(tiny_model):
    table = dict(build_model(tiny_model, 3).table)
    del table["anchors"]
    with pytest.raises(
        ValueError,
        match=r"`anchors` is missing: one list w, h, w, h, \.\.\. per level, or a number per",
    ):
        build_model(table, 3)
