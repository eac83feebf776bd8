"""A device that, like Metal, has no float64: tensors with values whose device is "meta", for whole
runs without a GPU.

The values are kept on the CPU. An operation that would put float64 on the device raises TypeError,
as on Metal. So does one that copies float32 from the device to float64 on the CPU in one step,
because torch converts where the tensor is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
REFUSAL = "the device does not support float64"


class OnDevice(Tensor):
    """A tensor of the device. inner: its values, a tensor on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        if inner.dtype in (torch.float64, torch.complex128):
            raise TypeError(REFUSAL)
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        made = Tensor._make_wrapper_subclass(
            cls, inner.size(), dtype=inner.dtype, device=DEVICE, **layout
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class NoFloat64(TorchDispatchMode):
    """Context manager in which "meta" is the device without float64. operations: how many ran on
    it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self._numbers = _FromHostNumbers()

    def __enter__(self) -> NoFloat64:
        self._numbers.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._numbers.__exit__(*error)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = _run(function, args, kwargs)
        self.operations += any(isinstance(leaf, OnDevice) for leaf in tree_leaves((args, result)))
        return result


class _FromHostNumbers(TorchFunctionMode):
    """Makes tensors of numbers of the host on the device; dispatch modes do not see it on every
    torch.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        made_of_numbers = function in (torch.tensor, torch.as_tensor, torch.asarray)
        if (
            made_of_numbers
            and kwargs.get("device") is not None
            and torch.device(kwargs["device"]) == DEVICE
        ):
            return function(*args, **(kwargs | {"device": "cpu"})).to(DEVICE)
        if function is Tensor.tolist and isinstance(args[0], OnDevice):
            return args[0].inner.tolist()  # torch reads the memory itself
        return function(*args, **kwargs)


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operation: on the device if it was asked for, or if a tensor of the
    arguments is there.
    """
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    here = any(isinstance(leaf, OnDevice) for leaf in given)
    wanted = kwargs.get("device")
    on_device = here if wanted is None else torch.device(wanted) == DEVICE
    if not here and not on_device:
        return function(*args, **kwargs)  # most operations of a run: nothing to unwrap
    name = function.overloadpacket.__name__

    copies = name in ("_to_copy", "copy_", "_foreach_copy_")
    others = [leaf for leaf in given if not isinstance(leaf, OnDevice) and leaf.ndim > 0]
    if here and others and not copies:
        raise RuntimeError(f"{name} mixes tensors of the device and of the CPU")
    if here and not on_device and kwargs.get("dtype") == torch.float64:
        raise TypeError(REFUSAL)
    if (
        here
        and copies
        and not isinstance(args[0], OnDevice)
        and getattr(args[0], "dtype", None) == torch.float64
    ):
        raise TypeError(REFUSAL)

    before = {id(leaf.inner): leaf for leaf in given if isinstance(leaf, OnDevice)}
    inner_args, inner_kwargs = tree_map(_values, (args, kwargs))
    if wanted is not None:
        inner_kwargs["device"] = torch.device("cpu")
    result = function(*inner_args, **inner_kwargs)
    if name == "_to_copy" and not on_device and here:
        return result.clone() if result is inner_args[0] else result

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, OnDevice):
            return leaf
        if id(leaf) in before:
            return before[id(leaf)]  # changed in place
        return OnDevice(leaf) if on_device and not any(leaf is other for other in given) else leaf

    return tree_map(wrapped, result)


def _values(leaf: Any) -> Any:
    """A tensor's values on the CPU."""
    return leaf.inner if isinstance(leaf, OnDevice) else leaf
