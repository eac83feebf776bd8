"""Use `torch.device("meta")` in place of a GPU: its tensors hold no values, so code that reads a
value raises an error.

The meta device itself accepts most operations that mix it with CPU tensors (in-place sums,
indexing, gather, matmul, convolutions) and numbers copied from the host. `OneDevice` rejects those
too. The meta device has no autocast: 16-bit precision is tested on the CPU.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

META = torch.device("meta")
COPIED_TO_DEVICE = "sent from the CPU"  # key in `calls`: tensors copied to the device


class OneDevice(TorchDispatchMode):
    """Raises RuntimeError if an operation mixes devices, or if numbers of the host become a tensor
    on the device.

    On a GPU the first fails, and the second waits for all queued work. calls: how often each
    operation was called, and how often tensors were copied to the device with `to`, as the data
    loader does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._numbers = _NoHostNumbers()

    def __enter__(self) -> OneDevice:
        self._numbers.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._numbers.__exit__(*error)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.overloadpacket.__name__
        devices = devices_of((args, kwargs))
        if len(devices) > 1:
            raise RuntimeError(f"{name} mixes tensors of {' and '.join(sorted(devices))}")
        result = (
            None if name == "_fused_sgd_" else function(*args, **(kwargs or {}))
        )  # SGD has no meta kernel
        if name == "_to_copy" and devices_of(result) != devices:
            name = COPIED_TO_DEVICE
        self.calls[name] += 1
        return result


class _NoHostNumbers(TorchFunctionMode):
    """Raises RuntimeError if Python numbers become a tensor on the meta device, or index one.

    Dispatch modes do not see that copy on every torch: 2.13 shows it, 2.12 and 2.14 do not.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        host: tuple[Any, ...] = ()  # where numbers of the host may be
        if name in ("tensor", "as_tensor", "asarray") and result.device == META:
            host = args[:1]
        elif name == "new_tensor" and result.device == META:
            host = args[1:2]
        elif name in ("__getitem__", "__setitem__") and args[0].device == META:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            host = tuple(part for part in index if isinstance(part, list | np.ndarray))
        if any(not isinstance(values, Tensor) for values in host):
            raise RuntimeError("numbers of the host are copied to the device implicitly")
        return result


def devices_of(values: Any) -> set[str]:
    """The device types of all tensors in nested values."""
    return {leaf.device.type for leaf in tree_leaves(values) if isinstance(leaf, Tensor)}


class NeverReadyHostCopy:
    """Replaces AsyncHostCopy and never returns a value, as on a GPU before the first copy is
    ready.
    """

    def __init__(self, _: torch.device) -> None:
        pass

    def push(self, _: Tensor) -> list[Tensor]:
        return []

    drain = list


def use_fused(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Switch an optimizer to its fused implementation, as on a GPU, which can skip a step without a
    host sync.
    """
    for group in (*optimizer.param_groups, optimizer.defaults):
        group["fused"], group["foreach"] = True, False
    return optimizer


@contextmanager
def fused_on_meta() -> Iterator[None]:
    """Context manager in which torch's fused optimizers accept meta tensors."""
    # torch.optim removes its attribute `optimizer`; on Python 3.10 mock.patch cannot find the
    # module by its name.
    module = importlib.import_module("torch.optim.optimizer")
    with mock.patch.object(module, "_get_fused_kernels_supported_devices", return_value=["meta"]):
        yield
