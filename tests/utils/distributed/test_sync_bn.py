"""Synchronized batch normalization, compared with one float64 BatchNorm2d that gets all images."""

import contextlib
import copy
import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from benchmarks.steps.operations import host_waits, roots
from models.blocks.convolutions import Conv
from tests.support.fused_batch_norm import slow_kernels
from tests.support.launching import fork_server
from tests.support.meta_device import OneDevice
from utils.distributed import sync_bn
from utils.distributed.sync_bn import (
    NormalizeByAll,
    SyncBatchNorm2d,
    global_moments,
    local_moments,
    merge_moments,
    synchronize_batch_norm,
)

CHANNELS, SIDE, STEPS = 6, 7, 3
BFLOAT16_ROUNDING = 2.0**-8  # the largest relative error of rounding to bfloat16


@dataclass(frozen=True)
class Case:
    """The number of images of each process, and the settings of the layer."""

    shards: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    offset: float = 0.0  # added to the images
    momentum: float | None = 0.03
    affine: bool = True
    track: bool = True
    channels_last: bool = False
    autocast: bool = False
    frozen_input: bool = False
    fused: bool = False  # by slow versions of torch's kernels for CUDA

    def layer(self) -> nn.BatchNorm2d:
        """A BatchNorm2d with different weights per channel, in the dtype that torch needs for such
        images.
        """
        torch.manual_seed(0)
        dtype = torch.float32 if self.autocast else self.dtype
        layer = nn.BatchNorm2d(CHANNELS, 1e-3, self.momentum, self.affine, self.track, dtype=dtype)
        if self.affine:
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias)
        return layer

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, gradient of the output) of every step, over all processes."""
        generator = torch.Generator().manual_seed(1)
        spread = torch.linspace(0.5, 3, CHANNELS).view(1, -1, 1, 1)
        for _ in range(STEPS):
            x, dy = torch.randn(
                2, sum(self.shards), CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64
            )
            yield (x * spread + self.offset).to(self.dtype), dy.to(self.dtype)

    @property
    def tolerance(self) -> float:
        """The allowed error against float64, relative to the largest value: about 10 times the
        observed error.

        A mean of 100 costs digits of the images. bfloat16 weights and statistics are rounded at
        every step.
        """
        if self.dtype == torch.bfloat16:
            return BFLOAT16_ROUNDING * (1 if self.autocast else STEPS)
        fine, coarse = (1e-13, 1e-12) if self.dtype == torch.float64 else (3e-6, 3e-5)
        return coarse if self.offset else fine

    def share(self, rank: int) -> slice:
        return slice(sum(self.shards[:rank]), sum(self.shards[: rank + 1]))


TWO = {
    "4/4 fp32": Case((4, 4), torch.float32),
    "3/5 fp32": Case((3, 5), torch.float32),
    "0/8 fp32": Case((0, 8), torch.float32),
    "4/4 fp32 mean 100": Case((4, 4), torch.float32, offset=100),
    "3/5 fp32 mean 100": Case((3, 5), torch.float32, offset=100),
    "0/8 fp32 mean 100": Case((0, 8), torch.float32, offset=100),
    "4/4 fp64": Case((4, 4)),
    "3/5 fp64": Case((3, 5)),
    "8/0 fp64": Case((8, 0)),
    "3/5 fp32 channels_last": Case((3, 5), torch.float32, channels_last=True),
    "0/8 fp64 channels_last": Case((0, 8), channels_last=True),
    "3/5 bf16 autocast": Case((3, 5), torch.bfloat16, autocast=True),
    "0/8 bf16 autocast channels_last": Case(
        (0, 8), torch.bfloat16, autocast=True, channels_last=True
    ),
    "3/5 bf16 weights": Case((3, 5), torch.bfloat16),
    "3/5 no affine": Case((3, 5), affine=False),
    "0/8 cumulative": Case((0, 8), momentum=None),
    "3/5 cumulative": Case((3, 5), momentum=None),
    "3/5 momentum 1": Case((3, 5), momentum=1.0),
    "3/5 untracked": Case((3, 5), track=False),
    "3/5 frozen input": Case((3, 5), frozen_input=True),
    "1/1": Case((1, 1)),
}
THREE = {
    "3/1/4": Case((3, 1, 4)),
    "0/5/0": Case((0, 5, 0)),
    "2/2/2 mean 100": Case((2, 2, 2), offset=100),
    "1/0/6 cumulative": Case((1, 0, 6), momentum=None),
}
FUSED_TWO = {f"{name} fused": replace(case, fused=True) for name, case in TWO.items()}
FUSED_THREE = {f"{name} fused": replace(case, fused=True) for name, case in THREE.items()}


def synchronized(case: Case) -> nn.Module:
    return synchronize_batch_norm(case.layer())


def train(
    layer: nn.Module, case: Case, share: slice = slice(None), dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Run some forward and backward passes on a share of the images; returns outputs, gradients and
    buffers.
    """
    with slow_kernels() if case.fused else contextlib.nullcontext():
        return train_by_kernels(layer, case, share, dtype)


