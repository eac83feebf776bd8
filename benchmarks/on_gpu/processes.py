"""Two processes over gloo on one device against one process: the same weights, in float64.

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
                arguments = (size, scope, cfg, folder)
                start_processes(train_rank, arguments, nprocs=size, start_method="fork")
            expected = torch.load(weights_file(folder, 0, 1), weights_only=True)
            found = [
                torch.load(weights_file(folder, rank, 2), weights_only=True) for rank in (0, 1)
            ]

        differences = []
        for weights in found:
            for name in expected:
                differences.append(relative_difference(weights[name], expected[name]))
        worst = max(differences)
        what = f"{cfg}: weights of two processes after {STEPS} steps"
        text = f"{what}, largest relative difference {worst:.1e}"
        yield Finding(text, worst <= MAX_DIFFERENCE, {"difference": worst})


def weights_file(folder: Path, rank: int, size: int) -> Path:
    """The weights of one of `size` processes."""
    return folder / f"{rank}-of-{size}.pt"


def train_rank(rank: int, size: int, scope: Scope, cfg: str, folder: Path) -> None:
    """Train on this rank's part of one batch, and save the weights."""
    device = scope.world.device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size > 1:
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)

    # Half of the same batch for each of two processes.
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
    torch.save(weights, weights_file(folder, rank, size))
    if size > 1:
        dist.destroy_process_group()


def part_of(batch: Batch, rank: int, size: int) -> Batch:
    """The images of one rank, with their targets."""
    each = len(batch.images) // size
    first = rank * each
    end = first + each

    image = batch.targets[:, 0]  # that a target belongs to
    targets = batch.targets[(image >= first) & (image < end)].clone()
    targets[:, 0] -= first

    return Batch(
        batch.images[first:end], targets, batch.indices[first:end], batch.placement[first:end]
    )
