"""torch.compile and the fallback."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.distributed.replica import DistributedReplica
from utils.distributed.torch_compile import (
    WITHOUT_GRAPHS,
    compile_model,
    compile_or_fall_back,
    mode_without_reuse,
)
from utils.distributed.world import World

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NO_AUTOCAST = torch.autocast("cpu", torch.bfloat16, enabled=False)


class TwoLevels(nn.Module):
    """A model that returns a list of two maps of normalized pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)
        self.conv.bias.requires_grad_(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        map_of_all = self.conv(self.norm(images))
        return [map_of_all, -map_of_all]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable], list[dict]]:
    """compiler(make) replaces torch.compile by make(function) and returns the list of settings of
    each call.
    """
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
    state, before = (
        {name: value.clone() for name, value in model.state_dict().items()},
        model(images),
    )
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
    [
        fails_forward,
        lambda function: lambda *given: [FailsBackward.apply(level) for level in function(*given)],
    ],
    ids=["forward", "backward"],
)
def test_model_that_cannot_be_compiled_runs_uncompiled(compiler, make) -> None:
    compiler(make)
    model, images = TwoLevels(), torch.rand(2, 3, 4, 4)
    state, before = (
        {name: value.clone() for name, value in model.state_dict().items()},
        model(images),
    )
    model.load_state_dict(state)
    message = compile_model(model, "default", images, NO_AUTOCAST, World(CPU))
    because = "RuntimeError: no compiler here"
    assert (
        message
        == f"--compile default: torch cannot compile the model, so it runs uncompiled ({because})"
    )
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
    with pytest.raises(
        ValueError, match=r"^--compile: not possible with DataParallel; use one process per GPU"
    ):
        compile_model(
            nn.Linear(2, 1),
            "default",
            torch.ones(1, 2),
            NO_AUTOCAST,
            World(CPU, devices=(CPU, CPU)),
        )


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


# ---------------------------------------------------------------------- CUDA graphs


@pytest.mark.parametrize(
    ("mode", "batches", "device", "chosen"),
    [
        ("reduce-overhead", 4, GPU, "default"),
        ("max-autotune", 2, GPU, "max-autotune-no-cudagraphs"),
        ("default", 4, GPU, "default"),
        ("reduce-overhead", 1, GPU, "reduce-overhead"),
        ("max-autotune", 1, GPU, "max-autotune"),
        ("reduce-overhead", 4, CPU, "reduce-overhead"),  # a CPU has no CUDA graphs
    ],
)
def test_mode_has_no_cuda_graphs_where_gradients_are_accumulated(
    mode: str, batches: int, device: torch.device, chosen: str
) -> None:
    lines: list[str] = []
    assert mode_without_reuse(mode, batches, device, lines.append) == chosen
    assert len(lines) == (chosen != mode)
    for line in lines:
        assert line.startswith(
            f"--compile {mode}: without CUDA graphs, because the gradients of {batches} batches are"
        )
        assert f"the mode is {chosen};" in line
    assert chosen in torch._inductor.list_mode_options() or chosen == "default"


def test_modes_without_cuda_graphs_differ_from_theirs_only_there() -> None:
    options = torch._inductor.list_mode_options()
    for with_graphs, without in WITHOUT_GRAPHS.items():
        assert options[with_graphs].pop("triton.cudagraphs")
        assert options[with_graphs] == options.get(without, {})


# ---------------------------------------------------------------------- DistributedDataParallel


class ThreeBuckets(nn.Module):
    """Layers of 1.2 MB each: the first bucket of DistributedDataParallel takes 1 MB, so gradients
    come in parts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *[nn.Conv2d(256, 1200, 1), nn.Conv2d(1200, 256, 1), nn.Conv2d(256, 1200, 1)]
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        return [self.layers(images)]


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    torch._dynamo.reset()


@pytest.mark.parametrize("accumulates", [False, True])
def test_graph_is_split_where_the_gradients_of_a_bucket_are_complete(
    group_of_one, monkeypatch, accumulates
) -> None:
    """So that DistributedDataParallel can all-reduce them while the rest of the backward pass
    runs.
    """
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, **_: real(call, backend=counter, dynamic=False)
    )
    model, images = ThreeBuckets(), torch.rand(1, 256, 2, 2)
    replica = DistributedReplica(model, World(CPU), accumulates)
    replica.warm_up(images)
    expected = [level.sum() for level in replica(images)]
    sum(expected).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    message = compile_model(
        model, "default", images, NO_AUTOCAST, World(CPU), forward=replica.without_exchange
    )
    assert message.startswith("--compile default: compiled in")
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in model.parameters()
    )
    parts = counter.frame_count
    assert parts >= 2

    # Training uses these graphs, and compiles nothing more.
    with replica.gradients(last=True):
        sum(level.sum() for level in replica(images)).backward()
    assert counter.frame_count == parts
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