def train_by_kernels(
    layer: nn.Module, case: Case, share: slice, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    seen = {"y": [], "dx": []}
    form = torch.channels_last if case.channels_last else torch.contiguous_format
    for batch, gradient in case.batches():
        x = (
            batch[share]
            .to(dtype or case.dtype, memory_format=form)
            .requires_grad_(not case.frozen_input)
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            y = layer(x)
        y.backward(gradient[share])
        seen["y"].append(y.detach())
        seen["dx"].append(x.detach() if x.grad is None else x.grad)
        assert all(
            last[-1].is_contiguous(memory_format=form) and last[-1].dtype == x.dtype
            for last in seen.values()
        )
    stacked = {name: torch.stack(values) for name, values in seen.items()}
    gradients = {f"d{name}": parameter.grad for name, parameter in layer.named_parameters()}
    return stacked | gradients | {name: value.clone() for name, value in layer.named_buffers()}


# ---------------------------------------------------------------------- what the processes do


def process(rank: int, cases: dict[str, Case], folder: str) -> None:
    """Run the cases as one of several processes and save the results to a file."""
    torch.set_num_threads(1)
    size = len(next(iter(cases.values())).shards)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group(
        "gloo", f"file://{folder}/rendezvous", rank=rank, world_size=size, timeout=timeout
    )
    try:
        results = {
            name: train(synchronized(case), case, case.share(rank)) for name, case in cases.items()
        }
        if size == 2:
            results |= {
                "recompute": recompute(rank),
                "DDP": train_in_parallel(rank),
                "refusal": refusal(rank, fused=False),
                "fused refusal": refusal(rank, fused=True),
                "evaluation": evaluate_alone(rank),
            }
        torch.save(results, f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def untracked(model: nn.Module) -> Iterator[None]:
    """Context manager without updates of the running statistics."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        layer.track_running_stats = False
    yield
    for layer in layers:
        layer.track_running_stats = True


def recompute(rank: int) -> dict[str, Tensor]:
    """The first step of a case, without and with activation checkpointing."""
    case = Case((3, 5))
    layer = synchronized(case)
    net = nn.Sequential(layer, nn.SiLU(), copy.deepcopy(layer))
    seen = {}
    for name in ("straight", "again"):
        model = copy.deepcopy(net)
        batch, gradient = next(case.batches())
        x = batch[case.share(rank)].requires_grad_()
        if name == "again":
            pair = (contextlib.nullcontext(), untracked(model))
            y = checkpoint(model, x, use_reentrant=False, context_fn=lambda pair=pair: pair)
        else:
            y = model(x)
        y.backward(gradient[case.share(rank)])
        seen |= {f"{name} {key}": p.grad for key, p in model.named_parameters()}
        seen |= {f"{name} {key}": value for key, value in model.named_buffers()} | {
            f"{name} dx": x.grad
        }
    return seen


def make_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(CHANNELS, 8, 3),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 4, 3),
        nn.BatchNorm2d(4),
        nn.SiLU(),
    ]
    return nn.Sequential(*layers).double()


def run_sgd(model: nn.Module, case: Case, share: slice, scale: float = 1) -> None:
    """SGD steps on the mean loss over the images of all processes. scale: undoes DDP's division by
    their number.
    """
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for x, target in case.batches():
        optimizer.zero_grad()
        loss = (model(x[share]) - target[share, :4, 2:5, 2:5]).square().sum() / sum(case.shards)
        (loss * scale).backward()
        optimizer.step()


def train_in_parallel(rank: int) -> dict[str, Tensor]:
    case = Case((3, 5))
    net = synchronize_batch_norm(make_net())
    copied = copy.deepcopy(net)  # as for the moving average
    run_sgd(DistributedDataParallel(net), case, case.share(rank), scale=2)
    copied.load_state_dict(net.state_dict())
    return {key: value.clone() for key, value in copied.state_dict().items()}


def refusal(rank: int, *, fused: bool) -> str:
    """The error message if one process has one value per channel and the other has none."""
    layer = synchronized(Case((1, 0)))
    with slow_kernels() if fused else contextlib.nullcontext():
        with pytest.raises(ValueError) as caught:
            layer(torch.zeros(1 - rank, CHANNELS, 1, 1, dtype=torch.float64))
        layer(torch.zeros(1, CHANNELS, 1, 1, dtype=torch.float64))  # one each is enough
    return str(caught.value)


def evaluate_alone(rank: int) -> bool | None:
    """Whether evaluation works without the other process and equals BatchNorm2d to the bit."""
    if rank == 0:
        return None
    ours, plain = synchronized(Case((1,))).eval(), Case((1,)).layer().eval()
    x, _ = next(Case((1,)).batches())
    return ours(x).equal(plain(x))


def launch(cases: dict[str, Case], folder: Path) -> list[dict[str, dict[str, Tensor]]]:
    """The results of every process."""
    size = len(next(iter(cases.values())).shards)
    fork_server()
    mp.start_processes(process, (cases, str(folder)), nprocs=size, start_method="forkserver")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return launch(TWO | FUSED_TWO, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return launch(THREE | FUSED_THREE, tmp_path_factory.mktemp("three"))


# -------------------------------------------------------------------- several processes against one


def largest_error(found: Tensor, expected: Tensor) -> float:
    """The largest absolute error, relative to the largest expected value."""
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def assert_matches_one_process(case: Case, results: list[dict[str, Tensor]]) -> None:
    """Check that the combined results of the processes equal one float64 BatchNorm2d on all
    images.
    """
    for name, expected in train(case.layer().double(), case, dtype=torch.float64).items():
        parts = [result[name] for result in results]
        if name in ("y", "dx"):
            found = torch.cat(parts, dim=1)
        elif name in ("dweight", "dbias"):
            found = torch.stack(parts).double().sum(0)
        else:
            found = parts[0]
            assert all(part.equal(found) for part in parts), f"{name} differs between the processes"
        assert found.shape == expected.shape
        assert largest_error(found, expected) < case.tolerance, name


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO | FUSED_TWO)
def test_sync_bn_of_two_processes_matches_single_process(two, name):
    assert_matches_one_process((TWO | FUSED_TWO)[name], [results[name] for results in two])


@pytest.mark.slow
@pytest.mark.parametrize("name", THREE | FUSED_THREE)
def test_sync_bn_of_three_processes_matches_single_process(three, name):
    assert_matches_one_process((THREE | FUSED_THREE)[name], [results[name] for results in three])


@pytest.mark.slow
def test_model_with_ddp_and_sync_bn_matches_single_process(two):
    net, case = make_net(), Case((3, 5))
    run_sgd(net, case, slice(None))
    for key, expected in net.state_dict().items():
        assert all(result["DDP"][key].equal(two[0]["DDP"][key]) for result in two)
        assert largest_error(two[0]["DDP"][key], expected) < 1e-12, key


@pytest.mark.slow
def test_sync_bn_supports_activation_checkpointing(two):
    for result in (results["recompute"] for results in two):
        straight = {
            name.removeprefix("straight "): value
            for name, value in result.items()
            if "straight" in name
        }
        assert straight["0.num_batches_tracked"] == 1
        assert len(straight) == 11  # weight, bias and three buffers of two layers, and dx
        assert all(result[f"again {name}"].equal(value) for name, value in straight.items())


def test_single_value_per_channel_is_refused_by_all_processes(two):
    sentence = "Expected more than 1 value per channel when training, got 1 in 2 processes together"
    assert [results["refusal"] for results in two] == [sentence, sentence]
    assert [results["fused refusal"] for results in two] == [sentence, sentence]


def test_sync_bn_evaluation_needs_no_communication(two):
    assert two[1]["evaluation"] is True


# ---------------------------------------------------------------------- one process


@pytest.mark.parametrize("fused", [False, True])
def test_sync_bn_never_makes_host_wait(group_of_one, monkeypatch, fused):
    """Forward and backward, with images that leave no doubt that there are enough values."""
    layer = synchronize_batch_norm(nn.BatchNorm2d(3))
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    monkeypatch.setattr("utils.distributed.sync_bn._processes", lambda: 2)  # of which one is asked
    monkeypatch.setattr(dist, "all_gather", lambda rows, row: [each.copy_(row) for each in rows])
    kernels = slow_kernels() if fused else contextlib.nullcontext()
    with kernels, profile(activities=[ProfilerActivity.CPU]) as recorder:
        layer(x).square().sum().backward()
    assert recorder.events()
    assert list(host_waits(roots(recorder))) == []
    assert (
        x.grad.sum((0, 2, 3)).abs() < 1e-4
    ).all()  # normalization removes the mean of the gradient


def test_sync_bn_stays_on_device():
    """The meta device has no values to read."""
    layer = synchronize_batch_norm(nn.BatchNorm2d(3)).to("meta")
    x = torch.zeros(2, 3, 4, 4, device="meta", requires_grad=True)
    with OneDevice():
        layer(x).sum().backward()
    assert x.grad.shape == x.shape


@pytest.fixture
def group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", TWO)
def test_sync_bn_without_process_group_equals_batchnorm(name):
    """Within the tolerances of two processes."""
    case = TWO[name]
    assert_matches_one_process(case, [train(synchronized(case), case)])


def test_sync_bn_in_group_of_one_equals_batchnorm(group_of_one):
    case = TWO["3/5 fp32"]
    assert_matches_one_process(case, [train(synchronized(case), case)])


def test_sync_bn_of_many_values_stays_precise():
    """2e5 values per channel, channels last: torch sums them one by one in float32."""
    torch.manual_seed(0)
    x = (torch.rand(8, 8, 160, 160) + 3).contiguous(memory_format=torch.channels_last)
    exact = nn.BatchNorm2d(8).double()(x.double())
    assert (SyncBatchNorm2d(8)(x) - exact).abs().max() < 2e-6


def test_sync_bn_without_images():
    with pytest.raises(
        ValueError, match="more than 1 value per channel when training, got 0 in 1 processes"
    ):
        SyncBatchNorm2d(2)(torch.zeros(0, 2, 3, 3))
    assert SyncBatchNorm2d(2).eval()(torch.zeros(0, 2, 3, 3)).shape == (0, 2, 3, 3)
    assert local_moments(torch.zeros(0, 2, 3, 3)).tolist() == [0, 0, 0, 0, 0]
    mean, m2, count = merge_moments(torch.zeros(3, 5))
    assert (mean.tolist(), m2.tolist(), count.item()) == ([0, 0], [0, 0], 0)


def test_sync_bn_refuses_input_that_is_not_4d():
    with pytest.raises(ValueError, match="expected 4D input"):
        SyncBatchNorm2d(2)(torch.zeros(3, 2))


def test_moments_by_hand():
    # Channel 0: 1, 2, 3 and 6: mean 3, squared distances 4 + 1 + 0 + 9 = 14. Channel 1: constant.
    x = torch.tensor([[[[1.0, 2.0]], [[7.0, 7.0]]], [[[3.0, 6.0]], [[7.0, 7.0]]]])
    assert local_moments(x).tolist() == [3, 7, 14, 0, 4]
    # {3, 3}, {9} and the empty set: mean 5, 2 * 2^2 + 4^2 = 24.
    mean, m2, count = merge_moments(
        torch.tensor([[3.0, 0.0, 2.0], [0.0, 0.0, 0.0], [9.0, 0.0, 1.0]])
    )
    assert (mean.item(), m2.item(), count.item()) == (5, 24, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_moments_of_values_far_from_zero_stay_precise(dtype):
    torch.manual_seed(0)
    x = (torch.randn(4, 3, 9, 9, dtype=torch.float64) + 1000).to(dtype)
    row = local_moments(x)
    assert row.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    var, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    torch.testing.assert_close(row[:3].double(), mean, rtol=1e-7, atol=0)
    torch.testing.assert_close(row[3:6].double() / row[6], var, rtol=1e-6, atol=0)


def test_normalization_gradients_pass_gradcheck(group_of_one):
    torch.manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 2, 2, 3), 2, 2)
    )
    assert torch.autograd.gradcheck(
        lambda x, *wb: NormalizeByAll.apply(x, *wb, *global_moments(x), 1e-3), (x, weight, bias)
    )
    assert torch.autograd.gradcheck(
        lambda x: NormalizeByAll.apply(x, None, None, *global_moments(x), 1e-3), x
    )


# ---------------------------------------------------------------------- replacing the layers


def make_mixed_model() -> nn.Module:
    """A model with all kinds of BatchNorm settings, nested layers, and a layer that is used
    twice.
    """
    torch.manual_seed(0)
    shared = nn.BatchNorm2d(3, eps=1e-2, momentum=None)
    inner = nn.Sequential(
        nn.BatchNorm2d(3, affine=False), nn.BatchNorm2d(3, track_running_stats=False).eval(), shared
    )
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, 1e-3, 0.03), inner, shared)
    net(torch.randn(2, 2, 4, 4))
    net[1].eval().weight.requires_grad_(False)
    return net.bfloat16()


def test_replacing_batchnorm_layers_keeps_state_and_settings():
    net = make_mixed_model()
    before = copy.deepcopy(net)
    parameters = dict(net.named_parameters())
    assert synchronize_batch_norm(net) is net
    assert [type(layer) for layer in (net[1], *net[2], net[3])] == [SyncBatchNorm2d] * 5
    assert list(net.state_dict()) == list(before.state_dict())
    assert all(value.equal(before.state_dict()[key]) for key, value in net.state_dict().items())
    assert all(
        value.dtype == before.state_dict()[key].dtype for key, value in net.state_dict().items()
    )
    assert all(parameter is parameters[name] for name, parameter in net.named_parameters())
    assert not net[1].weight.requires_grad
    assert net[1].bias.requires_grad
    for ours, theirs in zip([net[1], *net[2]], [before[1], *before[2]], strict=True):
        for name in (
            "num_features",
            "eps",
            "momentum",
            "affine",
            "track_running_stats",
            "training",
        ):
            assert getattr(ours, name) == getattr(theirs, name), name


def test_batchnorm_layer_itself_can_be_replaced():
    layer = nn.BatchNorm2d(3)
    weight = layer.weight
    synchronized = synchronize_batch_norm(layer)
    assert type(synchronized) is SyncBatchNorm2d
    assert synchronized.weight is weight


def test_model_without_batchnorm2d_is_not_changed():
    net = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm1d(3))
    assert synchronize_batch_norm(net) is net
    assert [type(layer) for layer in net] == [nn.Conv2d, nn.BatchNorm1d]


@pytest.mark.slow
def test_compiled_layer_does_not_use_the_fused_kernels(monkeypatch):
    """torch.compile has no description of them: `fullgraph` raises an error where the graph would
    be interrupted.
    """
    monkeypatch.setattr(sync_bn, "_processes", lambda: 2)
    monkeypatch.setattr(sync_bn, "_gather", lambda row: torch.stack([row, row]))
    monkeypatch.setattr(sync_bn, "has_fused_kernels", lambda x: True)
    layer = synchronize_batch_norm(nn.BatchNorm2d(3))
    x = torch.rand(2, 3, 4, 4)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)(x)
    monkeypatch.setattr(sync_bn, "has_fused_kernels", lambda x: False)
    torch.testing.assert_close(compiled, layer(x))


def test_replaced_layers_can_be_copied_and_fused():
    torch.manual_seed(0)
    block, x = Conv(2, 3), torch.randn(2, 2, 4, 4)
    block(x)
    synchronize_batch_norm(block)
    twin = copy.deepcopy(block).eval()
    assert type(twin.bn) is SyncBatchNorm2d
    expected = block.eval()(x)
    assert twin(x).equal(expected)
    twin.fuse()
    assert isinstance(twin.bn, nn.Identity)
    torch.testing.assert_close(twin(x), expected)
