"""Timed training steps: train.py's `train_one_epoch` on batches that record when each begins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from data.loader import Batch
from data.sampler import TrainSampler
from models import LossGains, build_loss, build_model
from train import train_one_epoch
from training.checkpoints.manager import CheckpointManager
from training.checkpoints.preemption import SaveTrigger
from training.compiled_loss import compile_loss
from training.global_batch import NOMINAL_BATCH, GlobalBatch
from training.schedule import Schedule
from training.settings.hyperparameters import Hyp
from training.state import build_train_state
from utils.distributed.devices import tuned_convolutions, wait_for
from utils.distributed.host_copies import to_device
from utils.distributed.precision import choose_precision, weights_dtype
from utils.distributed.torch_compile import compile_model
from utils.distributed.world import World
from utils.log import RunLog
from utils.progress_bar import ProgressBar
from utils.threads import BackgroundTask

NUM_CLASSES = 80
LEARNING_RATE = 1e-3  # small enough that the loss stays finite on one batch repeated


@dataclass(frozen=True)
class Setting:
    """The settings of the measurement, the same for every number of processes."""

    cfg: str = "yolov5n.yaml"
    img: int = 320
    batch: int = 8  # images per process (b)
    steps: int = 20
    warmup: int = 3
    amp: str = "auto"
    sync_bn: bool = False
    workers: int = 8
    boxes: int = 7  # per image, as in COCO
    optimizer: str = "SGD"


class Mark(NamedTuple):
    """The beginning of a step."""

    seconds: float  # on the host
    waited: float  # seconds of them, for batches
    event: Any  # of the device; None on a CPU


class Clocked(Iterable[Batch]):
    """Batches for train_one_epoch that record when each step begins, and the waits for batches."""

    def __init__(
        self, batches: Iterable[Batch], sampler: TrainSampler, device: torch.device
    ) -> None:
        self.sampler = sampler
        self.device = device
        self.progress = ProgressBar(batches, total=len(sampler), title="", active=False)
        self.marks: list[Mark] = []  # one more than steps

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
        self.marks.append(Mark(self.progress.seconds, self.progress.waited, event))

    def seconds(self, first: int) -> list[float]:
        """Seconds of each step from step `first` on, including the wait for the next batch."""
        wait_for(self.device)
        steps = list(pairwise(self.marks))[first:]
        if self.device.type == "cpu":
            return [end.seconds - begin.seconds for begin, end in steps]
        return [begin.event.elapsed_time(end.event) / 1000 for begin, end in steps]

    def waiting(self, first: int) -> float:
        """The share of the host's time from step `first` on that was spent waiting for batches."""
        begin = self.marks[first]
        end = self.marks[-1]
        return (end.waited - begin.waited) / (end.seconds - begin.seconds)


def fixed_batches(setting: Setting, world: World, count: int, seed: int) -> Clocked:
    """The same synthetic batch `count` times."""
    batch = made_up_batch(setting, seed, world.device)
    return repeated(batch, setting, world, count)


def repeated(batch: Batch, setting: Setting, world: World, count: int) -> Clocked:
    """A batch of `setting.batch` images `count` times."""
    total = setting.batch * world.size
    images = np.ones(count * total)
    sampler = TrainSampler(images, batch_size=total, image_size=setting.img, seed=0)
    return Clocked(repeat(batch, count), sampler, world.device)


def made_up_batch(setting: Setting, seed: int, device: torch.device) -> Batch:
    """A batch of noise, with boxes whose sides are an eighth to half of the image side."""
    random = torch.Generator().manual_seed(seed)
    side = setting.img
    images = torch.randint(256, (setting.batch, side, side, 3), dtype=torch.uint8, generator=random)

    # [boxes, 6]: image, class, x1, y1, x2, y2
    count = setting.batch * setting.boxes
    owner = torch.arange(setting.batch).repeat_interleave(setting.boxes)[:, None]
    class_ids = torch.randint(NUM_CLASSES, (count, 1), generator=random)
    sizes = side * (0.125 + 0.375 * torch.rand(count, 2, generator=random))
    corners = torch.rand(count, 2, generator=random) * (side - sizes)
    targets = torch.cat([owner, class_ids, corners, corners + sizes], 1)

    indices = torch.arange(setting.batch)
    no_placement = torch.full((setting.batch, 4), torch.nan, dtype=torch.float64)
    return Batch(images.to(device), targets.to(device), indices, no_placement)


