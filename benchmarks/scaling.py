"""Scaling from one process to N: the speedup, and where the rest of the time goes (shared machine, exchange, data).

Claim: the exchange (all-reduce) of K bytes of gradients takes little time, of the order of the ring model's
2(N-1)/N * K/w, where w is the bandwidth of an all-reduce alone. What else N processes on one machine lose, they lose by
sharing the machine. With yolov5n, 320 px, 8 images in each of two processes on one core each, a step takes 1.11 times
as long as in one process; the exchange is 13 ms of 371 ms, the model predicts 6 ms. With SyncBN on CPUs a step takes
2.1 times as long: the processes wait for each other at each of 114 small messages.

    python benchmarks/scaling.py --device cpu --processes 1 2 --cfg yolov5n.yaml --img 320 --batch 8
    python benchmarks/scaling.py --device 0,1,2,3 --processes 1 2 4 --cfg yolov5s.yaml --img 640 --batch 64 --sync-bn

Each N is one launch of torch's launcher. Every process has cores // max(N) threads, also for N = 1: on two cores, one
process with one thread is compared with two processes of one thread each. Timed is train.py's `train_one_epoch`, from
batch to batch, with a new model for each of these passes:

    b images per process              one synthetic batch, already on the device; the baseline is N = 1
    b images in total                 the same for strong scaling
    b per process, no exchange        N independent models: what sharing the machine costs
    4 batches per optimizer step      with an exchange for each batch, and with one exchange (no_sync)
    b per process, from the loader    generated shapes, augmented as in training; the share of time spent waiting
    b per process, counted            not timed: collectives are wrapped, gradients go through a DDP hook

A step takes as long as its slowest process. Times are medians with quartiles over `--steps` steps after `--warmup`.
GPUs are timed with their own events, so the host runs ahead as in training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder: its profile.py would hide Python's own module

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from data import Augmentation, build_train_loader
from data.labels import Labels
from data.loader import Batch
from data.sampler import TrainSampler
from data.shapes.generate import generate
from data.splits import open_data, read_split
from models import LossGains, build_loss, build_model
from train import train_one_epoch
from utils.distributed.devices import describe, loader_workers, wait_for
from utils.distributed.host_copies import to_device
from utils.distributed.launch import Launch
from utils.distributed.precision import choose_precision, weights_dtype
from utils.distributed.session import distributed_session
from utils.distributed.torch_compile import compile_model
from utils.distributed.world import World
from utils.files.writers import write_json, write_text
from utils.flags import FlagParser
from utils.letterbox import round_up_to_stride
from utils.progress import Progress
from utils.terminal import run_and_exit
from utils.training.batch_size import NOMINAL_BATCH, GlobalBatch
from utils.training.checkpoints.manager import CheckpointManager
from utils.training.hyperparameters import Hyp
from utils.training.state import build_train_state

ROOT = Path(__file__).resolve().parents[1]
NUM_CLASSES = 80
LEARNING_RATE = 1e-3  # small enough that the loss stays finite on one batch repeated
GROUP = 4  # batches per optimizer step in the passes with gradient accumulation
DRAWN_IMAGES = 64  # of the generated data set; the loader repeats them as often as needed
SMALL_MESSAGE = 4096  # bytes: its time is latency only

ON_A_CPU = (
    "On a CPU the processes share memory bandwidth, caches and clock speed even if each has its own cores. The column "
    "*sharing* shows what that costs: a faster network would not change it, and processes on separate machines would "
    "not have it. DataLoader workers use cores as well."
)

# {module that calls a collective: what it sends}
SENDERS = {
    allreduce_hook.__module__: "gradients",
    "utils.distributed": "counts for the loss",
    "utils.distributed.sync_bn": "SyncBN",
    "torch.nn.modules._functions": "SyncBN",
}
# {collective: the position of the argument that it sends}
SENT = {"all_reduce": 0, "all_gather": 1, "all_gather_into_tensor": 1, "all_gather_single": 1, "broadcast": 0}


@dataclass(frozen=True)
class Setting:
    """The settings of the measurement, the same for every number of processes. batch: images per process (b)."""

    cfg: str = "yolov5n.yaml"
    img: int = 320
    batch: int = 8
    steps: int = 20
    warmup: int = 3
    amp: str = "auto"
    sync_bn: bool = False
    workers: int = 8
    boxes: int = 7  # per image, as in COCO


@dataclass
class Measured:
    """The results of a launch of N processes: seconds of each step of a pass, [] if skipped; bytes per process."""

    processes: int
    device: str = ""
    backend: str = ""
    precision: str = ""
    gradient_bytes: int = 0
    step: list[float] = field(default_factory=list)
    shared_out: list[float] = field(default_factory=list)  # b images in total
    silent: list[float] = field(default_factory=list)  # no exchange
    every_batch: list[float] = field(default_factory=list)  # GROUP batches, an exchange after each
    last_batch: list[float] = field(default_factory=list)  # GROUP batches, one exchange
    fed: list[float] = field(default_factory=list)  # from the loader
    waiting: float = 0.0  # share of the time spent waiting for batches
    workers: int = 0
    moved: dict[str, list[float]] = field(default_factory=dict)  # {what: [calls, bytes, bytes sent in a ring]}
    alone: list[tuple[int, list[float]]] = field(default_factory=list)  # bytes and seconds of an all-reduce alone


# ---------------------------------------------------------------------- arithmetic


def ring_bytes(size: int, payload: float) -> float:
    """Bytes that each of `size` processes sends in a ring all-reduce of `payload` bytes.

    Source: Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), theorem 1.

    >>> ring_bytes(1, 100), ring_bytes(2, 100), ring_bytes(4, 100)
    (0.0, 100.0, 150.0)
    """
    return 2 * (size - 1) / size * payload


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile.

    >>> quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    (2.0, 3.0, 4.0)
    """
    low, middle, high = np.percentile(values, (25, 50, 75)).tolist()
    return low, middle, high


