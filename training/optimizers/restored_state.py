"""The groups and the state of an optimizer in a resumed run: checked, and laid out in memory."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

# settings that change how a step is computed, on some devices only
IMPLEMENTATION = ("fused", "foreach", "capturable")
# Entries of a group that depend on this run's flags and device, not on its training so far.
OWN_ENTRIES = ("params", "name", "weight_decay", *IMPLEMENTATION)
OTHER_STATE = "the optimizer's state is of another model or optimizer"


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
