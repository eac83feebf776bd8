"""The tensors of a torch.save file, of either layout, as views of the bytes in the file."""

import math
from typing import Any

import torch
from torch import Tensor

from utils.files.pickled.interpreter import PickledObject, StorageReference, is_args
from utils.files.pickled.saved_file import SavedFile


class TensorReader:
    """Reads the tensors of a file; all together they may be no larger than the file."""

    def __init__(self, file: SavedFile) -> None:
        self._file = file
        self._left = file.size  # bytes that further tensors may have
        self._read: dict[str, bytearray] = {}

    def tensor(self, value: Any) -> Tensor:
        """Return a pickled tensor or parameter, a view of the bytes read from the file.

        It has the saved strides. Raises ValueError if the object is something else, or the tensor
        reaches outside its storage.
        """
        kind = value.kind if isinstance(value, PickledObject) else ""
        if kind == "torch._utils._rebuild_parameter" and is_args(value.args, 1):
            value = value.args[0]  # the parameter's tensor
        if not is_tensor(value):
            raise ValueError("it has something else where a tensor should be")
        if not is_args(value.args, 4):
            raise ValueError("one of its tensors is damaged")
        storage, offset, size, strides = value.args[:4]
        is_inside = isinstance(storage, StorageReference) and is_view(
            storage.count, offset, size, strides
        )
        if not is_inside:
            raise ValueError("one of its tensors reaches outside its storage")

        count = math.prod(size)
        self._left -= count * storage.dtype.itemsize
        if self._left < 0:
            raise ValueError("its tensors are larger than the file")

        content = self._content(storage)
        if count == 0:
            return torch.empty(size, dtype=storage.dtype)
        return torch.frombuffer(content, dtype=storage.dtype).as_strided(size, strides, offset)

    def _content(self, storage: StorageReference) -> bytearray:
        """Return the bytes of a storage, which are read once."""
        key = storage.key
        if key not in self._read:
            self._read[key] = self._file.storage(storage)
        content = self._read[key]
        if len(content) != storage.count * storage.dtype.itemsize:
            raise ValueError("one of its storages has two sizes")
        return content


def is_tensor(value: Any) -> bool:
    return isinstance(value, PickledObject) and value.kind == "torch._utils._rebuild_tensor_v2"


def are_same_tensor(first: Any, second: Any) -> bool:
    """Return whether two pickled tensors are views of the same values in the file.

    A tensor that a module has under several names is saved so. Damaged ones are not compared.
    """
    views = []
    for value in (first, second):
        if not is_tensor(value) or not is_args(value.args, 4):
            return False
        storage, offset, size, strides = value.args[:4]
        if not isinstance(storage, StorageReference):
            return False
        if not is_view(storage.count, offset, size, strides):
            return False
        views.append((storage, offset, size, strides))
    return views[0] == views[1]


def is_view(count: int, offset: Any, size: Any, strides: Any) -> bool:
    """Return whether offset, size and strides describe a view of a storage of `count` numbers.

    The view must be no larger than the storage.
    """
    if not isinstance(size, tuple) or not isinstance(strides, tuple):
        return False
    if len(size) != len(strides) or len(size) > 8:
        return False
    for value in (offset, *size, *strides):
        if type(value) is not int or not 0 <= value < 1 << 40:
            return False

    numbers = math.prod(size)
    if numbers == 0:
        return True
    last = offset + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True))
    return numbers <= count and last < count