def median(values: Sequence[float]) -> float:
    return quartiles(values)[1]


def by_group(seconds: Sequence[float], group: int) -> list[float]:
    """The sums of consecutive groups of `group` values.

    >>> by_group([1.0, 2.0, 3.0, 4.0], 2)
    [3.0, 7.0]
    """
    return [sum(seconds[i : i + group]) for i in range(0, len(seconds), group)]


@dataclass(frozen=True)
class Losses:
    """Why a step takes longer in N processes than in one, in seconds. Noise may make values negative."""

    sharing: float  # by sharing the machine
    exchange: float
    ring: float  # predicted by the ring model for the gradients
    small: float  # predicted for all other messages: their number times the time of a small one

    @classmethod
    def of(cls, one: Measured, many: Measured) -> Losses:
        silent, times = median(many.silent), {size: median(seconds) for size, seconds in many.alone}
        sent = ring_bytes(many.processes, many.gradient_bytes)
        calls = sum(row[0] for what, row in many.moved.items() if what != "gradients")
        return cls(
            sharing=silent - median(one.step),
            exchange=median(many.step) - silent,
            ring=sent / bandwidth(many, many.gradient_bytes),
            small=calls * times[SMALL_MESSAGE],
        )


def bandwidth(found: Measured, payload: int) -> float:
    """Bytes per second that each process sends in an all-reduce of `payload` bytes alone."""
    return ring_bytes(found.processes, payload) / median(dict(found.alone)[payload])


# ---------------------------------------------------------------------- clocks and counters


class Clocked(Iterable[Batch]):
    """Batches for train_one_epoch that record when each step begins and the time spent waiting for batches."""

    def __init__(self, batches: Iterable[Batch], sampler: TrainSampler, device: torch.device) -> None:
        self.sampler, self.device = sampler, device
        self.progress = Progress(batches, total=len(sampler), title="", active=False)
        self.marks: list[tuple[float, float, Any]] = []  # seconds and seconds waited on the host, event of the device

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.progress:
            self._mark()
            yield batch
        self._mark()

    def _mark(self) -> None:
        event = None
        if self.device.type != "cpu":
            event = torch.Event(device=self.device, enable_timing=True)
            event.record()
        self.marks.append((self.progress.seconds, self.progress.waited, event))

    def seconds(self, first: int) -> list[float]:
        """Seconds of each step from step `first` on, including the wait for the next batch."""
        wait_for(self.device)
        pairs = list(zip(self.marks, self.marks[1:], strict=False))[first:]
        if self.device.type == "cpu":
            return [end[0] - begin[0] for begin, end in pairs]
        return [begin[2].elapsed_time(end[2]) / 1000 for begin, end in pairs]

    def waiting(self, first: int) -> float:
        """The share of the host's time from step `first` on that was spent waiting for batches."""
        begin, end = self.marks[first], self.marks[-1]
        return (end[1] - begin[1]) / (end[0] - begin[0])


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
        size, copies = payload.nbytes, {"all_reduce": ring_bytes(self.size, 1), "broadcast": 1}
        row = self.pages[-1].setdefault(SENDERS.get(sender, sender), [0, 0, 0.0])
        for i, amount in enumerate((1, size, size * copies.get(collective, self.size - 1))):
            row[i] += amount

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
            self.enter(sys._getframe(1).f_globals["__name__"], name, arguments[SENT[name]])
            return original(*arguments, **keywords)

        return collective


