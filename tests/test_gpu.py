"""One GPU against the CPU. Skipped where there is none."""

import copy
import csv
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import train
from models import build_model
from utils.distributed import World
from utils.replica import DistributedReplica, Replica
from utils.sync_bn import synchronize_batch_norm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CPU, GPU = World(torch.device("cpu")), World(torch.device("cuda", 0))


@pytest.fixture
def losses(tiny_data: Path, tiny_model: str, tmp_path: Path):
    """losses(world, *flags): the training and validation losses of each epoch of a short run."""

    def run(world: World, *flags: str) -> list[list[float]]:
        name = f"{world.device.type}{len(list(tmp_path.iterdir()))}"
        small = f"--img 64 --batch 4 --workers 0 --epochs 2 --noplots --data {tiny_data} --cfg {tiny_model}"
        places = f"--project {tmp_path} --name {name} --cache-dir {tmp_path}/cache"
        train.main(train.parse_args([*small.split(), *places.split(), *flags])[0], world)
        with open(tmp_path / name / "results.csv") as file:
            return [[float(row[key]) for key in row if "loss" in key] for row in csv.DictReader(file)]

    return run


def test_a_gpu_trains_like_the_cpu(losses, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    expected = losses(CPU, "--amp", "fp64")
    assert len(expected) == 2
    assert len(expected[0]) == 6  # box, obj and cls, of both splits
    torch.testing.assert_close(losses(GPU, "--amp", "fp64"), expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(losses(GPU, "--amp", "fp32")[0], expected[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("precision", ["auto", "bf16", "fp16"])
def test_it_trains_in_16_bits(losses, precision):
    expected = losses(CPU, "--amp", "fp32")
    torch.testing.assert_close(losses(GPU, "--amp", precision)[0], expected[0], rtol=5e-2, atol=1e-3)


def test_it_finds_a_batch_size(losses):
    assert losses(GPU, "--batch", "-1", "--amp", "fp32")


@pytest.fixture
def group_of_one():
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=GPU.device)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("accumulates", [False, True])
def test_ddp_over_nccl_with_torchs_sync_bn_has_the_gradients_of_a_bare_model(group_of_one, tiny_model, accumulates):
    torch.manual_seed(0)
    bare = build_model(tiny_model, 3).double().to(GPU.device).train()
    wrapped = synchronize_batch_norm(copy.deepcopy(bare), "cuda")
    images = torch.rand(4, 3, 64, 64, dtype=torch.float64, device=GPU.device)
    for replica in (Replica(bare, GPU), DistributedReplica(wrapped, GPU, accumulates)):
        replica.rehearse(torch.zeros(1, 3, 64, 64, dtype=torch.float64, device=GPU.device))
        for part in images.split(2 if accumulates else 4):
            with replica.gradients(last=part.data_ptr() != images.data_ptr() or not accumulates):
                sum(level.square().mean() for level in replica(part)).backward()
    other = dict(wrapped.named_parameters())
    for name, parameter in bare.named_parameters():
        torch.testing.assert_close(other[name].grad, parameter.grad, rtol=1e-9, atol=1e-12)
