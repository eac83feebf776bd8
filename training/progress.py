"""The progress of a run: epochs, batches, losses so far, rows of results.csv, early stopping."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from training.checkpoints.contents import Checkpoint, PendingEpoch
from training.early_stopping import EarlyStopping
from training.schedule import Schedule
from utils.distributed.host_copies import AsyncHostCopy
from utils.distributed.world import World
from utils.log import RunLog, StepsEnded

FETCH_EVERY = 20  # batches between copies of the losses from a GPU to the host


class EpochLosses:
    """The sum of this process's losses over an epoch, on the device.

    A process's loss of a batch is its share: the sum over all processes is the loss of the global
    batch. Batches whose loss is not finite are left out.
    """

    def __init__(
        self, terms: Sequence[str], world: World, dtype: torch.dtype = torch.float32
    ) -> None:
        self.terms = list(terms)
        self.world = world
        # the last entry counts batches
        self.sums = torch.zeros(len(terms) + 1, dtype=dtype, device=world.device)

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add a batch's terms, scalars."""
        terms = [losses[term].detach() for term in self.terms]
        one_batch = self.sums.new_ones(())
        row = torch.stack([*terms, one_batch])
        self.sums += torch.where(row.isfinite().all(), row, 0)

    def running_means(self, sums: Tensor) -> dict[str, float]:
        """Return an estimate of `means` from this process's losses alone.

        sums: a copy of `self.sums` on the host.
        """
        *own_sums, batches = sums.tolist()
        # as if the shares of all processes were alike
        means = [own_sum * self.world.size / max(batches, 1) for own_sum in own_sums]
        return dict(zip(self.terms, means, strict=True))

    def means(self) -> dict[str, float]:
        """Return the mean of each term over the epoch's batches. A collective."""
        *sums, batch_counts = self.world.all_reduce_sum(self.sums).tolist()
        # every process has counted each global batch; nan without any
        batches = batch_counts / self.world.size or float("nan")
        return {term: value / batches for term, value in zip(self.terms, sums, strict=True)}

    def clear(self) -> None:
        """Start a new epoch."""
        self.sums.zero_()

    def state(self) -> Tensor:
        """Return the sums of all processes, [processes, terms + 1]. A collective."""
        own = self.sums.cpu().double()  # Metal has no float64
        return self.world.all_gather_rows(own[None])

    def load(self, rows: Tensor) -> None:
        """Restore the result of `state`, of this or another number of processes."""
        if len(rows) != self.world.size:
            # Rank 0 takes the total of the losses, and a count of batches for all processes.
            sums = rows.sum(0)[:-1]
            batch_counts = rows.mean(0)[-1:] * self.world.size
            rows = torch.zeros(self.world.size, len(self.sums)).double()
            rows[0] = torch.cat([sums, batch_counts])
        self.sums.copy_(rows[self.world.rank].to(self.sums.dtype))


class StepReports:
    """Sends the mean losses of an epoch so far to the log, and never waits for the device.

    A GPU's losses arrive some batches later (AsyncHostCopy). `flush` waits for those on their way:
    call it at the end of the epoch and before a save, which wait for the device in any case. So
    the batches that are reported do not depend on where a run was interrupted.

    Args:
        losses: the sums of the epoch.
        schedule: gives the learning rate of a batch.
        log: receives a StepsEnded for each report.
        epoch: counted from 0.
        first_batch: number of the epoch's first batch in the run, from 0.
    """

    def __init__(
        self,
        losses: EpochLosses,
        schedule: Schedule,
        log: RunLog,
        *,
        epoch: int,
        first_batch: int,
    ) -> None:
        self.losses = losses
        self.schedule = schedule
        self.log = log
        self.epoch = epoch
        self.first_batch = first_batch
        device = losses.world.device
        self.every = 1 if device.type == "cpu" else FETCH_EVERY
        self._copies = AsyncHostCopy(device)
        self._on_their_way: deque[int] = deque()  # batches of the run

    def add(self, number: int) -> list[dict[str, float]]:
        """Report the losses up to a batch of the epoch, numbered from 0, if it is due.

        Returns the mean of each term, for each copy that has arrived: one at most.
        """
        if number % self.every:
            return []
        self._on_their_way.append(self.first_batch + number)
        arrived = self._copies.push(self.losses.sums)
        return [self._report(self.losses.running_means(sums)) for sums in arrived]

    def flush(self) -> None:
        """Wait for the copies on their way and report them."""
        for sums in self._copies.drain():
            self._report(self.losses.running_means(sums))

    def _report(self, means: dict[str, float]) -> dict[str, float]:
        batch = self._on_their_way.popleft()
        lr = self.schedule.lr(batch)
        self.log.send(StepsEnded(batch + 1, self.epoch + 1, means, lr))
        return means


