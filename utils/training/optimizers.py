"""Optimizers by name, with their parameter groups, and what they keep of each parameter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

IMPLEMENTATION = ("fused", "foreach", "capturable")  # settings that change how a step is computed, on some devices only
Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer's class, how it is built of groups, lr, momentum and fused, and what it calls momentum.

    momentum_key: the setting of a group that is its momentum; of "betas" it is the first; "" if there is none.
    """

    cls: type[torch.optim.Optimizer]
    build: Callable[[Groups, float, float, bool], torch.optim.Optimizer]
    momentum_key: str

    def set_momentum(self, group: dict[str, Any], momentum: float) -> None:
        """Have a group use this momentum from the next step on."""
        if self.momentum_key == "betas":
            group["betas"] = (momentum, *group["betas"][1:])
        elif self.momentum_key:
            group[self.momentum_key] = momentum


def _sgd(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0, fused=fused)
    for group in optimizer.param_groups if momentum > 0 else ():
        for parameter in group["params"]:
            # Where the first step is skipped on the device, torch would leave it uninitialised.
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _adam(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=lr, betas=(momentum, 0.999), fused=fused)


def _adamw(groups: Groups, lr: float, momentum: float, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=fused)


OPTIMIZERS = {
    "SGD": OptimizerKind(torch.optim.SGD, _sgd, momentum_key="momentum"),
    "Adam": OptimizerKind(torch.optim.Adam, _adam, momentum_key="betas"),
    "AdamW": OptimizerKind(torch.optim.AdamW, _adamw, momentum_key="betas"),
}

# Settings of a group that a schedule sets anew at each step.
SCHEDULED = {"lr", *(kind.momentum_key for kind in OPTIMIZERS.values())}


def build_optimizer(
    model: nn.Module, name: str, *, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """An optimizer with three groups named "bias", "norm" and "weight"; only "weight" decays.

    "norm" holds the scales of normalisations, all parameters of one dimension that are no biases. Parameters that need
    no gradient are left out. name: SGD (Nesterov), Adam or AdamW, the latter two with betas (momentum, 0.999).
    Raises ValueError for another name, or if nothing is left to train.
    """
    groups: dict[str, list[nn.Parameter]] = {"bias": [], "norm": [], "weight": []}
    for path, parameter in model.named_parameters():  # a parameter that two modules share comes once
        if parameter.requires_grad:
            is_bias = path.rpartition(".")[2] == "bias"
            groups["bias" if is_bias else "norm" if parameter.ndim <= 1 else "weight"].append(parameter)
    if not any(groups.values()):
        raise ValueError("no parameter is left to train: freeze fewer layers (--freeze)")
    if name not in OPTIMIZERS:
        *others, last = OPTIMIZERS
        raise ValueError(f"--optimizer {name}: choose {', '.join(others)} or {last}")
    settings = [
        {"params": parameters, "name": group, "weight_decay": weight_decay if group == "weight" else 0.0}
        for group, parameters in groups.items()
    ]
    first = next(model.parameters())
    fused = first.is_cuda and not isinstance(first, DTensor)  # whose slices do not mix with a flag to skip a step
    return OPTIMIZERS[name].build(settings, lr, momentum, fused)


def kind_of(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """What is declared of an optimizer. Raises TypeError for one that is not in OPTIMIZERS."""
    for kind in OPTIMIZERS.values():
        if type(optimizer) is kind.cls:  # not isinstance: torch's AdamW is an Adam
            return kind
    raise TypeError(f"{type(optimizer).__name__} is not declared in OPTIMIZERS")


def check_state(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError if an optimizer was given the state of another model, or of another kind of optimizer.

    What an optimizer keeps of a parameter, and in which shapes, is its own business: it must be there as a first step
    makes it. More may be there, such as the momentum of a warm-up to none, or nothing, as before the first step.
    """
    refusal = ValueError("the optimizer's state is of another model")
    parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if any(id(key) not in parameters for key in optimizer.state):
        raise refusal
    for group in optimizer.param_groups:
        made: dict[torch.Size, dict[str, torch.Size | None]] = {}
        for parameter in group["params"]:
            shapes = {name: _shape(value) for name, value in optimizer.state.get(parameter, {}).items()}
            if shapes and parameter.shape not in made:
                made[parameter.shape] = _shapes_of_first_state(optimizer, group, parameter)
            if shapes and made[parameter.shape].items() - shapes.items():
                raise refusal


def _shapes_of_first_state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, torch.Size | None]:
    """The shapes of all that such an optimizer keeps of such a parameter, by name; found with zeros on the CPU."""
    zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, requires_grad=True)
    zeros.grad = torch.zeros_like(zeros)
    kind: Any = type(optimizer)
    settings = {name: value for name, value in group.items() if name not in IMPLEMENTATION}
    fresh = kind([settings | {"params": [zeros]}])
    fresh.step()
    return {name: _shape(value) for name, value in fresh.state[zeros].items()}


def _shape(value: Any) -> torch.Size | None:
    """A tensor's; that of a scalar for a number, none for anything else."""
    if isinstance(value, torch.Tensor):
        return value.shape
    return torch.Size() if isinstance(value, (int, float)) else None
