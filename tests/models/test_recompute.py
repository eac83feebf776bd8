"""Training that recomputes activations is bit-identical to training that keeps them, and saves less
memory.
"""

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import models.detector
from models import build_model
from models.blocks.convolutions import Conv
from models.detector import Detector
from models.recompute import preserve_batchnorm_statistics, recomputed
from training.averages.ema import EMA

SIDE = 64


@pytest.fixture
def model_pair(tiny_model) -> tuple[Detector, Detector]:
    return pair_of(tiny_model)


def pair_of(name: str) -> tuple[Detector, Detector]:
    """A model that keeps activations and a copy that recomputes them, both in training mode."""
    torch.manual_seed(0)
    keeps = build_model(name, 3).train()
    recomputes = copy.deepcopy(keeps)
    recomputes.recompute = True
    return keeps, recomputes


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
        if (value is None) != (theirs[name] is None)
        or (value is not None and not value.equal(theirs[name]))
    ]
    assert different == []


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "frozen", [(), (0, 1, 2), (5,), range(24)], ids=["all", "no prefix", "no row 5", "head only"]
)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_recomputed_training_steps_are_bit_identical(model_pair, precision, frozen):
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in model_pair]
    for model in model_pair:
        freeze(model, frozen)
    keeps, recomputes = model_pair
    for step in range(3):
        for model, optimizer in zip(model_pair, optimizers, strict=True):
            optimizer.zero_grad()
            backward(model, images(seed=step), precision)
            optimizer.step()
        assert_same_bits(gradients(keeps), gradients(recomputes))
        assert_same_bits(
            keeps.state_dict(), recomputes.state_dict()
        )  # with running statistics and batch counts
        norms = [m for m in recomputes.modules() if isinstance(m, _BatchNorm) and m.training]
        counts = {norm.num_batches_tracked.item() for norm in norms}
        assert counts == ({step + 1} if len(frozen) < 24 else set())


def test_recomputed_float64_gradients_are_bit_identical(model_pair):
    keeps, recomputes = (model.double() for model in model_pair)
    for model in (keeps, recomputes):
        backward(model, images().double())
    assert_same_bits(gradients(keeps), gradients(recomputes))
    assert_same_bits(keeps.state_dict(), recomputes.state_dict())


def test_recompute_supports_two_forward_passes_before_backward(model_pair):
    for model in model_pair:
        maps = [*model(images(seed=1)), *model(images(seed=2))]
        sum(raw.square().mean() for raw in maps).backward()
    keeps, recomputes = model_pair
    assert_same_bits(gradients(keeps), gradients(recomputes))
    assert_same_bits(keeps.state_dict(), recomputes.state_dict())


def test_recompute_after_forward_without_backward_is_bit_identical(model_pair):
    for model in model_pair:
        model(images(seed=1))  # as in a skipped step: no backward pass follows
        backward(model, images(seed=2))
    keeps, recomputes = model_pair
    assert_same_bits(gradients(keeps), gradients(recomputes))
    assert_same_bits(keeps.state_dict(), recomputes.state_dict())


def test_recompute_accepts_empty_batch(model_pair):
    for model in model_pair:
        backward(model, images(0))
    keeps, recomputes = model_pair
    assert [tuple(raw.shape) for raw in recomputes(images(0))] == [
        (0, 3, side, side, 8) for side in (8, 4, 2)
    ]
    assert [(name, value is None) for name, value in gradients(keeps).items()] == [
        (name, value is None) for name, value in gradients(recomputes).items()
    ]


def saved_bytes(model: Detector, batch: Tensor) -> int:
    """Return the bytes that a forward pass saves for the backward pass, without parameters;
    storages counted once.
    """
    saved: dict[int, Tensor] = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in parameters:
            saved[address] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        maps = model(batch)
    assert maps[0].requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_recompute_saves_fewer_activation_bytes():
    """The tiny model has too few layers in a row: it keeps 0.35."""
    keeps, recomputes = pair_of("yolov5n")
    assert 0 < saved_bytes(recomputes, images()) < 0.3 * saved_bytes(keeps, images())


def test_only_single_input_rows_with_parameters_are_recomputed(model_pair, monkeypatch):
    seen = []

    def record(layer: nn.Module, x: Tensor) -> Tensor:
        seen.append(layer)
        return layer(x)

    monkeypatch.setattr(models.detector, "recomputed", record)
    keeps, recomputes = model_pair
    keeps(images())
    assert seen == []
    recomputes(images())
    # 11 and 15 are Upsample, 12, 16, 19 and 22 are Concat, 24 is the head
    assert [list(recomputes.layers).index(layer) for layer in seen] == [
        *range(11),
        13,
        14,
        17,
        18,
        20,
        21,
        23,
    ]


def fail_on_recompute(layer: nn.Module, x: Tensor) -> Tensor:
    raise RuntimeError("recomputed although no backward pass can follow")


def test_evaluation_does_not_recompute(model_pair, monkeypatch):
    monkeypatch.setattr(models.detector, "recomputed", fail_on_recompute)
    keeps, recomputes = model_pair
    with torch.no_grad():
        for one, other in zip(
            keeps(images()), recomputes(images()), strict=True
        ):  # training mode updates statistics
            assert one.equal(other)
    assert_same_bits(keeps.state_dict(), recomputes.state_dict())
    for one, other in zip(keeps.eval()(images()), recomputes.eval()(images()), strict=True):
        assert one.equal(other)
    with torch.inference_mode():
        assert recomputes(images())[0].equal(keeps(images())[0])


def test_copied_models_also_recompute(model_pair):
    keeps, recomputes = model_pair
    for model in model_pair:
        backward(model, images())
    average = EMA(recomputes).model
    assert average(images())[0].equal(copy.deepcopy(keeps).eval()(images())[0])
    twin = copy.deepcopy(recomputes)
    assert (keeps.recompute, twin.recompute) == (False, True)
    keeps.zero_grad()  # deepcopy does not copy gradients
    for model in (keeps, twin):
        backward(model, images(seed=1))
    assert_same_bits(gradients(keeps), gradients(twin))
    assert_same_bits(keeps.state_dict(), twin.state_dict())
    assert recomputes.layers[0].bn.num_batches_tracked == 1  # the copy has its own modules


# ---------------------------------------------------------------------- statistics


def test_batchnorm_statistics_are_restored_after_block():
    layer = nn.Sequential(Conv(3, 4), Conv(4, 4)).train()
    layer[1].bn.eval()
    before = dict(layer.named_buffers())
    bits = {name: value.clone() for name, value in before.items()}
    with preserve_batchnorm_statistics(layer):
        inside = dict(layer.named_buffers())
        layer(images())
    assert dict(layer.named_buffers()) == before  # the same tensors
    assert_same_bits(before, bits)
    assert not inside["0.bn.running_mean"].equal(bits["0.bn.running_mean"])
    assert inside["0.bn.num_batches_tracked"] == 1
    assert inside["1.bn.running_mean"] is before["1.bn.running_mean"]  # frozen: it does not change


def test_batchnorm_statistics_are_restored_after_error():
    layer = Conv(3, 4).train()
    before = dict(layer.named_buffers())
    with pytest.raises(RuntimeError, match="expected input"), preserve_batchnorm_statistics(layer):
        layer(torch.zeros(1, 5, 4, 4))
    assert dict(layer.named_buffers()) == before


def test_recompute_accepts_norm_without_running_statistics():
    layer = nn.BatchNorm2d(3, track_running_stats=False)
    x = images().requires_grad_()
    recomputed(layer, x).square().sum().backward()
    assert x.grad is not None
    assert layer.running_mean is None
