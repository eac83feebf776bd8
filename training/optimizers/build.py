"""Optimizers by name, and their parameter groups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.optimizers.muon import MATRICES, MuonAdamW
from training.settings.config import among

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer's class, the function that builds it from (groups, lr, momentum, fused), and its
    momentum setting.

    momentum_key: the name of that setting in a group; of "betas" it is the first; "" if there is
    none. bias_warmup:
    whether the learning rate of biases falls from warmup_bias_lr during warm-up, or rises from 0
    like the others. matrices: whether the weights of convolutions have a group of their own.
    """

    cls: type[torch.optim.Optimizer]
    build: Callable[[Groups, float, float, bool], torch.optim.Optimizer]
    momentum_key: str
    bias_warmup: bool = True
    matrices: bool = False

    def set_momentum(self, group: dict[str, Any], momentum: float) -> None:
        """Set a group's momentum from the next step on."""
        if self.momentum_key == "betas":
            group["betas"] = (momentum, *group["betas"][1:])
        elif self.momentum_key:
            group[self.momentum_key] = momentum


def _sgd(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(
        groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=fused
    )
    for group in optimizer.param_groups if momentum > 0 else ():
        for parameter in group["params"]:
            # If the first step is skipped on the device, torch would leave the buffer
            # uninitialized.
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _adam(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=lr, betas=(momentum, 0.999), fused=fused)


def _adamw(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=fused)


def _muon(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    return MuonAdamW(groups, lr=lr, betas=(momentum, 0.999), fused=fused)


OPTIMIZERS = {
    "SGD": OptimizerKind(torch.optim.SGD, _sgd, momentum_key="momentum"),
    "Adam": OptimizerKind(torch.optim.Adam, _adam, momentum_key="betas"),
    "AdamW": OptimizerKind(torch.optim.AdamW, _adamw, momentum_key="betas"),
    "Muon": OptimizerKind(MuonAdamW, _muon, momentum_key="betas", matrices=True),
}


def build_optimizer(
    model: nn.Module, name: str, *, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer with three groups named "bias", "norm" and "weight"; only "weight" decays.

    "norm" holds the scales of normalization layers: all one-dimensional parameters that are not
    biases. Parameters that need no gradient are left out. name: SGD (Nesterov), Adam or AdamW, the
    latter two with betas (momentum, 0.999), or Muon. For Muon a fourth group, "matrix", which
    decays too, holds the weights of convolutions that are neither depthwise nor the output of a
    head. Raises ValueError for another name, or if no parameter is left to train.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"--optimizer {name}: choose {among(list(OPTIMIZERS))}")
    kind = OPTIMIZERS[name]
    groups: dict[str, list[nn.Parameter]] = {"bias": [], "norm": [], "weight": []}
    groups |= {"matrix": []} if kind.matrices else {}
    parameters = dict(model.named_parameters())  # lists a shared parameter once
    for path, parameter in parameters.items():
        if parameter.requires_grad:
            owner, _, own = path.rpartition(".")
            # A convolution with a bias is the output of a head: all others are followed by a
            # normalization layer.
            is_matrix = kind.matrices and parameter.ndim == 4 and parameter.shape[1] > 1
            is_matrix = is_matrix and f"{owner}.bias" not in parameters
            group = (
                "bias"
                if own == "bias"
                else "norm"
                if parameter.ndim <= 1
                else "matrix"
                if is_matrix
                else "weight"
            )
            groups[group].append(parameter)
    if not any(groups.values()):
        raise ValueError("no parameter is left to train: freeze fewer layers (--freeze)")
    settings: Groups = [
        {
            "params": members,
            "name": group,
            "weight_decay": weight_decay if group in ("weight", "matrix") else 0.0,
        }
        for group, members in groups.items()
    ]
    for entries in settings if kind.matrices else ():
        entries[MATRICES] = entries["name"] == "matrix"
    first = next(model.parameters())
    # a DTensor does not mix with the flag that skips a step
    fused = first.is_cuda and not isinstance(first, DTensor)
    return kind.build(settings, lr, momentum, fused)


def kind_of(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """The entry of OPTIMIZERS for an optimizer. Raises TypeError if there is none."""
    for kind in OPTIMIZERS.values():
        if type(optimizer) is kind.cls:  # not isinstance: torch's AdamW is an Adam
            return kind
    raise TypeError(f"{type(optimizer).__name__} is not declared in OPTIMIZERS")
