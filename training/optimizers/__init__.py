"""Optimizers by name, their parameter groups, and a check of their state."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from training.optimizers.muon import MATRICES, MuonAdamW
from training.settings.config import among

# settings that change how a step is computed, on some devices only
IMPLEMENTATION = ("fused", "foreach", "capturable")
Groups = list[dict[str, Any]]
OTHER_STATE = "the optimizer's state is of another model or optimizer"


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

# Entries of a group that depend on this run's flags and device, not on its training so far.
OWN_ENTRIES = ("params", "name", "weight_decay", *IMPLEMENTATION)


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


def restored_group(own: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """A parameter group of a resumed run: `saved`, with the OWN_ENTRIES and the new entries of
    `own`.

    Besides settings, an optimizer may keep numbers in its groups that change with each step
    (schedule-free's `k`). Raises ValueError if an entry is of another type.

    >>> own = {"params": [0], "lr": 0.1, "fused": None}
    >>> restored_group(own, {"params": [5], "lr": 0.2, "fused": True, "k": 3})
    {'params': [0], 'lr': 0.2, 'fused': None, 'k': 3}
    """
    restored = dict(own)
    for name, value in saved.items():
        if name in OWN_ENTRIES:
            continue
        if name in own and _kind_of_value(value) is not _kind_of_value(own[name]):
            raise ValueError(
                f"{OTHER_STATE}: {name} is {value!r}, expected a value like {own[name]!r}"
            )
        restored[name] = tuple(value) if isinstance(own.get(name), tuple) else value
    return restored


def _kind_of_value(value: Any) -> type:
    """The type of an entry. A checkpoint holds tuples as lists, and the schedule may set a float
    where an int was.
    """
    if isinstance(value, (list, tuple)):
        return list
    return float if type(value) is int else type(value)


def check_state(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError if an optimizer has the state of another model or of another kind of
    optimizer.

    A parameter's state must have the entries and shapes that a first step creates. It may have more
    entries, such as the momentum of a warm-up that ends at momentum 0, or none, as before the first
    step.
    """
    mismatch = ValueError(OTHER_STATE)
    parameters = {
        id(parameter) for group in optimizer.param_groups for parameter in group["params"]
    }
    if any(
        isinstance(key, (int, torch.Tensor)) and id(key) not in parameters
        for key in optimizer.state
    ):
        raise mismatch  # other keys, such as texts, are the optimizer's own
    for group in optimizer.param_groups:
        expected: dict[torch.Size, dict[str, torch.Size | None]] = {}
        for parameter in group["params"]:
            shapes = {
                name: _shape(value) for name, value in optimizer.state.get(parameter, {}).items()
            }
            if shapes and parameter.shape not in expected:
                expected[parameter.shape] = _shapes_of_first_state(optimizer, group, parameter)
            if shapes and expected[parameter.shape].items() - shapes.items():
                raise mismatch


def match_strides(optimizer: torch.optim.Optimizer) -> None:
    """Lay out each state tensor in memory like its parameter, if both have one shape. Values stay
    the same.

    torch loads a state with the strides that it was saved with: contiguous from a run with --shard,
    although the weights of other runs are channels last. Fused optimizers need equal strides:
    otherwise they raise an error on a GPU, and read the numbers in the wrong order, without an
    error, on a CPU.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, DTensor):
                continue  # steps of sharded runs are not fused
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                same_shape = isinstance(value, torch.Tensor) and value.shape == parameter.shape
                if same_shape and value.stride() != parameter.stride():
                    state[name] = (
                        torch.empty_like(parameter, dtype=value.dtype).copy_(value).detach()
                    )


def _shapes_of_first_state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, torch.Size | None]:
    """The shape of each state entry that a first step creates for such a parameter, from a step on
    zeros on the CPU.
    """
    zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, requires_grad=True)
    zeros.grad = torch.zeros_like(zeros)
    kind: Any = type(optimizer)
    settings = {name: value for name, value in group.items() if name not in IMPLEMENTATION}
    fresh = kind([settings | {"params": [zeros]}])
    fresh.step()
    return {name: _shape(value) for name, value in fresh.state[zeros].items()}


def _shape(value: Any) -> torch.Size | None:
    """The shape of a tensor, that of a scalar for a number, None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.shape
    return torch.Size() if isinstance(value, (int, float)) else None
