"""The training state: weights, averaged weights, optimizer, gradient scaler and progress.

Nearly all of it is the same on every process. The exceptions are each process's share of the losses
and BatchNorm's running statistics, which differ between processes until the end of an epoch unless
BatchNorm is synchronized. These are saved as a table with a row per process: the same number of
processes resumes to the bit, another number of processes with sums and means.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic

import torch
from torch import Tensor, nn

from training.batch_size.global_batch import GlobalBatch
from training.checkpoints.contents import Checkpoint, Description
from training.early_stopping import EarlyStopping
from training.ema import EMA, ema_constants
from training.nonfinite import NonFiniteGuard
from training.optimizers import build_optimizer, check_state, match_strides, restored_group
from training.progress import EpochLosses, RunProgress
from training.schedule import Schedule
from utils.distributed.devices import describe, random_state, set_random_state
from utils.distributed.modes import build_replica, synchronize_if_asked
from utils.distributed.precision import autocast_for, weights_dtype
from utils.distributed.replica import Model, Replica, running_statistics, sync_buffers
from utils.distributed.world import World

MAX_GRADIENT_NORM = 10.0


@dataclass
class TrainState(Generic[Model]):
    """The model and all that training changes. Each process has a copy of the averaged weights, to
    validate with.
    """

    replica: Replica[Model]
    ema: EMA[Model]
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    scaler: torch.amp.GradScaler
    guard: NonFiniteGuard
    autocast: torch.autocast
    batch: GlobalBatch
    progress: RunProgress
    world: World
    precision: torch.dtype  # of the forward pass
    synchronized: bool  # whether BatchNorm is synchronized

    def step(self, max_norm: float = MAX_GRADIENT_NORM) -> None:
        """Clip the gradients and step the optimizer; all processes skip the step if the gradients
        are not finite.
        """
        self.scaler.unscale_(self.optimizer)
        self.guard.step(self.replica.clip_gradients(max_norm))
        self.scaler.update()
        self.optimizer.zero_grad()
        self.ema.update(self.replica.live_state())

    def checkpoint(self, description: Description) -> Checkpoint:
        """The checkpoint that the run can resume from. A collective."""
        # Metal has no float64
        own = [part.flatten().cpu().double() for part in self._own_statistics()]
        return Checkpoint(
            description,
            **self.progress.state(),
            model=dict(self.replica.state_dict()),
            ema=self.ema.state_dict(),
            ema_updates=self.ema.updates,
            optimizer=self.replica.optimizer_state(self.optimizer),
            scaler=self.scaler.state_dict(),
            steps=self.guard.state_dict(),
            statistics=self.world.all_gather_rows(torch.cat([torch.zeros(0).double(), *own])[None]),
            random=random_state(self.world.device),
        )

    def load(self, saved: Checkpoint) -> None:
        """Restore a checkpoint. Raises ValueError if it is of another model.

        Of the optimizer, only the settings that depend on this run's flags or device stay this
        run's own.
        """
        self.replica.load_state_dict(saved.model)
        self.ema.model.load_state_dict(saved.ema)
        self.ema.updates = saved.ema_updates
        own_groups, groups = (
            self.optimizer.state_dict()["param_groups"],
            saved.optimizer["param_groups"],
        )
        groups = [restored_group(own, group) for own, group in zip(own_groups, groups, strict=True)]
        self.replica.load_optimizer_state(
            self.optimizer, saved.optimizer | {"param_groups": groups}
        )
        check_state(self.optimizer)
        match_strides(self.optimizer)
        if saved.scaler:  # empty unless the run trains in float16
            self.scaler.load_state_dict(saved.scaler)
        rows, own = saved.statistics, self._own_statistics()
        if not len(rows):
            raise ValueError("its statistics have no rows")
        row = rows[self.world.rank] if len(rows) == self.world.size else rows.mean(0)
        for part, values in zip(own, row.split([part.numel() for part in own]), strict=True):
            part.copy_(values.view_as(part).to(part.dtype))
        self.guard.load_state_dict(saved.steps)
        set_random_state(saved.random, self.world.device)
        self.progress.load(saved)

    def describe(self, batches: int, optimizer: str) -> str:
        """Device, precision, batch size, optimizer and learning rate as text. batches: in an
        epoch.
        """
        batch, size, precision = (
            self.batch,
            self.world.size,
            str(self.precision).removeprefix("torch."),
        )
        each = f" ({batch.per_process} in each of {size} processes)" if size > 1 else ""
        steps = f"batches per optimizer step: {min(batch.accumulate, batches)}"
        learning = f"{optimizer}, learning rate {self.schedule.lr0:g}"
        return (
            f"{describe(self.world.device)}, {precision}; batch {batch.size}{each}, "
            f"{steps}; {learning}"
        )

    def steps_between(self, epoch_starts: Sequence[int]) -> int:
        """The number of optimizer steps in epochs that start, and of which the last one ends, at
        these batches.
        """
        return sum(
            len(self.schedule.step_batches(first, last)) for first, last in pairwise(epoch_starts)
        )

    def sync_buffers(self) -> None:
        """After an epoch, make weights and statistics the same on all processes."""
        self.replica.sync_buffers(self.world, synchronized=self.synchronized)
        sync_buffers(self.ema.model, self.world, synchronized=self.synchronized)
        self.guard.snapshot_statistics()

    def _own_statistics(self) -> list[Tensor]:
        return [*running_statistics(self.replica.model), *running_statistics(self.ema.model)]


def build_train_state(
    model: Model,
    world: World,
    batch: GlobalBatch,
    precision: torch.dtype,
    loss_terms: Sequence[str],
    *,
    layers: Sequence[nn.Module],
    smallest_side: int,
    total: int,
    epochs: int,
    patience: int,
    cosine: bool,
    optimizer: str,
    weight_decay: float,
    sync_bn: bool,
    shard: bool,
    say: Callable[[str], None],
    **rates: float,
) -> TrainState[Model]:
    """The state of a new run of a model in training mode, on its device.

    layers: those that `shard` gathers one by one. smallest_side: pixels of the smallest square
    image that the model takes. total: batches in the whole run. patience: of early stopping, 0 for
    none. weight_decay: for a step of the nominal batch. rates: further arguments of Schedule.
    """
    synchronized = synchronize_if_asked(model, world, sync_bn=sync_bn, shard=shard, say=say)
    schedule = Schedule(
        total=total,
        epochs=epochs,
        batch_size=batch.size,
        nominal_batch=batch.nominal,
        cosine=cosine,
        **rates,
    )
    ema = EMA(model, *ema_constants(schedule.optimizer_steps))
    accumulates = schedule.accumulate > 1
    replica = build_replica(
        model, world, sharded_layers=layers if shard else None, accumulates=accumulates
    )
    side, dtype = smallest_side, weights_dtype(precision)
    replica.warm_up(torch.zeros(1, 3, side, side, dtype=dtype, device=world.device))
    decay = batch.weight_decay(weight_decay)
    built = build_optimizer(
        model, optimizer, lr=schedule.lr0, momentum=schedule.momentum, weight_decay=decay
    )
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
    guard = NonFiniteGuard(
        built, running_statistics(model), world.device, searching=scaler.is_enabled()
    )
    return TrainState(
        replica=replica,
        ema=ema,
        optimizer=built,
        schedule=schedule,
        scaler=scaler,
        guard=guard,
        autocast=autocast_for(precision, world.device),
        batch=batch,
        progress=RunProgress(EarlyStopping(patience), EpochLosses(loss_terms, world, dtype)),
        world=world,
        precision=precision,
        synchronized=synchronized,
    )
