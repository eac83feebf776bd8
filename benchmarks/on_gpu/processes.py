"""Two processes over gloo on one device against one process: the same weights after some steps, in
float64.

DDP with synchronized BatchNorm. NCCL takes only one process per GPU: tests/test_gpu.py has DDP over
NCCL with one.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import start_processes

from benchmarks.on_gpu.against_cpu import relative_difference
from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.timed_steps import Setting, made_up_batch, repeated, train_through
from data.loader import Batch
from utils.distributed.devices import wait_for
from utils.distributed.world import World

STEPS = 3
MAX_DIFFERENCE = 1e-6  # relative, of each weight


def compare_processes(scope: Scope) -> Iterator[Finding]:
    """Every head. The processes are forked, so this one does not use the device."""
    for cfg in scope.sizes.check_models:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for size in (1, 2):
                start_processes(
                    train_rank, (size, scope, cfg, folder), nprocs=size, start_method="fork"
                )
            expected, *found = (
                torch.load(folder / f"{rank}-of-{size}.pt", weights_only=True)
                for rank, size in RANKS
            )
        worst = max(
            relative_difference(rank[key], expected[key]) for rank in found for key in expected
        )
        text = (
            f"{cfg}: weights of two processes after {STEPS} steps, largest relative "
            f"difference {worst:.1e}"
        )
        yield Finding(text, worst <= MAX_DIFFERENCE, {"difference": worst})


RANKS = ((0, 1), (0, 2), (1, 2))  # rank, number of processes


def train_rank(rank: int, size: int, scope: Scope, cfg: str, folder: Path) -> None:
    """Train on this rank's part of one batch, and save the weights."""
    device = scope.world.device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size
        )

    whole = Setting(cfg=cfg, img=scope.sizes.check_img, batch=4, amp="fp64", sync_bn=True)
    setting = replace(whole, batch=whole.batch // size)
    batch = part_of(made_up_batch(whole, 0, device), rank, size)
    world = World(device, rank=rank, local_rank=rank, size=size, local_size=size)
    replicas = []
    train_through(repeated(batch, setting, world, STEPS), setting, world, change=replicas.append)

    wait_for(device)
    weights: dict[str, Tensor] = {
        name: value.cpu() for name, value in replicas[0].model.named_parameters()
    }
    torch.save(weights, folder / f"{rank}-of-{size}.pt")
    if size > 1:
        dist.destroy_process_group()


def part_of(batch: Batch, rank: int, size: int) -> Batch:
    """The images of one rank, with their targets."""
    each = len(batch.images) // size
    first, end = rank * each, (rank + 1) * each
    image = batch.targets[:, 0]
    targets = batch.targets[(image >= first) & (image < end)].clone()
    targets[:, 0] -= first
    return Batch(
        batch.images[first:end], targets, batch.indices[first:end], batch.placement[first:end]
    )
