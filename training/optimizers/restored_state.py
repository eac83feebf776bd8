"""The groups and the state of an optimizer in a resumed run: checked, and laid out in memory."""

from typing import Any

import torch
from torch import nn

from utils.distributed.replica import is_sharded

# Settings that change how a step is computed, on some devices only.
IMPLEMENTATION = ("fused", "foreach", "capturable")
# Entries of a group that depend on this run's flags and device, not on its training so far.
OWN_ENTRIES = ("params", "name", "weight_decay", *IMPLEMENTATION)
OTHER_STATE = "the optimizer's state is of another model or optimizer"


def restored_group(own: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Return a resumed run's parameter group: `saved`, with the OWN_ENTRIES of `own`.

    Entries that only `own` has are kept too. Besides settings, an optimizer may keep numbers in its
    groups that change with each step (schedule-free's `k`). Raises ValueError if an entry is of
    another type.

    >>> own = {"params": [0], "lr": 0.1, "fused": None}
    >>> restored_group(own, {"params": [5], "lr": 0.2, "fused": True, "k": 3})
    {'params': [0], 'lr': 0.2, 'fused': None, 'k': 3}
    """
    restored = dict(own)
    for name, value in saved.items():
        if name in OWN_ENTRIES:
            continue
        if name in own and _comparable_type(value) is not _comparable_type(own[name]):
            raise ValueError(
                f"{OTHER_STATE}: {name} is {value!r}, expected a value like {own[name]!r}"
            )

        was_tuple = isinstance(own.get(name), tuple)  # a checkpoint holds tuples as lists
        restored[name] = tuple(value) if was_tuple else value
    return restored


def _comparable_type(value: Any) -> type:
    """Return an entry's type, list for a tuple and float for an int.

    A checkpoint holds tuples as lists, and the schedule may set a float where an int was.
    """
    if isinstance(value, (list, tuple)):
        return list
    return float if type(value) is int else type(value)


def check_state(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError if an optimizer has the state of another model or kind of optimizer.

    A parameter's state must have the entries and shapes that a first step creates. It may have more
    entries, such as the momentum of a warm-up that ends at momentum 0, or none, as before the first
    step.
    """
    parameter_ids: set[int] = set()
    for group in optimizer.param_groups:
        parameter_ids.update(id(parameter) for parameter in group["params"])
    for key in optimizer.state:
        # Other keys, such as texts, are the optimizer's own.
        stands_for_parameter = isinstance(key, (int, torch.Tensor))
        if stands_for_parameter and id(key) not in parameter_ids:
            raise ValueError(OTHER_STATE)

    for group in optimizer.param_groups:
        # A first step is taken once for each shape of parameter.
        expected: dict[torch.Size, dict[str, torch.Size | None]] = {}
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if not state:
                continue
            shapes = {name: _shape(value) for name, value in state.items()}
            if parameter.shape not in expected:
                expected[parameter.shape] = _shapes_of_first_state(optimizer, group, parameter)
            missing = expected[parameter.shape].items() - shapes.items()
            if missing:
                raise ValueError(OTHER_STATE)


def match_strides(optimizer: torch.optim.Optimizer) -> None:
    """Lay out each state tensor in memory like its parameter, if both have one shape.

    Values stay the same. torch loads a state with the strides that it was saved with: contiguous
    from a run with --shard, although the weights of other runs are channels last. Fused optimizers
    need equal strides: otherwise they raise an error on a GPU, and read the numbers in the wrong
    order, without an error, on a CPU.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_sharded(parameter):
                continue  # steps of sharded runs are not fused

            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                same_shape = isinstance(value, torch.Tensor) and value.shape == parameter.shape
                if same_shape and value.stride() != parameter.stride():
                    like_parameter = torch.empty_like(parameter, dtype=value.dtype)
                    state[name] = like_parameter.copy_(value).detach()


def _shapes_of_first_state(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, torch.Size | None]:
    """Return the shape of each state entry that a first step creates for such a parameter.

    The step is taken on zeros on the CPU.
    """
    zeros = torch.zeros(parameter.shape, dtype=parameter.dtype, requires_grad=True)
    zeros.grad = torch.zeros_like(zeros)
    settings = {name: value for name, value in group.items() if name not in IMPLEMENTATION}

    kind: Any = type(optimizer)
    fresh = kind([settings | {"params": [zeros]}])
    fresh.step()
    return {name: _shape(value) for name, value in fresh.state[zeros].items()}


def _shape(value: Any) -> torch.Size | None:
    """Return the shape of a tensor, that of a scalar for a number, None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.shape
    return torch.Size() if isinstance(value, (int, float)) else None
