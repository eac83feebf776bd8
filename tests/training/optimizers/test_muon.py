"""training/optimizers/muon.py: steps by hand and by another route, resuming, skipped
steps.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from models import build_model
from tests.support.small_run import state_with
from tests.training.optimizers.test_optimizer_state import (
    parameter_states,
    saved_and_loaded,
    train,
)
from training.optimizers import build_optimizer, check_state
from training.optimizers.muon import MATRICES, MuonAdamW, orthogonal_steps
from training.state import TrainState
from utils.distributed.world import World


def orthogonal(gradient: torch.Tensor) -> torch.Tensor:
    """The step of a gradient [out, ...] without the factor 0.2 sqrt(max(out, rest))."""
    (step,) = orthogonal_steps([gradient])
    return step / (0.2 * max(gradient.flatten(1).shape) ** 0.5)


@pytest.mark.parametrize("shape", [(3, 3), (4, 9), (9, 4), (64, 27), (1, 5), (5, 1)])
def test_singular_values_become_nearly_one(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    matrix = (
        left @ torch.diag(values.clamp(min=0.1 * values.max())) @ right
    )  # a condition number of at most 10
    found = orthogonal(matrix)
    spread = torch.linalg.svdvals(found)
    assert spread.min() > 0.6
    assert spread.max() < 1.3
    # The same singular vectors: found = left diag(s) right, so that left^T found right^T is
    # diagonal.
    rotated = left.T @ found @ right.T
    assert (rotated - rotated.diag().diag()).abs().max() < 1e-3


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (16, 300)])
def test_iteration_equals_its_definition(shape):
    """X <- (a + b S + c S S) X, S = X X^T, on X itself, from the side that is shorter or the other:
    all are equal.
    """
    given = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for matrices in (given, given.mT):
        x = matrices / matrices.norm(dim=(-2, -1), keepdim=True)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
        torch.testing.assert_close(orthogonal(matrices), x, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(orthogonal(matrices.float()), x.float(), rtol=1e-3, atol=1e-4)


def test_gradients_of_many_shapes_and_memory_orders_together_equal_each_alone():
    """Some have one shape, others only the shorter side in common."""
    random = torch.Generator().manual_seed(0)
    shapes = [(6, 3, 3, 3), (6, 20, 1, 1), (6, 3, 3, 3), (4, 4, 1, 1), (40, 6), (1, 6, 1, 1)]
    shapes += [(20, 6, 1, 1), (40, 2, 3, 3)]  # taller than wide
    gradients = [torch.randn(shape, generator=random).double() for shape in shapes]
    gradients += [
        gradient.to(memory_format=torch.channels_last)
        for gradient in gradients
        if gradient.dim() == 4
    ]
    found = orthogonal_steps(gradients)
    for gradient, step in zip(gradients, found, strict=True):
        (alone,) = orthogonal_steps([gradient.contiguous()])
        torch.testing.assert_close(step, alone, rtol=1e-6, atol=1e-9)
        assert (step.shape, step.dtype) == (gradient.shape, gradient.dtype)
        strides = zip(step.shape, step.stride(), gradient.stride(), strict=True)
        assert all(own == other for size, own, other in strides if size > 1)
    assert orthogonal_steps([]) == []


def test_zero_and_huge_matrices():
    assert orthogonal(torch.zeros(3, 4)).equal(torch.zeros(3, 4))
    matrix = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(orthogonal(matrix * 1e12), orthogonal(matrix), rtol=1e-4, atol=1e-5)
    assert orthogonal(matrix.double()).dtype == torch.float64
    assert orthogonal(matrix.half()).dtype == torch.float16


def test_one_value_by_hand():
    """A matrix of one value: x = 1 after the norm, then x (a + b x^2 + c x^4) five times.

    1 -> 0.7010 (3.4445 - 4.7750 + 2.0315), -> 1.1118, -> 0.7131, -> 1.0999, -> 0.7010 + ...; with
    momentum 0.9 the first step's buffer is 0.1 g, the Nesterov gradient 0.19 g: the same sign, and
    the size does not matter.
    """
    value = 1.0
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    weight = nn.Parameter(torch.full((1, 1, 1, 1), 2.0))
    weight.grad = torch.full_like(weight, -7.0)
    MuonAdamW(
        [{"params": [weight], MATRICES: True}], lr=0.1, betas=(0.9, 0.999), weight_decay=0.5
    ).step()
    assert weight.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5) + 0.1 * 0.2 * value, rel=1e-5)


def test_steps_by_another_route():
    """The definition with explicit momentum, and AdamW alone for the other group."""
    torch.manual_seed(0)
    weight, bias = nn.Parameter(torch.randn(6, 3, 2, 2)), nn.Parameter(torch.randn(6))
    alone, expected, buffer = copy.deepcopy(bias), weight.detach().clone(), torch.zeros(6, 12)
    both = MuonAdamW(
        [
            {"params": [weight], MATRICES: True, "weight_decay": 0.1},
            {"params": [bias], MATRICES: False},
        ],
        lr=0.01,
        betas=(0.8, 0.999),
    )
    adamw = torch.optim.AdamW([alone], lr=0.01, betas=(0.8, 0.999))
    for _ in range(4):
        weight.grad, bias.grad = torch.randn_like(weight), torch.randn_like(bias)
        gradient, alone.grad = weight.grad.view(6, 12), bias.grad.clone()
        buffer = 0.8 * buffer + 0.2 * gradient
        expected = expected * (1 - 0.01 * 0.1)
        expected -= (0.01 * 0.2 * 12**0.5 * orthogonal(0.8 * buffer + 0.2 * gradient)).view_as(
            expected
        )
        both.step()
        adamw.step()
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-6)
        assert bias.equal(alone)
    assert [sorted(both.state[parameter]) for parameter in (weight, bias)] == [
        ["momentum_buffer", "step"],
        ["exp_avg", "exp_avg_sq", "step"],
    ]
    assert len(both.param_groups) == 2


def test_matrices_are_convolutions_that_a_normalization_follows():
    model = build_model("yolo11n", 3)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, "Muon", lr=0.1, momentum=0.9, weight_decay=5e-4)
    groups = {group["name"]: group for group in optimizer.param_groups}
    assert list(groups) == ["bias", "norm", "weight", "matrix"]
    assert {name: group["weight_decay"] for name, group in groups.items()} == {
        "bias": 0, "norm": 0, "weight": 5e-4, "matrix": 5e-4,
    }  # fmt: skip
    others = {names[id(parameter)] for parameter in groups["weight"]["params"]}
    assert {
        "layers.23.branches.sides.0.2.weight",
        "layers.23.branches.classes.0.0.dconv.conv.weight",
    } <= others
    assert all(".dconv." in name or ".pe." in name or name.endswith(".2.weight") for name in others)
    matrices = {names[id(parameter)] for parameter in groups["matrix"]["params"]}
    assert {"layers.0.conv.weight", "layers.23.branches.classes.0.0.pconv.conv.weight"} <= matrices
    assert len(others) + len(matrices) == sum(
        parameter.ndim == 4 for parameter in model.parameters()
    )


def test_flag_on_the_device_leaves_everything_as_it_is():
    weight = nn.Parameter(torch.randn(3, 2, 1, 1, generator=torch.Generator().manual_seed(0)))
    optimizer = MuonAdamW([{"params": [weight], MATRICES: True}], lr=0.1)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    before, buffer = weight.detach().clone(), optimizer.state[weight]["momentum_buffer"].clone()
    weight.grad = torch.full_like(weight, torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert weight.equal(before)
    assert optimizer.state[weight]["momentum_buffer"].equal(buffer)
    optimizer.found_inf = torch.zeros(())
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert not weight.equal(before)


def state_of() -> TrainState[nn.Sequential]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(16, 2))
    return state_with(
        model,
        build_optimizer(model, "Muon", lr=0.01, momentum=0.9, weight_decay=5e-4),
        World(torch.device("cpu")),
    )


@pytest.mark.parametrize("before", [0, 1, 3])
def test_resumed_run_continues_with_same_bits(tmp_path: Path, before: int) -> None:
    straight, stopped, resumed = state_of(), state_of(), state_of()
    train(straight, 0, 5)
    train(stopped, 0, before)
    resumed.load(saved_and_loaded(stopped, tmp_path))
    train(resumed, before, 5)
    for value, other in zip(
        straight.replica.state_dict().values(), resumed.replica.state_dict().values(), strict=True
    ):
        assert value.equal(other)
    for own, others in zip(parameter_states(straight), parameter_states(resumed), strict=True):
        assert all(torch.equal(own[key], others[key]) for key in own.keys() | others.keys())


def test_state_of_another_optimizer_is_refused() -> None:
    state = state_of()
    train(state, 0, 1)
    check_state(state.optimizer)
    convolution = next(iter(state.replica.model.parameters()))
    state.optimizer.state[convolution] = {"exp_avg": torch.zeros(4, 3, 3, 3)}
    with pytest.raises(ValueError, match="the optimizer's state is of another model or optimizer"):
        check_state(state.optimizer)
