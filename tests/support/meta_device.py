"""`torch.device("meta")` in the place of a GPU: its tensors hold no values, so that code that looks at one raises.

By itself it lets most mixes with the CPU's tensors pass (sums in place, indexing, gather, matmul, convolutions), and
numbers sent from the host. `OneDevice` refuses those too. There is no autocast on it: 16 bits are tested on the CPU.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
SENT = "sent from the CPU"  # among the calls: a tensor moved to the device


class OneDevice(TorchDispatchMode):
    """Raises RuntimeError where an operation mixes devices, or numbers of the host become a tensor of the device.

    On a GPU the one fails and the other waits for all that the GPU has to do before. calls: how often each operation
    was called, and tensors were moved to the device with `to`, which is how the data come.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        taken = devices_of((args, kwargs))
        if len(taken) > 1:
            raise RuntimeError(f"{name} mixes tensors of {' and '.join(sorted(taken))}")
        if name == "lift_fresh" and taken == {"meta"}:
            raise RuntimeError("numbers of the host are sent to the device by themselves")
        result = None if name == "_fused_sgd_" else function(*args, **(kwargs or {}))  # of SGD's there is none for meta
        if name == "_to_copy" and devices_of(result) != taken:
            name = SENT
        self.calls[name] += 1
        return result


def devices_of(values: Any) -> set[str]:
    """The kinds of device of all tensors in nested values."""
    return {leaf.device.type for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


class NeverRead:
    """Stands in for AsyncHostCopy: a GPU's, for as long as nothing has come."""

    def __init__(self, _: torch.device) -> None:
        pass

    def push(self, _: Tensor) -> list[Tensor]:
        return []

    drain = list


def use_fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer with one operation for a group, as a GPU's has it, which skips a step without a look at a value."""
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"], group["foreach"] = True, False
    return optimizer


@contextmanager
def fused_on_meta() -> Iterator[None]:
    """A block in which torch's fused optimizers take tensors of the meta device."""
    where = "torch.optim.optimizer._get_fused_kernels_supported_devices"
    with mock.patch(where, return_value=["meta"]):
        yield
