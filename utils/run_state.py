"""All that a run must keep to go on, after any optimizer step, as if it had never stopped.

A Learner is what training changes, a Course how far it has come. Nearly all of it is the same on every process. What is
not, its own share of the losses and BatchNorm's running statistics (which processes keep for themselves until an epoch
ends, unless they are synchronised), is saved as a table with a row for each process: as many processes go on to the
bit, another number with sums and means.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import torch
from torch import Tensor

from utils.devices import random_state, set_random_state
from utils.distributed import World
from utils.ema import EMA
from utils.finite import FiniteSteps
from utils.plateau import Plateau
from utils.replica import Model, Replica, running_statistics

FORMAT = 3  # of what is saved; counts up when an older one cannot be gone on with


@dataclass
class Learner(Generic[Model]):
    """The weights and what moves them. Each process averages its own copy, with which it can validate its share."""

    replica: Replica[Model]
    ema: EMA[Model]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    steps: FiniteSteps
    world: World

    def step(self, most_norm: float = 10.0) -> None:
        """An optimizer step of the gradients so far, clipped; left out on all processes if they are not finite."""
        self.scaler.unscale_(self.optimizer)
        self.steps.step(self.replica.clip_gradients(most_norm))
        self.scaler.update()
        self.optimizer.zero_grad()
        self.ema.update(self.replica.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """All processes must ask alike."""
        own = [part.flatten().double().cpu() for part in self._own_statistics()]
        return {
            "model": self.replica.state_dict(),
            "ema": self.ema.state_dict(),
            "ema_updates": self.ema.updates,
            "optimizer": self.replica.optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
            "steps": self.steps.state_dict(),
            "statistics": self.world.gather(torch.cat([torch.zeros(0).double(), *own])[None]),  # [processes, numbers]
            "random": random_state(self.world.device),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Settings of the optimizer stay this run's own, but for those that the schedule sets anew at each step."""
        self.replica.load_state_dict(saved["model"])
        self.ema.model.load_state_dict(saved["ema"])
        self.ema.updates = saved["ema_updates"]
        own_groups, groups = self.optimizer.state_dict()["param_groups"], saved["optimizer"]["param_groups"]
        groups = [
            own | {name: group[name] for name in ("lr", "momentum", "betas") if name in own}
            for own, group in zip(own_groups, groups, strict=True)
        ]
        self.replica.load_optimizer_state(self.optimizer, saved["optimizer"] | {"param_groups": groups})
        for parameter, state in self.optimizer.state.items():
            if any(value.ndim and value.shape != parameter.shape for value in state.values() if torch.is_tensor(value)):
                raise ValueError("the optimizer's state is of another model")
        if saved["scaler"]:  # of a run in float16; another one has nothing to scale
            self.scaler.load_state_dict(saved["scaler"])
        rows, own = saved["statistics"], self._own_statistics()
        if not len(rows):
            raise ValueError("it is of no process")
        row = rows[self.world.rank] if len(rows) == self.world.size else rows.mean(0)
        for part, values in zip(own, row.split([part.numel() for part in own]), strict=True):
            part.copy_(values.view_as(part))
        self.steps.load_state_dict(saved["steps"])
        set_random_state(saved["random"], self.world.device)

    def _own_statistics(self) -> list[Tensor]:
        return [*running_statistics(self.replica.model), *running_statistics(self.ema.model)]


class LossTally:
    """This process's share of an epoch's losses, summed on the device; batches that are not finite are left out."""

    def __init__(self, terms: Sequence[str], world: World, dtype: torch.dtype = torch.float32) -> None:
        self.terms, self.world = list(terms), world
        self.sums = torch.zeros(len(terms) + 1, dtype=dtype, device=world.device)  # the last one counts batches

    def add(self, losses: dict[str, Tensor]) -> None:
        """Take in a batch's terms, scalars."""
        row = torch.stack([losses[term].detach() for term in self.terms] + [self.sums.new_ones(())])
        self.sums += torch.where(row.isfinite().all(), row, 0)

    def so_far(self, sums: Tensor) -> dict[str, float]:
        """About what `means` gives, from this process's share alone, as `sums` was at some time."""
        *values, batches = sums.tolist()
        return {term: value * self.world.size / max(batches, 1) for term, value in zip(self.terms, values, strict=True)}

    def means(self) -> dict[str, float]:
        """The mean of each term over the epoch's batches. All processes must ask alike."""
        *sums, batches = self.world.sum(self.sums).tolist()
        batches = batches / self.world.size or float("nan")
        return {term: value / batches for term, value in zip(self.terms, sums, strict=True)}

    def clear(self) -> None:
        self.sums.zero_()

    def state_dict(self) -> Tensor:
        """[processes, terms + 1]. All processes must ask alike."""
        return self.world.gather(self.sums.double().cpu()[None])

    def load_state_dict(self, rows: Tensor) -> None:
        if len(rows) != self.world.size:  # rank 0 takes over all that was summed
            whole = torch.cat([rows.sum(0)[:-1], rows.mean(0)[-1:] * self.world.size])
            rows = torch.zeros(self.world.size, len(whole)).double()
            rows[0] = whole
        self.sums.copy_(rows[self.world.rank])


@dataclass
class Course:
    """How far a run has come: `epoch` epochs are done, and of the next one `batch` batches.

    open: what there is to say of the last epoch, as long as its validation is not taken in; else empty.
    """

    plateau: Plateau
    tally: LossTally
    epoch: int = 0
    batch: int = 0
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last validation
    rows: list[dict[str, float]] = field(default_factory=list)  # of results.csv
    open: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)  # the epoch

    def next_epoch(self, pace: str, lr: float) -> None:
        """Leave the epoch, open until `close`. All processes must ask alike."""
        about = {"time": self.seconds, "losses": self.tally.means(), "lr": lr, "pace": pace}
        self.epoch, self.batch, self.began, self.open = self.epoch + 1, 0, time.perf_counter(), about
        self.tally.clear()

    def close(self, columns: Callable[[dict[str, float]], dict[str, float]]) -> tuple[str, dict[str, float]]:
        """Complete the row of the epoch that is open: its pace in words, and the row. columns: by its losses."""
        about, self.open = self.open, {}
        row = {"epoch": self.epoch, "time": about["time"], **columns(about["losses"]), "lr": about["lr"]}
        self.rows.append(row)
        return about["pace"], row

    @property
    def seconds(self) -> float:
        """How long the epoch has taken so far."""
        return time.perf_counter() - self.began

    def over(self, epochs: int) -> bool:
        """Whether a run of so many epochs is done."""
        return self.epoch >= epochs or self.plateau.over()

    def state_dict(self) -> dict[str, Any]:
        """All processes must ask alike."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "seconds": self.seconds,
            "losses": self.tally.state_dict(),
            "best": self.plateau.state_dict(),
            "metrics": self.metrics,
            "results": self.rows,
            "open": self.open,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.epoch, self.batch, self.began = saved["epoch"], saved["batch"], time.perf_counter() - saved["seconds"]
        self.tally.load_state_dict(saved["losses"])
        self.plateau.load_state_dict(saved["best"])
        self.metrics, self.rows, self.open = saved["metrics"], saved["results"], saved["open"]
        losses = self.open.get("losses", {})
        if self.open and {name: type(value) for name, value in losses.items()} != dict.fromkeys(
            self.tally.terms, float
        ):
            raise ValueError(f"its losses are {losses}")
