"""The training state: weights, averaged weights, optimizer, gradient scaler and progress.

Nearly all of it is the same on every process. The exceptions are each process's share of the losses
and, unless BatchNorm is synchronized, its running statistics until the end of an epoch. Both are
saved as tables with a row per process. As many processes resume with the same bits, another number
of processes with sums and means of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic

import torch
from torch import Tensor

from models.detector import Detector
from training.averages.batch_norm import follow_short_run
from training.averages.ema import EMA, ema_constants
from training.checkpoints.contents import Checkpoint, Description
from training.early_stopping import EarlyStopping
from training.global_batch import GlobalBatch
from training.nonfinite import NonFiniteGuard
from training.optimizers import build_optimizer, check_state, match_strides, restored_group
from training.progress import EpochLosses, RunProgress
from training.schedule import Schedule
from utils.distributed.devices import random_state, set_random_state
from utils.distributed.modes import build_replica, synchronize_if_asked
from utils.distributed.precision import autocast_for, weights_dtype
from utils.distributed.replica import Model, Replica, running_statistics, sync_buffers
from utils.distributed.world import World
from utils.log import Say

MAX_GRADIENT_NORM = 10.0


@dataclass
class TrainState(Generic[Model]):
    """The model and all that training changes.

    Each process has a copy of the averaged weights, to validate with.
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
        """Clip the gradients and step the optimizer.

        All processes skip the step if the gradients are not finite.
        """
        self.scaler.unscale_(self.optimizer)
        self.guard.step(self.replica.clip_gradients(max_norm))
        self.scaler.update()
        self.optimizer.zero_grad()
        self.ema.update(self.replica.live_state())

    def checkpoint(self, description: Description) -> Checkpoint:
        """Return the checkpoint that the run can resume from. A collective."""
        # This process's row of BatchNorm's statistics; first to the CPU: Metal has no float64.
        own = [statistic.flatten().cpu().double() for statistic in self._own_statistics()]
        own_row = torch.cat([torch.zeros(0).double(), *own])  # empty without BatchNorm
        return Checkpoint(
            description,
            **self.progress.state(),
            model=dict(self.replica.state_dict()),
            ema=self.ema.state_dict(),
            ema_updates=self.ema.updates,
            optimizer=self.replica.optimizer_state(self.optimizer),
            scaler=self.scaler.state_dict(),
            guard=self.guard.state_dict(),
            statistics=self.world.all_gather_rows(own_row[None]),
            random=random_state(self.world.device),
        )

    def load(self, saved: Checkpoint) -> None:
        """Restore a checkpoint. Raises ValueError if it is of another model."""
        self.replica.load_state_dict(saved.model)
        self.ema.model.load_state_dict(saved.ema)
        self.ema.updates = saved.ema_updates
        self._load_optimizer(saved.optimizer)
        if saved.scaler:  # empty unless the run trains in float16
            self.scaler.load_state_dict(saved.scaler)
        self._load_statistics(saved.statistics)
        self.guard.load_state_dict(saved.guard)
        set_random_state(saved.random, self.world.device)
        self.progress.load(saved)

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        """Restore the optimizer, except settings that depend on this run's flags or device."""
        own_groups = self.optimizer.state_dict()["param_groups"]
        groups = []
        for own, group in zip(own_groups, saved["param_groups"], strict=True):
            groups.append(restored_group(own, group))
        self.replica.load_optimizer_state(self.optimizer, saved | {"param_groups": groups})
        check_state(self.optimizer)
        match_strides(self.optimizer)

    def _load_statistics(self, rows: Tensor) -> None:
        """Restore BatchNorm's running statistics. rows: one of each process that saved them."""
        if not len(rows):
            raise ValueError("its statistics have no rows")
        same_processes = len(rows) == self.world.size
        row = rows[self.world.rank] if same_processes else rows.mean(0)

        own = self._own_statistics()
        pieces = row.split([statistic.numel() for statistic in own])
        for statistic, values in zip(own, pieces, strict=True):
            statistic.copy_(values.view_as(statistic).to(statistic.dtype))

    def _own_statistics(self) -> list[Tensor]:
        """Return BatchNorm's running statistics on this process, of the model and its average."""
        return [*running_statistics(self.replica.model), *running_statistics(self.ema.model)]

    def describe(self, batches: int, optimizer: str) -> str:
        """Return precision, batch size, optimizer and learning rate as text.

        batches: number of batches in an epoch. optimizer: its name.
        """
        precision = str(self.precision).removeprefix("torch.")
        batch = f"batch {self.batch.size}"
        if self.world.size > 1:
            batch += f" ({self.batch.per_process} in each of {self.world.size} processes)"
        accumulate = min(self.batch.accumulate, batches)
        return (
            f"{precision}; {batch}, batches per optimizer step: {accumulate}; "
            f"{optimizer}, learning rate {self.schedule.lr0:g}"
        )

    def steps_between(self, epoch_starts: Sequence[int]) -> int:
        """Return the number of optimizer steps in epochs that start at these batches.

        The last number is the end of the last epoch.
        """
        steps = 0
        for first_batch, next_epoch in pairwise(epoch_starts):
            steps += len(self.schedule.step_batches(first_batch, next_epoch))
        return steps

    def sync_buffers(self) -> None:
        """Make weights and statistics the same on all processes, after an epoch."""
        self.replica.sync_buffers(self.world, synchronized=self.synchronized)
        sync_buffers(self.ema.model, self.world, synchronized=self.synchronized)
        self.guard.snapshot_statistics()


