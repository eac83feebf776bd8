"""torch.compile and the way back."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from utils.distributed.torch_compile import compile_model, compile_or_fall_back
from utils.distributed.world import World

CPU = torch.device("cpu")
AS_IT_IS = torch.autocast("cpu", torch.bfloat16, enabled=False)


class TwoLevels(nn.Module):
    """A model of normalised pixels, as a list of two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)
        self.conv.bias.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        map_of_all = self.conv(self.norm(images))
        return [map_of_all, -map_of_all]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], list[dict]]:
    """compiler(make) stands in for torch.compile: make(function) is what it compiles; its settings are noted."""
    asked: list[dict] = []

    def stand_in(make: Callable) -> list[dict]:
        def compile_(function: Callable, **settings: object) -> Callable:
            asked.append(settings)
            return make(function)

        monkeypatch.setattr(torch, "compile", compile_)
        return asked

    return stand_in


def negative(function: Callable) -> Callable:
    return lambda *given: [-level for level in function(*given)]


def test_the_call_of_a_model_is_replaced_and_nothing_else(compiler) -> None:
    asked, model, images = compiler(negative), TwoLevels(), torch.rand(2, 3, 4, 4)
    state, before = {name: value.clone() for name, value in model.state_dict().items()}, model(images)
    model.load_state_dict(state)
    said = compile_model(model, "reduce-overhead", images, AS_IT_IS, World(CPU))
    assert said == "--compile reduce-overhead: compiled in 0 s"
    assert asked == [{"mode": "reduce-overhead", "dynamic": False}]
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert list(model.state_dict()) == list(state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(ours.equal(-theirs) for ours, theirs in zip(model(images), before, strict=True))


def fails_forward(_: Callable) -> Callable:
    def fail(*_: object) -> None:
        raise RuntimeError("no compiler\nhere")

    return fail


class FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, level: Tensor) -> Tensor:
        return level.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> None:
        raise RuntimeError("no compiler\nhere")


@pytest.mark.parametrize(
    "make",
    [fails_forward, lambda function: lambda *given: [FailsBackward.apply(level) for level in function(*given)]],
    ids=["forward", "backward"],
)
def test_a_model_that_torch_cannot_compile_runs_as_before(compiler, make) -> None:
    compiler(make)
    model, images = TwoLevels(), torch.rand(2, 3, 4, 4)
    state, before = {name: value.clone() for name, value in model.state_dict().items()}, model(images)
    model.load_state_dict(state)
    said = compile_model(model, "default", images, AS_IT_IS, World(CPU))
    because = "RuntimeError: no compiler here"
    assert said == f"--compile default: torch cannot compile the model, which runs as before ({because})"
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert all(ours.equal(theirs) for ours, theirs in zip(model(images), before, strict=True))
    sum(level.sum() for level in model(images)).backward()


class Another(World):
    """One of two processes, of which the other cannot compile."""

    def all_gather_object(self, value: object) -> list[object]:
        return [value, "TritonMissing: no Triton"]


def test_where_one_process_cannot_none_does(compiler) -> None:
    compiler(negative)
    model, images = TwoLevels(), torch.rand(2, 3, 4, 4)
    before = model(images)
    said = compile_model(model, "default", images, AS_IT_IS, Another(CPU, size=2))
    assert said.endswith("runs as before (TritonMissing: no Triton)")
    assert all(ours.equal(theirs) for ours, theirs in zip(model(images), before, strict=True))


def test_several_devices_in_one_process_are_not_compiled() -> None:
    with pytest.raises(ValueError, match=r"^--compile: DataParallel cannot; use a process for each GPU"):
        compile_model(nn.Linear(2, 1), "default", torch.ones(1, 2), AS_IT_IS, World(CPU, devices=(CPU, CPU)))


def test_a_function_that_cannot_be_compiled_is_called_itself(compiler) -> None:
    said: list[str] = []
    compiler(fails_forward)
    call = compile_or_fall_back(torch.neg, said.append)
    assert [call(torch.ones(1)).item() for _ in range(2)] == [-1, -1]
    assert said == ["--compile: torch cannot compile neg (RuntimeError: no compiler here)"]


def test_a_compiled_function_is_called(compiler) -> None:
    said: list[str] = []
    compiler(lambda function: lambda *given: function(*given) * 2)
    assert compile_or_fall_back(torch.neg, said.append)(torch.ones(1)).item() == -2
    assert said == []