@dataclass
class RunProgress:
    """How far a run is: `epoch` epochs are trained, and `batch` batches of the next one.

    pending: the last epoch, from its end until its metrics are recorded.
    """

    early_stopping: EarlyStopping
    losses: EpochLosses
    epoch: int = 0
    batch: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last validation
    results: list[dict[str, float]] = field(default_factory=list)  # rows of results.csv
    pending: PendingEpoch | None = None
    recorded: int = 0  # records of the loggers' journal, see utils/loggers/journal.py
    epoch_start: float = field(default_factory=time.perf_counter)  # start of the epoch

    def end_epoch(self, pace: str, lr: float) -> None:
        """Go to the next epoch; the one that ends is pending until `complete_epoch`. A collective.

        pace: its speed as text. lr: the learning rate of its last batch.
        """
        self.pending = PendingEpoch(self.seconds, self.losses.means(), lr, pace)
        self.epoch += 1
        self.batch = 0
        self.epoch_start = time.perf_counter()
        self.losses.clear()

    def complete_epoch(
        self, columns: Callable[[dict[str, float]], dict[str, float]]
    ) -> tuple[str, dict[str, float]]:
        """Append the pending epoch's row to `results`; return its speed as text, and the row.

        columns: returns the columns between time and lr, given the epoch's losses.

        Raises RuntimeError if no epoch is pending.
        """
        pending = self.pending
        if pending is None:
            raise RuntimeError("no epoch is pending")
        self.pending = None

        row = {
            "epoch": self.epoch,
            "time": pending.time,
            **columns(pending.losses),
            "lr": pending.lr,
        }
        self.results.append(row)
        return pending.pace, row

    @property
    def seconds(self) -> float:
        """Seconds since the start of the epoch."""
        return time.perf_counter() - self.epoch_start

    def finished(self, epochs: int) -> bool:
        """Return whether a run of `epochs` epochs is done or has stopped early."""
        return self.epoch >= epochs or self.early_stopping.should_stop()

    def state(self) -> dict[str, Any]:
        """Return the entries of a Checkpoint that hold the progress. A collective."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "losses": self.losses.state(),
            "best": self.early_stopping.state_dict(),
            "metrics": self.metrics,
            "results": self.results,
            "pending": asdict(self.pending) if self.pending else {},
            "recorded": self.recorded,
        }

    def load(self, saved: Checkpoint) -> None:
        """Restore a checkpoint. Raises ValueError if its losses are those of another model."""
        self.epoch = saved.epoch
        self.batch = saved.batch
        self.epoch_start = time.perf_counter() - saved.seconds
        self.losses.load(saved.losses)
        self.early_stopping.load_state_dict(saved.best)
        self.metrics = saved.metrics
        self.results = saved.results
        self.recorded = saved.recorded
        self.pending = saved.pending_epoch()
        if self.pending is not None:
            self._check_losses(self.pending.losses)

    def _check_losses(self, losses: dict[str, float]) -> None:
        """Raise ValueError unless there is a number for each term of this run's loss."""
        kinds = {name: type(value) for name, value in losses.items()}
        if kinds != dict.fromkeys(self.losses.terms, float):
            expected = ", ".join(self.losses.terms)
            raise ValueError(f"its losses are {losses}, expected a number for each of {expected}")