def build_train_state(
    model: Detector,
    world: World,
    batch: GlobalBatch,
    schedule: Schedule,
    *,
    precision: torch.dtype,
    optimizer: str,
    weight_decay: float,
    loss_terms: Sequence[str],
    patience: int = 0,
    sync_bn: bool = False,
    shard: bool = False,
    say: Say,
) -> TrainState[Detector]:
    """Return the state of a new run.

    Args:
        model: in training mode, on its device.
        precision: of the forward pass.
        optimizer: its name.
        weight_decay: for a step of the nominal batch.
        loss_terms: their names, in results.csv's order.
        patience: of early stopping, in epochs; 0 for none.
        sync_bn: whether to synchronize BatchNorm over all processes.
        shard: whether to shard weights and optimizer state, layer by layer.
        say: logs a line for `shard` or `sync_bn` that has no effect.
    """
    follow_short_run(model, schedule.total_batches)

    # The average is of the unsharded model, so it is copied before the replica shards it.
    synchronized = synchronize_if_asked(model, world, sync_bn=sync_bn, shard=shard, say=say)
    decay, tau = ema_constants(schedule.optimizer_steps)
    ema = EMA(model, decay, tau)

    replica = build_replica(
        model,
        world,
        sharded_layers=list(model.layers) if shard else None,
        accumulates=schedule.accumulate > 1,
    )
    dtype = weights_dtype(precision)
    side = 2 * max(model.strides)  # a small image, of 2 x 2 cells on the coarsest level
    replica.warm_up(torch.zeros(1, 3, side, side, dtype=dtype, device=world.device))

    torch_optimizer = build_optimizer(
        model,
        optimizer,
        lr=schedule.lr0,
        momentum=schedule.momentum,
        weight_decay=batch.weight_decay(weight_decay),
    )
    scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
    guard = NonFiniteGuard(
        torch_optimizer, running_statistics(model), world.device, searching=scaler.is_enabled()
    )
    losses = EpochLosses(loss_terms, world, dtype)
    return TrainState(
        replica=replica,
        ema=ema,
        optimizer=torch_optimizer,
        schedule=schedule,
        scaler=scaler,
        guard=guard,
        autocast=autocast_for(precision, world.device),
        batch=batch,
        progress=RunProgress(EarlyStopping(patience), losses),
        world=world,
        precision=precision,
        synchronized=synchronized,
    )
