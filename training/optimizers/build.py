"""Optimizers by name, and their parameter groups."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from training.optimizers.muon import MATRICES, MuonAdamW
from training.settings.config import among
from utils.distributed.replica import is_sharded

Groups = list[dict[str, Any]]
DECAYING = ("weight", "matrix")  # groups with weight decay


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer's class, how it is built, and what its settings mean.

    Args:
        cls: its class.
        build: builds one from (groups, lr, momentum, fused).
        momentum_key: the name of the momentum setting in a group; of "betas" it is the first; "" if
            there is none.
        bias_warmup: whether the learning rate of biases falls from warmup_bias_lr during warm-up,
            or rises from 0 like the others.
        matrices: whether the weights of convolutions have a group of their own.
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
    nesterov = momentum > 0
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=fused)
    if momentum <= 0:
        return optimizer

    # If the first step is skipped on the device, torch would leave the buffer uninitialized.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
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
    """Return an optimizer with the groups "bias", "norm" and "weight", of which "weight" decays.

    "norm" holds the scales of normalization layers: all one-dimensional parameters that are not
    biases, and ConvNeXt's scales of branches. Parameters that need no gradient are left out. Raises
    ValueError for an unknown name, or if no parameter is left to train.

    Args:
        model: whose parameters are trained.
        name: SGD (Nesterov), Adam or AdamW, the latter two with betas (momentum, 0.999), or Muon.
            For Muon a fourth group, "matrix", which decays too, holds the weights of convolutions
            that are neither depthwise nor the output of a head.
        lr: learning rate.
        momentum: of SGD, or the first beta of the others.
        weight_decay: of the groups that decay.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"--optimizer {name}: choose {among(list(OPTIMIZERS))}")
    kind = OPTIMIZERS[name]

    parameters_of = _group_parameters(model, matrices=kind.matrices)
    if not any(parameters_of.values()):
        raise ValueError("no parameter is left to train: freeze fewer layers (--freeze)")

    groups: Groups = []
    for group_name, parameters in parameters_of.items():
        decay = weight_decay if group_name in DECAYING else 0.0
        group = {"params": parameters, "name": group_name, "weight_decay": decay}
        if kind.matrices:
            group[MATRICES] = group_name == "matrix"
        groups.append(group)

    # A sharded parameter does not mix with the flag that skips a step.
    first = next(model.parameters())
    fused = first.is_cuda and not is_sharded(first)
    return kind.build(groups, lr, momentum, fused)


def _group_parameters(model: nn.Module, *, matrices: bool) -> dict[str, list[nn.Parameter]]:
    """Return the parameters to train by group. matrices: whether there is a group "matrix"."""
    groups: dict[str, list[nn.Parameter]] = {"bias": [], "norm": [], "weight": []}
    if matrices:
        groups["matrix"] = []

    parameters = dict(model.named_parameters())  # lists a shared parameter once
    for path, parameter in parameters.items():
        if not parameter.requires_grad:
            continue
        layer, _, own_name = path.rpartition(".")
        is_depthwise = parameter.ndim == 4 and parameter.shape[1] == 1
        # A convolution with a bias is the output of a head: all others are followed by a
        # normalization layer.
        has_bias = f"{layer}.bias" in parameters

        if own_name == "bias":
            groups["bias"].append(parameter)
        elif parameter.ndim <= 1 or own_name == "layer_scale":
            groups["norm"].append(parameter)
        elif matrices and parameter.ndim == 4 and not is_depthwise and not has_bias:
            groups["matrix"].append(parameter)
        else:
            groups["weight"].append(parameter)
    return groups


def kind_of(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Return the entry of OPTIMIZERS for an optimizer. Raises TypeError if there is none."""
    for kind in OPTIMIZERS.values():
        if type(optimizer) is kind.cls:  # not isinstance: torch's AdamW is an Adam
            return kind
    raise TypeError(f"{type(optimizer).__name__} is not declared in OPTIMIZERS")
