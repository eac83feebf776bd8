"""Learning rate, momentum and accumulation as pure functions of the step."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from training.batch_size.global_batch import NOMINAL_BATCH, GlobalBatch
from training.optimizers import kind_of

SHORTEST_WARMUP = 100  # batches


@dataclass(frozen=True)
class Schedule:
    """The optimizer's learning rate, momentum and accumulation at each batch of a run.

    total: batches in the whole run. warmup: batches over which the learning rate rises from 0 (of
    biases falls from warmup_bias_lr), momentum rises from warmup_momentum and accumulation from 1.
    """

    total: int
    epochs: int
    batch_size: int
    nominal_batch: float = NOMINAL_BATCH
    lr0: float = 0.01
    lrf: float = 0.01
    cosine: bool = False
    momentum: float = 0.937
    warmup_epochs: float = 3.0
    warmup_momentum: float = 0.8
    warmup_bias_lr: float = 0.1

    @property
    def _batch(self) -> GlobalBatch:
        return GlobalBatch(self.batch_size, nominal=self.nominal_batch)

    @property
    def accumulate(self) -> int:
        """Batches per optimizer step, after warm-up."""
        return self._batch.accumulate

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps in the whole run, if its epochs have the same length, to within one
        batch; without warm-up.

        >>> # 13 batches in an epoch: 4, 3, 3, 3
        >>> Schedule(total=1300, epochs=100, batch_size=16).optimizer_steps
        400
        """
        ends = [epoch * self.total // self.epochs for epoch in range(self.epochs + 1)]
        return sum(-(-(end - start) // self.accumulate) for start, end in pairwise(ends))

    @property
    def warmup(self) -> int:
        """Batches of warm-up: warmup_epochs, at least 100, at most a quarter of the run."""
        if self.warmup_epochs == 0:
            return 0
        return min(
            max(round(self.warmup_epochs * self.total / self.epochs), SHORTEST_WARMUP),
            self.total // 4,
        )

    def decay(self, step: int) -> float:
        """The learning rate at a batch as a fraction of lr0, from 1 to lrf, without warm-up."""
        done = step / max(self.total, 1)
        if self.cosine:
            return (1 - math.cos(math.pi * done)) / 2 * (self.lrf - 1) + 1
        return (1 - done) * (1 - self.lrf) + self.lrf

    def _ramp(self, step: int, first: float, last: float) -> float:
        return last if step >= self.warmup else first + (last - first) * step / self.warmup

    def lr(self, step: int, group: str = "weight") -> float:
        """Learning rate of a group at a batch."""
        return self._ramp(
            step, self.warmup_bias_lr if group == "bias" else 0.0, self.lr0 * self.decay(step)
        )

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set every group's learning rate and momentum for a batch."""
        momentum = self._ramp(step, self.warmup_momentum, self.momentum)
        kind = kind_of(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = self.lr(step, group["name"] if kind.bias_warmup else "weight")
            kind.set_momentum(group, momentum)

    def _group_size(self, step: int) -> int:
        """Batches per optimizer step at a batch of the warm-up."""
        return max(1, round(self._ramp(step, 1, self._batch.batches_to_nominal)))

    def step_batches(self, first: int, last: int) -> set[int]:
        """The batches of an epoch, `first` to `last` - 1, after which the optimizer steps; always
        with the last one.

        No gradient is carried into the next epoch, and none is dropped: after warm-up the epoch is
        split into groups of equal size, to within one batch, and of at most `accumulate` batches.

        >>> sorted(Schedule(total=0, epochs=1, batch_size=16, warmup_epochs=0).step_batches(0, 13))
        [2, 5, 8, 12]
        """
        closing, start = set(), first
        for step in range(first, min(last, self.warmup)):
            if step - start + 1 >= self._group_size(step):
                closing.add(step)
                start = step + 1
        groups = -(-(last - start) // self.accumulate)
        return closing | {start + (last - start) * (k + 1) // groups - 1 for k in range(groups)}