# ---------------------------------------------------------------------- passes, in each of the processes


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
        found.shared_out = step_seconds(replace(setting, batch=setting.batch // world.size), world)
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
    """Seconds of each optimizer step on one batch that is on the device. group: batches per optimizer step.

    exchanging: whether the processes train one model together, or each its own. change: is called with the replica.
    """
    steps, warmup = max(setting.steps // group, 3), -(-setting.warmup // group)
    own_world = world if exchanging else World(world.device)
    batches = fixed_batches(setting, own_world, group * (steps + warmup), seed=world.rank)
    world.all_gather_object(None)  # so that all processes begin together
    train_through(batches, setting, own_world, group=group, change=change)
    return slowest(by_group(batches.seconds(group * warmup), group), world)


def slowest(seconds: list[float], world: World) -> list[float]:
    """For each step the longest time of all processes."""
    return [max(step) for step in zip(*world.all_gather_object(seconds), strict=True)]


def fixed_batches(setting: Setting, world: World, count: int, seed: int) -> Clocked:
    """The same synthetic batch `count` times."""
    images = np.ones(count * setting.batch * world.size)
    sampler = TrainSampler(images, batch_size=setting.batch * world.size, image_size=setting.img, seed=0)
    return Clocked(repeat(made_up_batch(setting, seed, world.device), count), sampler, world.device)


def made_up_batch(setting: Setting, seed: int, device: torch.device) -> Batch:
    """A batch of noise, with boxes whose sides are an eighth to half of the image side."""
    random = torch.Generator().manual_seed(seed)
    side, count = setting.img, setting.batch * setting.boxes
    images = torch.randint(256, (setting.batch, side, side, 3), dtype=torch.uint8, generator=random)
    owner = torch.arange(setting.batch).repeat_interleave(setting.boxes)[:, None]
    class_ids = torch.randint(NUM_CLASSES, (count, 1), generator=random)
    sizes = side * (0.125 + 0.375 * torch.rand(count, 2, generator=random))
    corners = torch.rand(count, 2, generator=random) * (side - sizes)
    targets = torch.cat([owner, class_ids, corners, corners + sizes], 1)
    no_placement = torch.full((setting.batch, 4), torch.nan, dtype=torch.float64)
    return Batch(images.to(device), targets.to(device), torch.arange(setting.batch), no_placement)


def train_through(
    batches: Clocked,
    setting: Setting,
    world: World,
    *,
    group: int = 1,
    change: Callable[[Any], None] | None = None,
    watch: Callable[[int], None] | None = None,
    compiled: str = "off",
) -> None:
    """Train a new model on `batches` as train.py does. compiled: torch.compile's mode, or off.

    change: is called with the replica before training. watch: is called with the number of each batch.
    Raises ValueError if the losses do not stay finite, because then the times are not those of training.
    """
    torch.manual_seed(0)
    model, hyp = build_model(setting.cfg, NUM_CLASSES), Hyp()
    precision = choose_precision(setting.amp, world.device)
    model.to(weights_dtype(precision)).to(memory_format=torch.channels_last).to(world.device)
    criterion = build_loss(model.head, LossGains()).to(weights_dtype(precision))
    state = build_train_state(
        model,
        world,
        GlobalBatch(NOMINAL_BATCH // group),  # only the accumulation of this one matters
        precision,
        criterion.terms,
        layers=list(model.layers),
        smallest_side=2 * max(model.strides),
        total=len(batches),
        epochs=1,
        patience=0,
        cosine=False,
        optimizer="SGD",
        sync_bn=setting.sync_bn and world.size > 1,
        shard=False,
        say=print,
        **{**hyp.learning(), "lr0": LEARNING_RATE, "warmup_epochs": 0},
    )
    state.batch = GlobalBatch(setting.batch * world.size, world.size)
    if change is not None:
        change(state.replica)
    if compiled != "off":
        pixels = torch.zeros(setting.batch, setting.img, setting.img, 3, dtype=torch.uint8)
        print(compile_model(model, compiled, to_device(pixels, world.device, model.dtype), state.autocast, world))
    loader: Any = batches  # has all of a loader that train_one_epoch uses
    watched: Any = Watched(watch)
    description: Any = None  # unused, because nothing is saved
    with CheckpointManager(Path(), state, description, final_only=True, period=0) as checkpoints:
        train_one_epoch(state, loader, criterion, checkpoints, title="", pictures=watched)
    means = state.progress.losses.means()
    if not np.isfinite(list(means.values())).all():
        raise ValueError(f"the losses did not stay finite: {means}")


class Watched:
    """Calls a function with the number of each batch, in place of the object that plots train.py's first batches."""

    def __init__(self, watch: Callable[[int], None] | None) -> None:
        self.watch = watch

    def train_batch(self, number: int, *_: Any) -> None:
        if self.watch is not None:
            self.watch(number)


def exchange_always(replica: Any) -> None:
    """Make a replica exchange gradients after every batch, even if an optimizer step accumulates several batches."""
    replica.gradients = lambda last: contextlib.nullcontext()


def count_step(setting: Setting, world: World) -> dict[str, list[float]]:
    """What this process sends in a step: {what: [calls, bytes, bytes sent in a ring]}."""
    ledger = Ledger(world.size)
    with ledger.open():
        train_through(
            fixed_batches(setting, world, 4, seed=world.rank),
            setting,
            world,
            change=lambda replica: replica.wrapped.register_comm_hook(None, allreduce_hook),
            watch=ledger.turn,
        )
    return ledger.pages[-2]  # the last one also holds the collectives at the end of the epoch


def all_reduce_seconds(payload: int, setting: Setting, world: World) -> list[float]:
    """Seconds of all-reduces of `payload` bytes, one after the other."""
    values, seconds = torch.empty(payload // 4, device=world.device), []
    for _ in range(setting.warmup + setting.steps):
        values.uniform_()  # repeated sums would not stay finite
        wait_for(world.device)
        started = time.perf_counter()
        dist.all_reduce(values)
        wait_for(world.device)
        seconds.append(time.perf_counter() - started)
    by_process = world.all_gather_object(seconds[setting.warmup :])
    return [min(times) for times in zip(*by_process, strict=True)]  # the process that comes last does not wait


def feed(setting: Setting, world: World, labels: Labels) -> tuple[list[float], float, int]:
    """Seconds of each step on batches from the loader, the largest share of time waiting, and workers per process."""
    total, count = setting.batch * world.size, setting.warmup + setting.steps
    hyp, workers = Hyp(), loader_workers(setting.workers, setting.batch, world.device, world.local_size)
    loader = build_train_loader(
        labels.subset(np.arange(total * count) % len(labels)),
        batch_size=total,
        image_size=setting.img,
        stride=1,  # used with --rect only
        augmentation=Augmentation(**{each.name: getattr(hyp, each.name) for each in fields(Augmentation)}),
        seed=0,
        workers=workers,
        device=world.device,
        rank=world.rank,
        size=world.size,
    )
    batches = Clocked(loader, loader.sampler, world.device)
    world.all_gather_object(None)
    train_through(batches, setting, world)
    waiting = max(world.all_gather_object(batches.waiting(setting.warmup)))
    return slowest(batches.seconds(setting.warmup), world), waiting, workers


def measure_here(setting: Setting, device: str, folder: Path) -> None:
    """Measure in this process as part of its launch; rank 0 writes the results to a file in `folder`."""
    with distributed_session() as connect:
        world = connect(Launch(device=device))
        with world.local_main_first():
            spec = open_data(str(folder / "shapes" / "shapes.yaml"))
            labels, _ = read_split(spec, "train", single=False, cache_dir=str(folder / "cache"), progress=False)
        found = measure(setting, world, labels)
        if world.is_main:
            write_json(folder / f"{world.size}.json", asdict(found))
        world.wait_for_main()


# ---------------------------------------------------------------------- launches and the report


def launch(processes: int, device: str, threads: int, folder: Path, arguments: Sequence[str]) -> Measured:
    """Measure in a number of processes. Raises SystemExit if one fails; it has printed why."""
    devices = ",".join(device.split(",")[:processes])  # a single process would use all of them
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [*launcher, __file__, *arguments, "--device", devices, "--measure", str(folder)]
    finished = subprocess.run(command, check=False, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    if finished.returncode:
        raise SystemExit(finished.returncode)
    values = json.loads((folder / f"{processes}.json").read_text())
    values["alone"] = [(size, seconds) for size, seconds in values["alone"]]
    return Measured(**values)


def report(found: Sequence[Measured], setting: Setting) -> str:
    """The tables, then a verdict in words. found: ordered by number of processes, N = 1 first."""
    one, many = found[0], found[1:]
    parts = [head(one, many, setting), gain_table(found, setting.batch)]
    if many:
        parts += [loss_table(one, many), moved_table(many), bandwidth_table(many), group_table(many)]
    parts += [data_table(found), *(verdict(one, each) for each in many)]
    if one.device.startswith("CPU") and many:
        parts.append(ON_A_CPU)
    return "\n\n".join(parts) + "\n"


def head(one: Measured, many: Sequence[Measured], setting: Setting) -> str:
    norm = "SyncBN" if setting.sync_bn else "BatchNorm per process"
    backend = f"{many[0].backend}, " if many else ""
    machine = f"{os.cpu_count()} cores {processor()}"
    return (
        f"# Scaling: {Path(setting.cfg).stem}, {setting.img} px; {machine}, {date.today()}\n\n"
        f"Each process, including the baseline: {one.device}; {backend}{one.precision}, {norm}; b = {setting.batch}; "
        f"{setting.steps} steps after {setting.warmup} for warm-up, medians (quartiles). "
        f"Load average at the end {load()}. torch {torch.__version__}, Python {platform.python_version()}."
    )


def load() -> str:
    """The load average of the last minute: more than this script's own processes means a busy machine."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def processor() -> str:
    """The processor's name, or the machine type if the name is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def ms(seconds: Sequence[float]) -> str:
    """Median and quartiles.

    >>> ms([0.001, 0.002, 0.003, 0.004, 0.005])
    '3.00 (2.00 to 4.00)'
    """
    low, middle, high = (1000 * value for value in quartiles(seconds))
    digits = 1 if middle >= 100 else 2 if middle >= 1 else 3
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def gain_table(found: Sequence[Measured], batch: int) -> str:
    columns = (
        "N",
        "b per process: ms",
        "images/s",
        "T1(b) / TN(b)",
        "b in total: ms",
        "images/s",
        "T1(b) / (N TN(b/N))",
    )
    rows, base = [], median(found[0].step)
    for each in found:
        weak, strong = each.step, each.shared_out or each.step
        count, speed = each.processes, batch / median(strong)
        weak_gain, strong_gain = base / median(weak), base / (count * median(strong))
        total = count * batch / median(weak)
        row = (count, ms(weak), f"{total:.1f}", f"{weak_gain:.1%}", ms(strong), f"{speed:.1f}", f"{strong_gain:.1%}")
        rows.append(row)
    return "Weak and strong scaling:\n\n" + table(columns, rows)


def loss_table(one: Measured, many: Sequence[Measured]) -> str:
    columns = ("N", "T1", "TN, no exchange: ms", "TN", "sharing", "exchange", "2(N-1)/N * K/w", "other messages")
    rows = []
    for each in many:
        lost = Losses.of(one, each)
        times = (f"{1000 * value:.2f}" for value in (lost.sharing, lost.exchange, lost.ring, lost.small))
        rows.append((each.processes, f"{1000 * median(one.step):.2f}", ms(each.silent), ms(each.step), *times))
    return (
        "Where the time goes, ms for b images per process. *Sharing* is TN without exchange minus T1. *Exchange* is TN "
        "minus TN without exchange, including the wait for the slowest process. Next to it: the ring model's time for "
        "the gradients, and the number of other messages times the time of a small one:\n\n" + table(columns, rows)
    )


def moved_table(many: Sequence[Measured]) -> str:
    rows: list[tuple[object, ...]] = []
    for each in many:
        rows.append((each.processes, "K: bytes of the gradients", "", f"{each.gradient_bytes:,}", ""))
        for what, (calls, size, sent) in each.moved.items():
            rows.append((each.processes, what, f"{calls:.0f}", f"{size:,.0f}", f"{sent:,.0f}"))
    columns = ("N", "what", "collectives", "bytes", "bytes sent in a ring")
    return "Counted per process and step:\n\n" + table(columns, rows)


def bandwidth_table(many: Sequence[Measured]) -> str:
    rows = [
        (each.processes, f"{size:,}", ms(seconds), f"{bandwidth(each, size) / 1e6:,.1f}")
        for each in many
        for size, seconds in each.alone
    ]
    return "An all-reduce alone:\n\n" + table(("N", "bytes", "ms", "w: MB/s"), rows)


def group_table(many: Sequence[Measured]) -> str:
    rows = [
        (each.processes, ms(each.every_batch), ms(each.last_batch), f"{saved_by_no_sync(each):.1%}") for each in many
    ]
    columns = ("N", "exchange after each: ms", "one exchange (no_sync): ms", "saved")
    return f"{GROUP} batches of b images per process in an optimizer step:\n\n" + table(columns, rows)


def saved_by_no_sync(found: Measured) -> float:
    return 1 - median(found.last_batch) / median(found.every_batch)


def data_table(found: Sequence[Measured]) -> str:
    rows = [(each.processes, each.workers, ms(each.step), ms(each.fed), f"{each.waiting:.1%}") for each in found]
    columns = ("N", "workers per process", "a batch on the device: ms", "from the loader: ms", "waiting for data")
    return "Generated shapes, b images per process:\n\n" + table(columns, rows)


def verdict(one: Measured, many: Measured) -> str:
    """What limits the speed, in words."""
    lost, base = Losses.of(one, many), median(one.step)
    excess = lost.sharing + lost.exchange
    parts = {"sharing the machine": lost.sharing, "exchange": lost.exchange, "data": many.waiting * median(many.fed)}
    spread = max(quartiles(each)[2] - quartiles(each)[0] for each in (one.step, many.step))
    most = max(parts, key=lambda part: parts[part])
    limit = f"The limit is {most}." if parts[most] > spread else "No part exceeds the spread of the steps."
    took = f"{1000 * lost.sharing:+.1f} ms by sharing the machine, {1000 * lost.exchange:+.1f} ms by exchange"
    model = f"{1000 * (lost.ring + lost.small):.1f} ms"
    return (
        f"N = {many.processes}: a step takes {1000 * excess:+.1f} ms ({excess / base:+.0%}) compared with one process: "
        f"{took}; the ring model and the small messages predict {model} for the exchange. With the loader it waits for "
        f"data {many.waiting:.0%} of the time. {limit}"
    )


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(__doc__)
    add, default = parser.add_argument, Setting()
    add("--device", default="cpu", help="cpu, or GPUs (0,1,2,3), one for each process")
    add("--processes", type=int, nargs="+", default=[1, 2], help="numbers of processes; 1 is the baseline")
    add("--cfg", default=default.cfg)
    add("--img", type=int, default=default.img, help="image side in pixels")
    add("--batch", type=int, default=default.batch, help="b: images per process; for strong scaling, images in total")
    add("--steps", type=int, default=default.steps, help="timed steps per pass")
    add("--warmup", type=int, default=default.warmup, help="warm-up steps per pass")
    add("--amp", default=default.amp, help="auto, fp32, bf16 or fp16")
    add("--sync-bn", action="store_true", help="synchronise BatchNorm over the processes")
    add("--workers", type=int, default=default.workers, help="max DataLoader workers per process")
    add("--boxes", type=int, default=default.boxes, help="boxes per synthetic image")
    add("--out", type=Path, default=ROOT / "runs" / "scaling.md", help="file for the report")
    add("--measure", type=Path, help=argparse.SUPPRESS)  # set by this script: the folder for a launch's results
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
            raise ValueError(f"--batch {batch}: must be a positive multiple of {number} (--processes)")


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = read_flags(words)
    setting = Setting(**{each.name: getattr(options, each.name) for each in fields(Setting)})
    if options.measure:
        measure_here(setting, options.device, options.measure)
        return
    numbers = sorted(set(options.processes))
    threads = max((os.cpu_count() or 1) // numbers[-1], 1)
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder) / "shapes", train=DRAWN_IMAGES, val=1, size=max(setting.img, 64))
        found = [launch(number, options.device, threads, Path(folder), words) for number in numbers]
    text = report(found, setting)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    run_and_exit(main)
