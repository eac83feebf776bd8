r"""Scaling from one process to N: the speedup, and where the rest of the time goes.

Claim: the exchange (all-reduce) of K bytes of gradients takes little time, of the order of the ring
model's 2(N-1)/N * K/w, where w is the bandwidth of an all-reduce alone. What else N processes on
one machine lose, they lose by sharing the machine. With yolov5n, 320 px, 8 images in each of two
processes on one core each, a step takes 1.11 times as long as in one process; the exchange is 13 ms
of 371 ms, the model predicts 6 ms. With SyncBN on CPUs a step takes 2.1 times as long: the
processes wait for each other at each of 114 small messages.

    python benchmarks/scaling.py --device cpu --processes 1 2 --cfg yolov5n.yaml --img 320 --batch 8
    python benchmarks/scaling.py --device 0,1,2,3 --processes 1 2 4 --cfg yolov5s.yaml --img 640 \
        --batch 64 --sync-bn

Each N is one launch of torch's launcher. Every process has cores // max(N) threads, also for N = 1:
on two cores, one process with one thread is compared with two processes of one thread each. Timed
is train.py's `train_one_epoch`, from batch to batch, with a new model for each of these passes:

    b images per process              one synthetic batch, already on the device; the baseline is N
        = 1
    b images in total                 the same for strong scaling
    b per process, no exchange        N independent models: what sharing the machine costs
    4 batches per optimizer step      with an exchange for each batch, and with one exchange
        (no_sync)
    b per process, from the loader    generated shapes, augmented as in training; the share of time
        spent waiting
    b per process, counted            not timed: collectives are wrapped, gradients go through a DDP
        hook

A step takes as long as its slowest process. Times are medians with quartiles over `--steps` steps
after `--warmup`. GPUs are timed with their own events, so the host runs ahead as in training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from benchmarks.report import file_report
from benchmarks.scaling_report import GROUP, SMALL_MESSAGE, Measured, report, ring_bytes
from benchmarks.timed_steps import (
    NUM_CLASSES,
    Clocked,
    Setting,
    exchange_always,
    fixed_batches,
    train_through,
)
from data import Augmentation, build_train_loader
from data.labels import Labels
from data.layouts import open_data
from data.shapes.generate import generate
from data.splits import read_split
from models import build_model
from tests.support.launching import TORCHRUN
from training.settings.hyperparameters import Hyp
from utils.distributed.devices import describe, loader_workers, wait_for
from utils.distributed.launch import Launch
from utils.distributed.precision import choose_precision, weights_dtype
from utils.distributed.session import distributed_session
from utils.distributed.world import World
from utils.files.writers import write_json
from utils.flags import FlagParser
from utils.images.letterbox import round_up_to_stride
from utils.terminal import run_and_exit

ROOT = Path(__file__).resolve().parents[1]
DRAWN_IMAGES = 64  # of the generated data set; the loader repeats them as often as needed

# {module that calls a collective: what it sends}
SENDERS = {
    allreduce_hook.__module__: "gradients",
    "utils.distributed.world": "counts for the loss",
    "utils.distributed.sync_bn": "SyncBN",
    "torch.nn.modules._functions": "SyncBN",
}
# {collective: the position of the argument that it sends}
SENT = {
    "all_reduce": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "all_gather_single": 1,
    "broadcast": 0,
}


class Ledger:
    """Counts what this process sends in each step: {what: [calls, bytes, bytes sent in a ring]}."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pages: list[dict[str, list[float]]] = []

    def turn(self, *_: object) -> None:
        """Begin the counts of a new step."""
        self.pages.append({})

    def enter(self, sender: str, collective: str, payload: Tensor) -> None:
        """Count a collective that the module `sender` calls."""
        # How often the payload is sent; all_gather and the like send it to each other process.
        copies = {"all_reduce": ring_bytes(self.size, 1), "broadcast": 1}
        sent = payload.nbytes * copies.get(collective, self.size - 1)

        what = SENDERS.get(sender, sender)
        row = self.pages[-1].setdefault(what, [0, 0, 0.0])
        row[0] += 1
        row[1] += payload.nbytes
        row[2] += sent

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Count every collective that Python code calls during the block."""
        originals = {name: getattr(dist, name) for name in SENT if hasattr(dist, name)}
        for name, original in originals.items():
            setattr(dist, name, self._entered(name, original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(dist, name, original)

    def _entered(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*arguments: Any, **keywords: Any) -> Any:
            caller = sys._getframe(1).f_globals["__name__"]
            self.enter(caller, name, arguments[SENT[name]])
            return original(*arguments, **keywords)

        return collective


def measure(setting: Setting, world: World, labels: Labels) -> Measured:
    """Run all passes. Every process takes part; all get the same result."""
    model = build_model(setting.cfg, NUM_CLASSES)
    setting = replace(setting, img=round_up_to_stride(setting.img, max(model.strides)))
    precision = choose_precision(setting.amp, world.device)
    weight = weights_dtype(precision).itemsize
    found = Measured(
        processes=world.size,
        device=describe(world.device),
        backend=dist.get_backend() if world.size > 1 else "",
        precision=str(precision).removeprefix("torch."),
        gradient_bytes=sum(p.numel() for p in model.parameters()) * weight,
        step=step_seconds(setting, world),
    )

    if world.size > 1:
        part = replace(setting, batch=setting.batch // world.size)
        found.shared_out = step_seconds(part, world)
        found.silent = step_seconds(setting, world, exchanging=False)
        found.every_batch = step_seconds(setting, world, group=GROUP, change=exchange_always)
        found.last_batch = step_seconds(setting, world, group=GROUP)
        found.moved = count_step(setting, world)
        sizes = (SMALL_MESSAGE, found.gradient_bytes, 4 * found.gradient_bytes)
        found.alone = [(size, all_reduce_seconds(size, setting, world)) for size in sizes]

    found.fed, found.waiting, found.workers = feed(setting, world, labels)
    return found


def step_seconds(
    setting: Setting,
    world: World,
    *,
    exchanging: bool = True,
    group: int = 1,
    change: Callable[[Any], None] | None = None,
) -> list[float]:
    """Seconds of each optimizer step on one batch that is on the device.

    Args:
        setting: of the pass.
        world: all processes.
        exchanging: whether they train one model together, or each its own.
        group: batches per optimizer step.
        change: is called with the replica.
    """
    steps = max(setting.steps // group, 3)
    warmup = math.ceil(setting.warmup / group)
    own_world = world if exchanging else World(world.device)
    batches = fixed_batches(setting, own_world, group * (steps + warmup), seed=world.rank)
    world.all_gather_object(None)  # so that all processes begin together
    train_through(batches, setting, own_world, group=group, change=change)

    seconds = by_group(batches.seconds(group * warmup), group)
    return slowest(seconds, world)


def by_group(seconds: Sequence[float], group: int) -> list[float]:
    """The sums of consecutive groups of `group` values.

    >>> by_group([1.0, 2.0, 3.0, 4.0], 2)
    [3.0, 7.0]
    """
    starts = range(0, len(seconds), group)
    return [sum(seconds[start : start + group]) for start in starts]


def slowest(seconds: list[float], world: World) -> list[float]:
    """For each step the longest time of all processes."""
    by_process = world.all_gather_object(seconds)
    return [max(step) for step in zip(*by_process, strict=True)]


def count_step(setting: Setting, world: World) -> dict[str, list[float]]:
    """What this process sends in a step: {what: [calls, bytes, bytes sent in a ring]}."""
    ledger = Ledger(world.size)
    batches = fixed_batches(setting, world, 4, seed=world.rank)

    def exchange_in_hook(replica: Any) -> None:
        replica.wrapped.register_comm_hook(None, allreduce_hook)

    with ledger.open():
        train_through(batches, setting, world, change=exchange_in_hook, watch=ledger.turn)
    return ledger.pages[-2]  # the last one also holds the collectives at the end of the epoch


def all_reduce_seconds(payload: int, setting: Setting, world: World) -> list[float]:
    """Seconds of all-reduces of `payload` bytes, one after the other."""
    values = torch.empty(payload // 4, device=world.device)
    seconds = []
    for _ in range(setting.warmup + setting.steps):
        values.uniform_()  # repeated sums would not stay finite
        wait_for(world.device)
        started = time.perf_counter()
        dist.all_reduce(values)
        wait_for(world.device)
        seconds.append(time.perf_counter() - started)

    # The process that comes last does not wait.
    by_process = world.all_gather_object(seconds[setting.warmup :])
    return [min(times) for times in zip(*by_process, strict=True)]


def feed(setting: Setting, world: World, labels: Labels) -> tuple[list[float], float, int]:
    """Step times on batches from the loader, the largest share of waiting, workers per process."""
    total = setting.batch * world.size
    count = setting.warmup + setting.steps
    indices = np.arange(total * count) % len(labels)
    workers = loader_workers(setting.workers, setting.batch, world.device, world.local_size)
    hyp = Hyp()
    gains = {each.name: getattr(hyp, each.name) for each in fields(Augmentation)}
    loader = build_train_loader(
        labels.subset(indices),
        batch_size=total,
        image_size=setting.img,
        stride=1,  # used with --rect only
        augmentation=Augmentation(**gains),
        seed=0,
        workers=workers,
        device=world.device,
        rank=world.rank,
        size=world.size,
    )

    batches = Clocked(loader, loader.sampler, world.device)
    world.all_gather_object(None)  # so that all processes begin together
    train_through(batches, setting, world)

    waiting = max(world.all_gather_object(batches.waiting(setting.warmup)))
    return slowest(batches.seconds(setting.warmup), world), waiting, workers


def measure_here(setting: Setting, device: str, folder: Path) -> None:
    """Measure as one process of a launch; rank 0 writes the results to a file in `folder`."""
    with distributed_session() as connect:
        world = connect(Launch(device=device))
        with world.local_main_first():
            spec = open_data(str(folder / "shapes" / "shapes.yaml"))
            cache = str(folder / "cache")
            labels, _ = read_split(spec, "train", cache_dir=cache, progress=False)
        found = measure(setting, world, labels)
        if world.is_main:
            write_json(folder / f"{world.size}.json", asdict(found))
        world.wait_for_main()


def launch(
    processes: int, device: str, threads: int, folder: Path, arguments: Sequence[str]
) -> Measured:
    """Measure in a number of processes. Raises SystemExit if one fails; it has printed why."""
    devices = ",".join(device.split(",")[:processes])  # a single process would use all of them
    launcher = [*TORCHRUN, "--standalone", "--nproc_per_node", str(processes)]
    command = [*launcher, __file__, *arguments, "--device", devices, "--measure", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    finished = subprocess.run(command, check=False, env=environment)
    if finished.returncode:
        raise SystemExit(finished.returncode)

    values = json.loads((folder / f"{processes}.json").read_text())
    values["alone"] = [(size, seconds) for size, seconds in values["alone"]]
    return Measured(**values)


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    default = Setting()
    about_processes = "numbers of processes; 1 is the baseline"
    about_batch = "b: images per process; for strong scaling, images in total"
    add("--device", default="cpu", help="cpu, or GPUs (0,1,2,3), one for each process")
    add("--processes", type=int, nargs="+", default=[1, 2], help=about_processes)
    add("--cfg", default=default.cfg)
    add("--img", type=int, default=default.img, help="image side in pixels")
    add("--batch", type=int, default=default.batch, help=about_batch)
    add("--steps", type=int, default=default.steps, help="timed steps per pass")
    add("--warmup", type=int, default=default.warmup, help="warm-up steps per pass")
    add("--amp", default=default.amp, help="auto, fp32, bf16 or fp16")
    add("--sync-bn", action="store_true", help="synchronize BatchNorm over the processes")
    add("--workers", type=int, default=default.workers, help="max DataLoader workers per process")
    add("--boxes", type=int, default=default.boxes, help="boxes per synthetic image")
    add("--optimizer", default=default.optimizer, help="SGD, Adam, AdamW or Muon")
    add("--out", type=Path, default=ROOT / "runs" / "scaling.md", help="file for the report")
    # Set by this script: the folder for a launch's results.
    add("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.read(arguments)
    check(options.processes, options.batch)
    return options


def check(processes: Sequence[int], batch: int) -> None:
    """Raises ValueError for numbers of processes that cannot be compared."""
    if min(processes) != 1:
        given = " ".join(map(str, processes))
        raise ValueError(f"--processes {given}: the smallest must be 1, the baseline of the others")
    for number in processes:
        if batch < 1 or batch % number:
            allowed = f"a positive multiple of {number} (--processes)"
            raise ValueError(f"--batch {batch}: must be {allowed}")


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = read_flags(words)
    setting = Setting(**{each.name: getattr(options, each.name) for each in fields(Setting)})
    if options.measure:
        measure_here(setting, options.device, options.measure)
        return

    numbers = sorted(set(options.processes))
    threads = max((os.cpu_count() or 1) // numbers[-1], 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "shapes", train=DRAWN_IMAGES, val=1, size=max(setting.img, 64))
        found = [launch(number, options.device, threads, folder, words) for number in numbers]
    file_report([report(found, setting)], options.out)


if __name__ == "__main__":
    run_and_exit(main)
