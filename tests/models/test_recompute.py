"""Training that recomputes activations against training that keeps them: the same bits, in less memory."""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import models.detector
from models import build_model
from models.blocks import Conv
from models.detector import Detector
from models.recompute import recomputed, statistics_set_aside
from utils.training.ema import EMA

SIDE = 64


@pytest.fixture
def pair(tiny_model) -> tuple[Detector, Detector]:
    """A model that keeps activations and its equal that recomputes them, both in training mode."""
    torch.manual_seed(0)
    kept = build_model(tiny_model, 3).train()
    again = copy.deepcopy(kept)
    again.recompute = True
    return kept, again


def images(count: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def backward(model: Detector, batch: Tensor, precision: torch.dtype = torch.float32) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        maps = model(batch)
    sum(raw.square().mean() for raw in maps).backward()


def freeze(model: Detector, rows: Iterable[int]) -> None:
    for row in rows:
        model.layers[row].requires_grad_(False).eval()


def assert_same_bits(ours: dict[str, Tensor | None], theirs: dict[str, Tensor | None]) -> None:
    assert ours.keys() == theirs.keys()
    different = [
        name
        for name, value in ours.items()
        if (value is None) != (theirs[name] is None) or (value is not None and not value.equal(theirs[name]))
    ]
    assert different == []


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("frozen", [(), (0, 1, 2), (5,), range(24)], ids=["all", "no prefix", "no row 5", "head only"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_three_steps_to_the_bit(pair, precision, frozen):
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in pair]
    for model in pair:
        freeze(model, frozen)
    kept, again = pair
    for step in range(3):
        for model, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            backward(model, images(seed=step), precision)
            optimizer.step()
        assert_same_bits(gradients(kept), gradients(again))
        assert_same_bits(kept.state_dict(), again.state_dict())  # running statistics and counts of batches too
        counted = {m.num_batches_tracked.item() for m in again.modules() if isinstance(m, _BatchNorm) and m.training}
        assert counted == ({step + 1} if len(frozen) < 24 else set())


def test_float64_to_the_bit(pair):
    kept, again = (model.double() for model in pair)
    for model in (kept, again):
        backward(model, images().double())
    assert_same_bits(gradients(kept), gradients(again))
    assert_same_bits(kept.state_dict(), again.state_dict())


def test_two_forward_passes_before_the_backward_pass(pair):
    for model in pair:
        maps = [*model(images(seed=1)), *model(images(seed=2))]
        sum(raw.square().mean() for raw in maps).backward()
    kept, again = pair
    assert_same_bits(gradients(kept), gradients(again))
    assert_same_bits(kept.state_dict(), again.state_dict())


def test_a_lost_graph_leaves_no_trace(pair):
    for model in pair:
        model(images(seed=1))  # a step that is skipped: no backward pass follows
        backward(model, images(seed=2))
    kept, again = pair
    assert_same_bits(gradients(kept), gradients(again))
    assert_same_bits(kept.state_dict(), again.state_dict())


def test_empty_batch(pair):
    for model in pair:
        backward(model, images(0))
    kept, again = pair
    assert [tuple(raw.shape) for raw in again(images(0))] == [(0, 3, side, side, 8) for side in (8, 4, 2)]
    assert [(name, value is None) for name, value in gradients(kept).items()] == [
        (name, value is None) for name, value in gradients(again).items()
    ]


def saved_bytes(model: Detector, batch: Tensor) -> int:
    """What a forward pass keeps for the backward pass, parameters apart; storages counted once."""
    held: dict[int, Tensor] = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters:
            held[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        maps = model(batch)
    assert maps[0].requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def test_less_is_saved(pair):
    kept, again = pair
    assert 0 < saved_bytes(again, images()) < 0.3 * saved_bytes(kept, images())


def test_every_row_of_one_input_with_parameters_but_the_head(pair, monkeypatch):
    seen = []

    def note(layer: nn.Module, x: Tensor) -> Tensor:
        seen.append(layer)
        return layer(x)

    monkeypatch.setattr(models.detector, "recomputed", note)
    kept, again = pair
    kept(images())
    assert seen == []
    again(images())
    # 11 and 15 enlarge, 12, 16, 19 and 22 join, 24 is the head
    assert [list(again.layers).index(layer) for layer in seen] == [*range(11), 13, 14, 17, 18, 20, 21, 23]


def refuse(layer: nn.Module, x: Tensor) -> Tensor:
    raise RuntimeError("recomputed where no backward pass can follow")


def test_evaluation_is_untouched(pair, monkeypatch):
    monkeypatch.setattr(models.detector, "recomputed", refuse)
    kept, again = pair
    with torch.no_grad():
        for one, other in zip(kept(images()), again(images()), strict=True):  # training mode: statistics move
            assert one.equal(other)
    assert_same_bits(kept.state_dict(), again.state_dict())
    for one, other in zip(kept.eval()(images()), again.eval()(images()), strict=True):
        assert one.equal(other)
    with torch.inference_mode():
        assert again(images())[0].equal(kept(images())[0])


def test_copies_recompute_too(pair):
    kept, again = pair
    for model in pair:
        backward(model, images())
    average = EMA(again).model
    assert average(images())[0].equal(copy.deepcopy(kept).eval()(images())[0])
    twin = copy.deepcopy(again)
    assert (kept.recompute, twin.recompute) == (False, True)
    kept.zero_grad()  # gradients are not copied
    for model in (kept, twin):
        backward(model, images(seed=1))
    assert_same_bits(gradients(kept), gradients(twin))
    assert_same_bits(kept.state_dict(), twin.state_dict())
    assert again.layers[0].bn.num_batches_tracked == 1  # the copy has modules of its own


# ---------------------------------------------------------------------- statistics


def test_statistics_are_set_aside_and_come_back():
    layer = nn.Sequential(Conv(3, 4), Conv(4, 4)).train()
    layer[1].bn.eval()
    before = dict(layer.named_buffers())
    bits = {name: value.clone() for name, value in before.items()}
    with statistics_set_aside(layer):
        inside = dict(layer.named_buffers())
        layer(images())
    assert dict(layer.named_buffers()) == before  # the same tensors
    assert_same_bits(before, bits)
    assert not inside["0.bn.running_mean"].equal(bits["0.bn.running_mean"])
    assert inside["0.bn.num_batches_tracked"] == 1
    assert inside["1.bn.running_mean"] is before["1.bn.running_mean"]  # frozen: nothing to keep it from


def test_statistics_come_back_after_an_error():
    layer = Conv(3, 4).train()
    before = dict(layer.named_buffers())
    with pytest.raises(RuntimeError, match="expected input"), statistics_set_aside(layer):
        layer(torch.zeros(1, 5, 4, 4))
    assert dict(layer.named_buffers()) == before


def test_a_norm_without_statistics():
    layer = nn.BatchNorm2d(3, track_running_stats=False)
    x = images().requires_grad_()
    recomputed(layer, x).square().sum().backward()
    assert x.grad is not None
    assert layer.running_mean is None
