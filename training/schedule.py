"""Learning rate, momentum and accumulation as pure functions of the batch's number."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch

from training.global_batch import NOMINAL_BATCH, GlobalBatch
from training.optimizers import kind_of

SHORTEST_WARMUP = 100  # batches


@dataclass(frozen=True)
class Schedule:
    """The optimizer's learning rate, momentum and accumulation at each batch of a run.

    During warm-up the learning rate rises from 0 (that of biases falls from warmup_bias_lr),
    momentum rises from warmup_momentum, and accumulation from 1.

    Args:
        total_batches: in the whole run.
        epochs: epochs in the whole run.
        batch_size: images per batch, over all processes.
        nominal_batch: images per optimizer step, if they are more than one batch.
        lr0: learning rate after warm-up, if it did not decay.
        lrf: the last learning rate, as a fraction of lr0.
        cosine: whether the learning rate decays as half a cosine wave, or linearly.
        momentum: after warm-up.
        warmup_epochs: length of the warm-up, which `warmup_batches` limits.
        warmup_momentum: at the first batch.
        warmup_bias_lr: learning rate of biases at the first batch.
    """

    total_batches: int
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
    def _global_batch(self) -> GlobalBatch:
        return GlobalBatch(self.batch_size, nominal=self.nominal_batch)

    @property
    def accumulate(self) -> int:
        """Batches per optimizer step, after warm-up."""
        return self._global_batch.accumulate

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps in the whole run, without warm-up.

        Its epochs have the same length, to within one batch.

        >>> # 13 batches in an epoch: 4, 3, 3, 3
        >>> Schedule(total_batches=1300, epochs=100, batch_size=16).optimizer_steps
        400
        """
        edges = [epoch * self.total_batches // self.epochs for epoch in range(self.epochs + 1)]
        return sum(_divide_up(last - first, self.accumulate) for first, last in pairwise(edges))

    @property
    def warmup_batches(self) -> int:
        """Batches of warm-up: warmup_epochs, at least 100, at most a quarter of the run."""
        if self.warmup_epochs == 0:
            return 0
        batches = round(self.warmup_epochs * self.total_batches / self.epochs)
        return min(max(batches, SHORTEST_WARMUP), self.total_batches // 4)

    def decay(self, batch: int) -> float:
        """Return the learning rate at a batch as a fraction of lr0, from 1 to lrf.

        Warm-up is left out.
        """
        done = batch / max(self.total_batches, 1)
        if self.cosine:
            descent = (1 - math.cos(math.pi * done)) / 2  # from 0 to 1
            return descent * (self.lrf - 1) + 1
        return (1 - done) * (1 - self.lrf) + self.lrf

    def _ramp(self, batch: int, first: float, last: float) -> float:
        """Return a value at a batch that goes from `first` to `last` over the warm-up."""
        if batch >= self.warmup_batches:
            return last
        return first + (last - first) * batch / self.warmup_batches

    def lr(self, batch: int, group: str = "weight") -> float:
        """Return the learning rate of a group at a batch."""
        first = self.warmup_bias_lr if group == "bias" else 0.0
        return self._ramp(batch, first, self.lr0 * self.decay(batch))

    def apply(self, optimizer: torch.optim.Optimizer, batch: int) -> None:
        """Set every group's learning rate and momentum for a batch."""
        kind = kind_of(optimizer)
        momentum = self._ramp(batch, self.warmup_momentum, self.momentum)
        for group in optimizer.param_groups:
            like_group = group["name"] if kind.bias_warmup else "weight"
            group["lr"] = self.lr(batch, like_group)
            kind.set_momentum(group, momentum)

    def _group_size(self, batch: int) -> int:
        """Return how many batches make an optimizer step at a batch of the warm-up."""
        batches = self._ramp(batch, 1, self._global_batch.batches_to_nominal)
        return max(1, round(batches))

    def step_batches(self, first: int, last: int) -> set[int]:
        """Return the batches of an epoch, `first` to `last` - 1, after which the optimizer steps.

        The last one is always among them: no gradient is carried into the next epoch, and none is
        dropped. After warm-up the epoch is split into groups of equal size, to within one batch,
        and of at most `accumulate` batches.

        >>> schedule = Schedule(total_batches=0, epochs=1, batch_size=16, warmup_epochs=0)
        >>> sorted(schedule.step_batches(0, 13))
        [2, 5, 8, 12]
        """
        group_ends = set()
        start = first  # of the present group

        # In warm-up a group ends when it has the size for its last batch.
        for batch in range(first, min(last, self.warmup_batches)):
            size = batch - start + 1
            if size >= self._group_size(batch):
                group_ends.add(batch)
                start = batch + 1

        # The other batches make as few groups as `accumulate` allows, as even as they can be.
        remaining = last - start
        groups = _divide_up(remaining, self.accumulate)
        for group in range(groups):
            end = start + remaining * (group + 1) // groups
            group_ends.add(end - 1)
        return group_ends


def _divide_up(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)
