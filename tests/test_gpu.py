"""One GPU against the CPU. Skipped without a GPU."""

import copy
import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import train
from models import build_model
from training.nonfinite import NonFiniteGuard
from training.optimizers import build_optimizer
from utils.distributed.host_copies import AsyncHostCopy
from utils.distributed.replica import DistributedReplica, Replica
from utils.distributed.sync_bn import synchronize_batch_norm
from utils.distributed.world import World

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CPU, GPU = World(torch.device("cpu")), World(torch.device("cuda", 0))


@pytest.fixture
def losses(tiny_data: Path, tiny_model: str, tmp_path: Path):
    """losses(world, *flags): the training and validation losses of each epoch of a short run."""

    def run(world: World, *flags: str) -> list[list[float]]:
        name = f"{world.device.type}{len(list(tmp_path.iterdir()))}"
        small = (
            f"--img 64 --batch 4 --workers 0 --epochs 2 --noplots --data {tiny_data} --cfg "
            f"{tiny_model}"
        )
        paths = f"--project {tmp_path} --name {name} --cache-dir {tmp_path}/cache"
        train.main(train.parse_args([*small.split(), *paths.split(), *flags])[0], world)
        with open(tmp_path / name / "results.csv") as file:
            return [
                [float(row[key]) for key in row if "loss" in key] for row in csv.DictReader(file)
            ]

    return run


def test_gpu_losses_match_cpu_losses(losses, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    expected = losses(CPU, "--amp", "fp64")
    assert len(expected) == 2
    assert len(expected[0]) == 6  # box, obj and cls, of both splits
    torch.testing.assert_close(losses(GPU, "--amp", "fp64"), expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(losses(GPU, "--amp", "fp32")[0], expected[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    "flags", ["--amp bf16", "--amp fp16 --workers 2", "--amp bf16 --cache device"]
)
def test_training_epoch_never_synchronizes_with_gpu(losses, monkeypatch, flags):
    """CUDA itself raises an error for an operation that would."""
    real = train.train_one_epoch

    def epoch(*args: Any, **kwargs: Any) -> str:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return real(*args, **kwargs)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(train, "train_one_epoch", epoch)
    assert losses(GPU, *flags.split())


def test_losses_with_gpu_augmentation_match_host_augmentation(losses):
    host, device = (losses(GPU, "--amp", "fp32", "--cache", where) for where in ("ram", "device"))
    torch.testing.assert_close(device[0], host[0], rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp16"])
def test_16_bit_losses_match_fp32_losses(losses, precision):
    expected = losses(CPU, "--amp", "fp32")
    torch.testing.assert_close(
        losses(GPU, "--amp", precision)[0], expected[0], rtol=5e-2, atol=1e-3
    )


def test_auto_batch_size_trains_on_gpu(losses):
    assert losses(GPU, "--batch", "-1", "--amp", "fp32")


@pytest.fixture
def group_of_one():
    dist.init_process_group(
        "nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=GPU.device
    )
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("accumulates", [False, True])
def test_nccl_ddp_with_sync_bn_matches_gradients_of_bare_model(
    group_of_one, tiny_model, accumulates
):
    torch.manual_seed(0)
    bare = build_model(tiny_model, 3).double().to(GPU.device).train()
    wrapped = synchronize_batch_norm(copy.deepcopy(bare))
    images = torch.rand(4, 3, 64, 64, dtype=torch.float64, device=GPU.device)
    for replica in (Replica(bare, GPU), DistributedReplica(wrapped, GPU, accumulates)):
        replica.warm_up(torch.zeros(1, 3, 64, 64, dtype=torch.float64, device=GPU.device))
        for part in images.split(2 if accumulates else 4):
            with replica.gradients(last=part.data_ptr() != images.data_ptr() or not accumulates):
                sum(level.square().mean() for level in replica(part)).backward()
    other = dict(wrapped.named_parameters())
    for name, parameter in bare.named_parameters():
        torch.testing.assert_close(other[name].grad, parameter.grad, rtol=1e-9, atol=1e-12)


def test_async_host_copy_returns_values_two_pushes_later():
    later = AsyncHostCopy(GPU.device)
    arrived = [
        [int(value) for value in later.push(torch.tensor(number, device=GPU.device))]
        for number in range(5)
    ]
    assert arrived == [[], [], [0], [1], [2]]
    assert [int(value) for value in later.drain()] == [3, 4]
    assert later.drain() == []


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_nonfinite_step_is_skipped_on_gpu_without_host_sync(name):
    """Without a copy to the host: torch's fused optimizers read the flag on the device, also in
    their first step.
    """
    torch.manual_seed(0)
    models = [torch.nn.Linear(3, 2).to(GPU.device)]
    models.append(copy.deepcopy(models[0]))
    optimizers = [
        build_optimizer(model, name, lr=0.1, momentum=0.9, weight_decay=0.01) for model in models
    ]
    steps = [NonFiniteGuard(optimizer, [], GPU.device) for optimizer in optimizers]
    assert optimizers[0].defaults["fused"]
    for number in range(4):
        torch.cuda.set_sync_debug_mode("error")
        for model, own, bad in zip(models, steps, (number % 2 == 0, False), strict=True):
            if bad:  # only for the first model
                model(torch.full((4, 3), float("nan"), device=GPU.device)).sum().backward()
                own.step(torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0))
                model.zero_grad()
            model(torch.full((4, 3), 1.0 + number, device=GPU.device)).sum().backward()
            own.step(torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0))
            model.zero_grad()
        torch.cuda.set_sync_debug_mode("default")
    assert steps[0].state_dict() == {"skipped": 2, "in_a_row": 0}
    for own, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)


def test_resumed_gpu_run_matches_uninterrupted_run(losses, monkeypatch, tmp_path):
    """Up to rounding: some sums on a GPU have no fixed order."""
    straight = losses(GPU, "--amp", "fp32")
    real, calls = train.TrainState.step, iter(range(1, 100))

    def step(self: train.TrainState) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(train.TrainState, "step", step)
    with pytest.raises(KeyboardInterrupt):
        losses(GPU, "--amp", "fp32", "--save-minutes", "1e-9", "--name", "broken")
    monkeypatch.setattr(train.TrainState, "step", real)
    train.main(train.parse_args(["--resume", str(tmp_path / "broken")])[0], GPU)
    with open(tmp_path / "broken" / "results.csv") as file:
        resumed = [
            [float(row[key]) for key in row if "loss" in key] for row in csv.DictReader(file)
        ]
    torch.testing.assert_close(resumed, straight, rtol=1e-2, atol=1e-4)
