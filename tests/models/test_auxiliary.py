"""The auxiliary branch of a model table: computed in training only, trained with a quarter of its
loss, and removed for use.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import scatter_gather

from models import Detector, LossGains, build_loss, build_model
from models.build import check_shapes, count_gflops
from models.detector import count_parameters
from models.heads import WithAuxiliary
from models.losses import Loss
from models.tables.resolve import resolve
from models.tables.rows import without_auxiliary
from models.weights.transfer import transfer
from utils.nested import tensors_in

NAMES = ["a", "b", "c"]
TARGETS = torch.tensor([[0.0, 1, 4, 6, 30, 40], [1, 0, 20, 10, 60, 58], [1, 2, 33, 35, 47, 62]])
HEADS: dict[str, list[Any]] = {
    "Detect": ["nc", "anchors"],
    "DecoupledDetect": ["nc"],
    "DistanceDetect": ["nc"],
    "DualDistanceDetect": ["nc", 1, False],
}


def table_of(main: str = "DistanceDetect", auxiliary: str = "DistanceDetect") -> dict[str, Any]:
    """Return a table whose auxiliary branch reads an image, a row of the neck, and itself."""
    return {
        "depth_multiple": 1.0,
        "width_multiple": 1.0,
        "anchors": [[10, 14, 23, 27], [81, 82, 135, 169]],
        "backbone": [
            [-1, 1, "Conv", [8, 3, 2]],
            [-1, 1, "Conv", [8, 3, 2]],  # 1, stride 4
            [-1, 1, "Conv", [16, 3, 2]],  # 2, stride 8
        ],
        "head": [[[1, 2], 1, main, HEADS[main]]],
        "auxiliary": [
            ["images", 1, "Conv", [8, 3, 2]],  # 4
            [[-1, 0], 1, "Concat", [1]],
            [-1, 1, "Conv", [8, 3, 2]],  # 6, stride 4
            [[6, 2], 1, auxiliary, HEADS[auxiliary]],
        ],
    }


@pytest.fixture
def pair() -> tuple[Detector, Detector]:
    """A model with an auxiliary branch, and one without it and with the same weights."""
    torch.manual_seed(0)
    model = build_model(table_of(), 3)
    plain = build_model(without_auxiliary(table_of()), 3)
    plain.load_state_dict(model.state_dict(), strict=False)
    return model, plain


def same_bits(first: Any, second: Any) -> bool:
    tensors = [list(tensors_in(raw)) for raw in (first, second)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def loss_of(model: Detector) -> Loss:
    return build_loss(model.head, LossGains(), auxiliary=model.auxiliary_head)


def test_only_training_computes_the_branch(pair):
    model, plain = pair
    images = torch.rand(2, 3, 64, 64)
    raw = model.train()(images)
    assert isinstance(raw, WithAuxiliary)
    assert same_bits(raw.main, plain.train()(images))
    assert [level.shape for level in raw.auxiliary] == [level.shape for level in raw.main]

    computed = []
    for layer in model.auxiliary_layers:
        layer.register_forward_hook(lambda *_: computed.append(1))
    assert same_bits(model.eval()(images), plain.eval()(images))
    assert not computed
    assert same_bits(model.decode(model(images)), plain.decode(plain(images)))


def test_branch_by_hand(pair):
    model, _ = pair
    images = torch.rand(2, 3, 64, 64)
    raw = copy.deepcopy(model).train()(images)
    rows = model.train().layers
    first = rows[0](images)
    inner = rows[2](rows[1](first))
    branch = rows[6](torch.cat([rows[4](images), first], 1))
    assert same_bits(raw.auxiliary, rows[7]([branch, inner]))


def test_fused_model_has_no_branch(pair):
    model, plain = pair
    table, tensors = dict(model.table), len(model.state_dict())
    images = torch.rand(1, 3, 64, 64)
    expected = plain.eval().fuse()(images)

    fused = copy.deepcopy(model).fuse().fuse()
    assert same_bits(fused(images), expected)
    assert fused.auxiliary_head is None
    assert fused.state_dict().keys() == plain.state_dict().keys()
    assert len(fused.info()) == len(fused.rows) == 4
    assert fused.table == plain.table
    assert (model.table, len(model.state_dict())) == (table, tensors)
    assert Detector(table).load_state_dict(model.state_dict())


@pytest.mark.slow
def test_counts_of_both_and_of_the_model_that_detects(pair):
    model, plain = pair
    assert count_parameters(model) > count_parameters(plain)
    auxiliary = sum(count_parameters(layer) for layer in model.auxiliary_layers)
    assert count_parameters(model) == count_parameters(plain) + auxiliary
    # On 64 px: 3x3 from 3 to 8 on 32 x 32 cells, from 16 to 8 on 16 x 16, and another head.
    rows = 2 * 9 * (3 * 8 * 32**2 + 16 * 8 * 16**2)
    without_head = {**plain.table, "head": [[[1, 2], 1, "DecoupledDetect", ["nc"]]]}
    head = count_gflops(plain.table, 64) - count_gflops(without_head, 64)
    decoupled = table_of("DecoupledDetect")
    both = count_gflops(resolve(decoupled, None, 3), 64) - count_gflops(without_head, 64)
    branch = count_gflops(model.table, 64) - count_gflops(plain.table, 64)
    assert branch == pytest.approx(both, rel=1e-12)
    assert branch > rows / 1e9 + head


def test_maps_are_freed_after_their_last_use_in_each_mode(pair):
    model, plain = pair
    assert model._freed_after == plain._freed_after == [[-1], [0], [], [1, 2]]
    assert model._freed_in_training == [[], [], [], [1], [-1], [0, 4], [5], [2, 6]]


# The loss


@pytest.mark.parametrize("main", HEADS)
@pytest.mark.parametrize("auxiliary", ["DecoupledDetect", "DistanceDetect"])
@torch.no_grad()
def test_loss_is_that_of_the_head_and_a_quarter_of_the_other(main, auxiliary):
    torch.manual_seed(0)
    model = build_model(table_of(main, auxiliary), 3).train()
    images = torch.rand(2, 3, 64, 64)
    raw = model(images)
    criterion = loss_of(model)
    totals: list[Tensor] = []

    def total(counts: Tensor) -> Tensor:
        totals.append(counts)
        return counts

    terms = criterion(raw, TARGETS, total)
    of_main = build_loss(model.head, LossGains())
    of_auxiliary = build_loss(model.auxiliary_head, LossGains())
    main_terms, auxiliary_terms = of_main(raw.main, TARGETS), of_auxiliary(raw.auxiliary, TARGETS)
    assert len(totals) == 1
    assert tuple(terms) == criterion.terms
    assert criterion.terms[: len(of_main.terms)] == of_main.terms
    for name, term in terms.items():
        expected = main_terms.get(name, 0) + 0.25 * auxiliary_terms.get(name, 0)
        assert term.item() == pytest.approx(float(expected), rel=1e-6)

    # The weights of the terms are those of the head, in each epoch: the loss of the two outputs has
    # its own, and that with L1 another one without mosaic.
    for epoch in (0, 1):
        for loss in (criterion, of_main, of_auxiliary):
            loss.start_epoch(epoch, 2, without_mosaic=epoch == 1)
        weighted = criterion.weighted_sum(terms).item()
        if main == "DualDistanceDetect":
            assert criterion.main.o2m_weight == of_main.o2m_weight
            continue
        expected = of_main.weighted_sum(main_terms)
        expected = expected + 0.25 * of_auxiliary.weighted_sum(auxiliary_terms)
        assert weighted == pytest.approx(expected.item(), rel=1e-6)

    # In validation it is that of the head alone.
    alone = model.eval()(images)
    terms, expected = criterion(alone, TARGETS), of_main(alone, TARGETS)
    assert terms == expected
    assert tuple(terms) == criterion.validation_terms


@pytest.mark.parametrize("boxes", [0, 3])
def test_counts_are_those_of_the_whole_batch(pair, boxes):
    """The shares of two processes with an image each add up to the terms of both images."""
    model, _ = pair
    raw = model.eval()(torch.rand(2, 3, 64, 64))
    raw = WithAuxiliary(raw, [level.flip(1) for level in raw])
    criterion = loss_of(model)
    whole = criterion(raw, TARGETS[:boxes])

    shares, counts = [], []
    for image in range(2):
        part = WithAuxiliary(*([level[image : image + 1] for level in levels] for levels in raw))
        own = TARGETS[:boxes][TARGETS[:boxes, 0] == image] * torch.tensor([0.0, 1, 1, 1, 1, 1])
        shares.append((part, own))
        counts.append(criterion.assign(part, own)[1])
    sums = [criterion(part, own, lambda _: counts[0] + counts[1]) for part, own in shares]
    for name, term in whole.items():
        assert sum(each[name] for each in sums).item() == pytest.approx(term.item(), rel=1e-5)


def test_every_parameter_learns(pair):
    model, _ = pair
    criterion = loss_of(model)
    raw = model.train()(torch.rand(2, 3, 64, 64))
    criterion.weighted_sum(criterion(raw, TARGETS)).backward()
    assert [name for name, value in model.named_parameters() if value.grad is None] == []


def test_data_parallel_gathers_both(pair, monkeypatch):
    """As torch does for GPUs; on a CPU its DataParallel calls the model itself."""

    def concatenated(device: int, dim: int, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim)

    monkeypatch.setattr(scatter_gather.Gather, "apply", concatenated)
    model, _ = pair
    images = torch.rand(2, 3, 64, 64)
    raw = model.train()(images)
    parts = [WithAuxiliary(*([x[i : i + 1] for x in levels] for levels in raw)) for i in range(2)]
    gathered = scatter_gather.gather(parts, 0)
    assert isinstance(gathered, WithAuxiliary)
    assert same_bits(gathered, raw)


# Weights of other models


def test_transfer_copies_both_heads(pair):
    model, _ = pair
    other = build_model(table_of(), 2)
    tensors = len(model.state_dict())
    copied = transfer(other, ["c", "new"], model, NAMES)
    assert copied == (tensors, tensors, 1, pytest.approx(1, abs=0.01))
    for ours, theirs in zip(other.heads, model.heads, strict=True):
        for level in range(2):
            weights = [head.branches.classes[level][2].weight for head in (ours, theirs)]
            assert weights[0][0].equal(weights[1][2])
    assert same_bits(other.layers[6].state_dict(), model.layers[6].state_dict())


def test_weights_without_a_branch_count_as_all_weights(pair):
    model, plain = pair
    copied = transfer(build_model(table_of(), 3), NAMES, plain, NAMES)
    assert (copied.tensors, copied.total) == (len(plain.state_dict()), len(model.state_dict()))
    assert (copied.classes, copied.share) == (3, 1.0)
    assert transfer(plain, NAMES, model, NAMES).share == 1.0


def test_anchors_of_both_heads_are_fitted():
    model = build_model(table_of("Detect", "Detect"), 3, anchors=2)
    sizes = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)).numpy() * 50 + 4
    model.fit_to_boxes(
        sizes, anchor_t=4.0, seed=0, placeholders=True, broadcast=lambda value: value
    )
    assert model.head.anchors_px.equal(model.auxiliary_head.anchors_px)
    assert Detector(model.table).auxiliary_head.anchors_px.equal(model.head.anchors_px)


# Errors


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda t: t["auxiliary"].pop(),
            "row 6 .*last row of `head` and of `auxiliary`, and only",
        ),
        (lambda t: t["head"].append([1, 1, "Conv", [8]]), "last row of `head` and of `auxiliary`"),
        (lambda t: t["auxiliary"][0].__setitem__(0, -1), "row 4 .*`from` names row 3, the head"),
        (lambda t: t["auxiliary"][-1].__setitem__(3, [4]), "a head with 3 classes"),
        (lambda t: t["auxiliary"][0].__setitem__(0, "image"), "row 4 .*`from` must be a row's ind"),
        (lambda t: t.__setitem__("auxiliary", {"a": 1}), "`auxiliary` must be a list of rows"),
        (
            lambda t: t["auxiliary"][-1].__setitem__(3, ["nc", 16, False, 1, 1, 1]),
            r"row 7 .* takes 1 to \d arguments",
        ),
    ],
)
def test_wrong_branches_are_refused(change, sentence):
    table = copy.deepcopy(table_of())
    change(table)
    with pytest.raises(ValueError, match=sentence):
        check_shapes(resolve(table, None, 3))


def test_empty_branch_is_none():
    model = build_model(table_of() | {"auxiliary": []}, 3)
    assert "auxiliary" not in model.table
    assert model.auxiliary_head is None
