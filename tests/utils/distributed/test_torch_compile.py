"""torch.compile and the fallback."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from utils.distributed.torch_compile import compile_model, compile_or_fall_back
from utils.distributed.world import World

CPU = torch.device("cpu")
NO_AUTOCAST = torch.autocast("cpu", torch.bfloat16, enabled=False)


class TwoLevels(nn.Module):
    """A model that returns a list of two maps of normalised pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)
        self.conv.bias.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        map_of_all = self.conv(self.norm(images))
        return [map_of_all, -map_of_all]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], list[dict]]:
    """compiler(make) replaces torch.compile by make(function) and returns the list of settings of each call."""
    calls: list[dict] = []

    def replace(make: Callable) -> list[dict]:
        def compile_(function: Callable, **settings: object) -> Callable:
            calls.append(settings)
            return make(function)

        monkeypatch.setattr(torch, "compile", compile_)
        return calls

    return replace


def negate_outputs(function: Callable) -> Callable:
    return lambda *arguments: [-level for level in function(*arguments)]


def test_compile_model_replaces_only_the_call(compiler) -> None:
    calls, model, images = compiler(negate_outputs), TwoLevels(), torch.rand(2, 3, 4, 4)
    state, before = {name: value.clone() for name, value in model.state_dict().items()}, model(images)
    model.load_state_dict(state)
    message = compile_model(model, "reduce-overhead", images, NO_AUTOCAST, World(CPU))
    assert message == "--compile reduce-overhead: compiled in 0 s"
    assert calls == [{"mode": "reduce-overhead", "dynamic": False}]
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
def test_model_that_cannot_be_compiled_runs_uncompiled(compiler, make) -> None:
    compiler(make)
    model, images = TwoLevels(), torch.rand(2, 3, 4, 4)
    state, before = {name: value.clone() for name, value in model.state_dict().items()}, model(images)
    model.load_state_dict(state)
    message = compile_model(model, "default", images, NO_AUTOCAST, World(CPU))
    because = "RuntimeError: no compiler here"
    assert message == f"--compile default: torch cannot compile the model, so it runs uncompiled ({because})"
    assert all(value.equal(state[name]) for name, value in model.state_dict().items())
    assert all(ours.equal(theirs) for ours, theirs in zip(model(images), before, strict=True))
    sum(level.sum() for level in model(images)).backward()


class PeerCannotCompile(World):
    """The world of one of two processes; the other one cannot compile."""

    def all_gather_object(self, value: object) -> list[object]:
        return [value, "TritonMissing: no Triton"]


def test_no_process_compiles_if_one_cannot(compiler) -> None:
    compiler(negate_outputs)
    model, images = TwoLevels(), torch.rand(2, 3, 4, 4)
    before = model(images)
    message = compile_model(model, "default", images, NO_AUTOCAST, PeerCannotCompile(CPU, size=2))
    assert message.endswith("so it runs uncompiled (TritonMissing: no Triton)")
    assert all(ours.equal(theirs) for ours, theirs in zip(model(images), before, strict=True))


def test_compile_with_several_devices_in_one_process_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^--compile: not possible with DataParallel; use one process per GPU"):
        compile_model(nn.Linear(2, 1), "default", torch.ones(1, 2), NO_AUTOCAST, World(CPU, devices=(CPU, CPU)))


def test_function_that_cannot_be_compiled_runs_uncompiled(compiler) -> None:
    message: list[str] = []
    compiler(fails_forward)
    call = compile_or_fall_back(torch.neg, message.append)
    assert [call(torch.ones(1)).item() for _ in range(2)] == [-1, -1]
    assert message == ["--compile: torch cannot compile neg (RuntimeError: no compiler here)"]


def test_compiled_function_is_used(compiler) -> None:
    message: list[str] = []
    compiler(lambda function: lambda *given: function(*given) * 2)
    assert compile_or_fall_back(torch.neg, message.append)(torch.ones(1)).item() == -2
    assert message == []