def train_through(
    batches: Clocked,
    setting: Setting,
    world: World,
    *,
    group: int = 1,
    change: Callable[[Any], None] | None = None,
    watch: Callable[[int], None] | None = None,
    compiled: str = "off",
    tuned: bool = True,
) -> None:
    """Train a new model on `batches` as train.py does.

    Args:
        batches: the batches, whose marks are the result.
        setting: of the model and the optimizer.
        world: the processes that train together.
        group: batches per optimizer step.
        change: is called with the replica before training.
        watch: is called with the number of each batch.
        compiled: torch.compile's mode, or off.
        tuned: whether cuDNN times its convolutions first, which takes seconds.

    Raises ValueError if the losses do not stay finite, because then the times are not those of
    training.
    """
    torch.manual_seed(0)
    model = build_model(setting.cfg, NUM_CLASSES)
    precision = choose_precision(setting.amp, world.device)
    model.to(weights_dtype(precision)).to(memory_format=torch.channels_last).to(world.device)
    criterion = build_loss(model.head, LossGains(), auxiliary=model.auxiliary_head)
    criterion.to(weights_dtype(precision))
    accumulating = GlobalBatch(NOMINAL_BATCH // group)  # only its accumulation matters
    state = build_train_state(
        model,
        world,
        accumulating,
        Schedule(
            total_batches=len(batches),
            epochs=1,
            batch_size=accumulating.size,
            lr0=LEARNING_RATE,
            warmup_epochs=0,
        ),
        precision=precision,
        optimizer=setting.optimizer,
        weight_decay=Hyp().weight_decay,
        loss_terms=criterion.terms,
        sync_bn=setting.sync_bn and world.size > 1,
        say=print,
    )
    state.batch = GlobalBatch(setting.batch * world.size, world.size)

    if change is not None:
        change(state.replica)
    if compiled != "off":
        pixels = torch.zeros(setting.batch, setting.img, setting.img, 3, dtype=torch.uint8)
        images = to_device(pixels, world.device, model.dtype)
        forward = state.replica.without_exchange
        print(compile_model(model, compiled, images, state.autocast, world, forward=forward))
        print(compile_loss(criterion, model, images, state.autocast, world))

    loader: Any = batches  # has all of a loader that train_one_epoch uses
    watched: Any = Watched(watch)
    description: Any = None  # unused, because nothing is saved
    background = BackgroundTask("")
    trigger = SaveTrigger(world, 0, background)
    checkpoints = CheckpointManager(
        Path(), state, description, trigger, background, final_only=True, period=0
    )
    with checkpoints, trigger, tuned_convolutions(one_shape=tuned):
        train_one_epoch(
            state,
            loader,
            criterion,
            checkpoints,
            trigger.all_reduce_sum,
            RunLog(active=False),
            title="",
            pictures=watched,
        )
    means = state.progress.losses.means()
    if not np.isfinite(list(means.values())).all():
        raise ValueError(f"the losses did not stay finite: {means}")


class Watched:
    """Calls a function with the number of each batch, in place of what plots the first ones."""

    def __init__(self, watch: Callable[[int], None] | None) -> None:
        self.watch = watch

    def train_batch(self, number: int, *_: Any) -> None:
        if self.watch is not None:
            self.watch(number)


def exchange_always(replica: Any) -> None:
    """Make a replica exchange gradients after every batch, not only before an optimizer step."""
    replica.gradients = lambda last: contextlib.nullcontext()
