"""Optimizer groups, and learning rate, momentum and accumulation as pure functions of the step."""

import math
from dataclasses import dataclass

import torch
from torch import nn

NOMINAL_BATCH = 64  # gradients of about this many images make one optimizer step
SHORTEST_WARMUP = 100  # batches


def build_optimizer(
    model: nn.Module, name: str, *, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer with three groups named "bias", "norm" and "weight"; only "weight" (convolutions, linear) decays.

    name: SGD (Nesterov), Adam or AdamW, the latter two with betas (momentum, 0.999). Parameters that need no gradient
    are left out. Raises ValueError for another name.
    """
    norms = tuple(v for k, v in vars(nn).items() if "Norm" in k and isinstance(v, type))
    groups: dict[str, list[nn.Parameter]] = {"bias": [], "norm": [], "weight": []}
    for module in model.modules():
        for key, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                kind = "bias" if key == "bias" else "norm" if isinstance(module, norms) else "weight"
                groups[kind].append(parameter)
    settings = [
        {"params": parameters, "name": kind, "weight_decay": weight_decay if kind == "weight" else 0.0}
        for kind, parameters in groups.items()
    ]
    fused = next(model.parameters()).is_cuda
    if name == "SGD":
        return torch.optim.SGD(settings, lr=lr, momentum=momentum, nesterov=True, fused=fused)
    if name in ("Adam", "AdamW"):
        kind = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[name]
        return kind(settings, lr=lr, betas=(momentum, 0.999), fused=fused)
    raise ValueError(f"--optimizer {name}: choose SGD, Adam or AdamW")


@dataclass(frozen=True)
class Schedule:
    """What the optimizer is set to at each batch of a run.

    total: batches in the whole run. warmup: batches over which the learning rate rises from 0 (of biases falls from
    warmup_bias_lr), momentum rises from warmup_momentum and accumulation from 1.
    """

    total: int
    epochs: int
    batch_size: int
    lr0: float = 0.01
    lrf: float = 0.01
    cosine: bool = False
    momentum: float = 0.937
    warmup_epochs: float = 3.0
    warmup_momentum: float = 0.8
    warmup_bias_lr: float = 0.1

    @property
    def accumulate(self) -> int:
        """Batches to an optimizer step after warm-up."""
        return max(round(NOMINAL_BATCH / self.batch_size), 1)

    @property
    def warmup(self) -> int:
        """Batches of warm-up: warmup_epochs, at least 100, at most a quarter of the run."""
        if self.warmup_epochs == 0:
            return 0
        return min(max(round(self.warmup_epochs * self.total / self.epochs), SHORTEST_WARMUP), self.total // 4)

    def decay(self, step: int) -> float:
        """The learning rate at a batch as a share of lr0, from 1 to lrf, warm-up apart."""
        done = step / max(self.total, 1)
        if self.cosine:
            return (1 - math.cos(math.pi * done)) / 2 * (self.lrf - 1) + 1
        return (1 - done) * (1 - self.lrf) + self.lrf

    def _ramp(self, step: int, first: float, last: float) -> float:
        return last if step >= self.warmup else first + (last - first) * step / self.warmup

    def lr(self, step: int, group: str = "weight") -> float:
        """Learning rate of a group at a batch."""
        return self._ramp(step, self.warmup_bias_lr if group == "bias" else 0.0, self.lr0 * self.decay(step))

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Set every group's learning rate and momentum for a batch."""
        momentum = self._ramp(step, self.warmup_momentum, self.momentum)
        for group in optimizer.param_groups:
            group["lr"] = self.lr(step, group["name"])
            if "momentum" in group:
                group["momentum"] = momentum
            else:
                group["betas"] = (momentum, group["betas"][1])

    def closing_batches(self, first: int, last: int) -> set[int]:
        """The batches of an epoch, `first` to `last` - 1, after which the optimizer steps; always the last one.

        No gradient is carried over an epoch's end, and none is dropped: a remainder of less than half the accumulation
        joins the group before it.

        >>> sorted(Schedule(total=0, epochs=1, batch_size=16, warmup_epochs=0).closing_batches(0, 13))
        [3, 7, 12]
        """
        closing, since = [], 0
        for step in range(first, last):
            since += 1
            if since >= max(1, round(self._ramp(step, 1, NOMINAL_BATCH / self.batch_size))):
                closing.append(step)
                since = 0
        if 0 < since * 2 < self.accumulate and closing:
            closing.pop()
        return {*closing, last - 1} if last > first else set()
