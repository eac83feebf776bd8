"""How far a run has come: epochs, batches, losses so far, rows of results.csv, early stopping."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from utils.distributed.world import World
from utils.training.checkpoints.contents import Checkpoint, PendingEpoch
from utils.training.early_stopping import EarlyStopping


class EpochLosses:
    """This process's share of an epoch's losses, summed on the device; batches that are not finite are left out."""

    def __init__(self, terms: Sequence[str], world: World, dtype: torch.dtype = torch.float32) -> None:
        self.terms, self.world = list(terms), world
        self.sums = torch.zeros(len(terms) + 1, dtype=dtype, device=world.device)  # the last one counts batches

    def add(self, losses: dict[str, Tensor]) -> None:
        """Add a batch's terms, scalars."""
        row = torch.stack([losses[term].detach() for term in self.terms] + [self.sums.new_ones(())])
        self.sums += torch.where(row.isfinite().all(), row, 0)

    def running_means(self, sums: Tensor) -> dict[str, float]:
        """About what `means` gives, from this process's share alone, as `sums` was at some time."""
        *values, batches = sums.tolist()
        return {term: value * self.world.size / max(batches, 1) for term, value in zip(self.terms, values, strict=True)}

    def means(self) -> dict[str, float]:
        """The mean of each term over the epoch's batches. A collective."""
        *sums, batches = self.world.all_reduce_sum(self.sums).tolist()
        batches = batches / self.world.size or float("nan")
        return {term: value / batches for term, value in zip(self.terms, sums, strict=True)}

    def clear(self) -> None:
        self.sums.zero_()

    def state(self) -> Tensor:
        """[processes, terms + 1]. A collective."""
        return self.world.all_gather_rows(self.sums.double().cpu()[None])

    def load(self, rows: Tensor) -> None:
        if len(rows) != self.world.size:  # rank 0 takes over all that was summed
            whole = torch.cat([rows.sum(0)[:-1], rows.mean(0)[-1:] * self.world.size])
            rows = torch.zeros(self.world.size, len(whole)).double()
            rows[0] = whole
        self.sums.copy_(rows[self.world.rank])


@dataclass
class RunProgress:
    """`epoch` epochs are trained, and of the next one `batch` batches.

    pending: what there is to say of the last epoch, as long as its validation is not evaluated.
    """

    early_stopping: EarlyStopping
    losses: EpochLosses
    epoch: int = 0
    batch: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last validation
    rows: list[dict[str, float]] = field(default_factory=list)  # of results.csv
    pending: PendingEpoch | None = None
    began: float = field(default_factory=time.perf_counter)  # the epoch

    def end_epoch(self, pace: str, lr: float) -> None:
        """Go to the next epoch; this one is pending until `complete_epoch`. A collective."""
        self.pending = PendingEpoch(self.seconds, self.losses.means(), lr, pace)
        self.epoch, self.batch, self.began = self.epoch + 1, 0, time.perf_counter()
        self.losses.clear()

    def complete_epoch(self, columns: Callable[[dict[str, float]], dict[str, float]]) -> tuple[str, dict[str, float]]:
        """Complete the row of the pending epoch: its pace in words, and the row. columns: those between time and lr, by
        the epoch's losses.

        Raises RuntimeError if no epoch is pending.
        """
        if self.pending is None:
            raise RuntimeError("no epoch is pending")
        about, self.pending = self.pending, None
        row = {"epoch": self.epoch, "time": about.time, **columns(about.losses), "lr": about.lr}
        self.rows.append(row)
        return about.pace, row

    @property
    def seconds(self) -> float:
        """How long the epoch has taken so far."""
        return time.perf_counter() - self.began

    def finished(self, epochs: int) -> bool:
        """Whether a run of so many epochs is done."""
        return self.epoch >= epochs or self.early_stopping.should_stop()

    def state(self) -> dict[str, Any]:
        """Its entries of a Checkpoint. A collective."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "losses": self.losses.state(),
            "best": self.early_stopping.state_dict(),
            "metrics": self.metrics,
            "results": self.rows,
            "open": asdict(self.pending) if self.pending else {},
        }

    def load(self, saved: Checkpoint) -> None:
        """Raises ValueError for losses of another model."""
        self.epoch, self.batch, self.began = saved.epoch, saved.batch, time.perf_counter() - saved.seconds
        self.losses.load(saved.losses)
        self.early_stopping.load_state_dict(saved.best)
        self.metrics, self.rows, self.pending = saved.metrics, saved.results, saved.pending
        losses = self.pending.losses if self.pending else {}
        if self.pending and {k: type(v) for k, v in losses.items()} != dict.fromkeys(self.losses.terms, float):
            raise ValueError(f"its losses are {losses}")
