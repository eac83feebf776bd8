"""Memory without a name that several processes of a machine share, gone with the last of them."""

import mmap
import os
from typing import Any

import torch
from torch import Tensor


def has_nameless_files() -> bool:
    """Whether the system has files that lie in memory alone, and this process may make them: Linux, as a rule."""
    try:
        os.close(os.memfd_create("kestrel"))
    except (AttributeError, OSError):
        return False
    return True


class SharedBytes:
    """`size` bytes, zeros at first, shared with the processes that this one forks or pickles it for.

    On Linux a file without a name, in memory alone. It is limited by the machine's memory, and not by /dev/shm, of
    which a container has 64 MB and which torch's shared tensors take their room from. Pages count once they are written
    to. Elsewhere, and where the system is not allowed to, it is a shared tensor of torch.
    """

    tensor: Tensor  # uint8 [size]

    def __init__(self, size: int) -> None:
        if has_nameless_files():
            descriptor = os.memfd_create("kestrel")
            os.ftruncate(descriptor, size)
            self._map(descriptor)
        else:
            self.tensor = torch.zeros(size, dtype=torch.uint8).share_memory_()

    def _map(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "r+b")  # closed with the object
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"  # for processes of the same user, while this one lives
        self.tensor = torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_opened, (self.path,)) if hasattr(self, "path") else (_adopted, (self.tensor,))


def _opened(path: str) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared._map(os.open(path, os.O_RDWR))
    return shared


def _adopted(tensor: Tensor) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared.tensor = tensor
    return shared
