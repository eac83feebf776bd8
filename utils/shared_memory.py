"""Anonymous shared memory of several processes on one machine, freed when the last one ends."""

import mmap
import os
from typing import Any

import torch
from torch import Tensor


def has_memfd() -> bool:
    """Return whether this process can create anonymous files in memory (memfd).

    Usually True on Linux.
    """
    try:
        os.close(os.memfd_create("kestrel"))
    except (AttributeError, OSError):
        return False
    return True


class SharedBytes:
    """`size` bytes of shared memory, initially zero.

    Forked processes share it, and so do processes it is pickled to. On Linux it is an anonymous
    file in memory (memfd). Its size is limited by the machine's memory, not by /dev/shm, which
    torch's shared tensors use and which has 64 MB in a container. A page takes memory once it is
    written to. On other systems, and where memfd is not allowed, it is a shared torch tensor.
    """

    tensor: Tensor  # uint8 [size]

    def __init__(self, size: int) -> None:
        if has_memfd():
            descriptor = os.memfd_create("kestrel")
            os.ftruncate(descriptor, size)
            self._map(descriptor)
        else:
            self.tensor = torch.zeros(size, dtype=torch.uint8).share_memory_()

    def _map(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "r+b")  # closed with the object
        # for processes of this user, while this process runs
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.tensor = torch.frombuffer(mmap.mmap(descriptor, 0), dtype=torch.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            (_from_path, (self.path,)) if hasattr(self, "path") else (_from_tensor, (self.tensor,))
        )


def _from_path(path: str) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared._map(os.open(path, os.O_RDWR))
    return shared


def _from_tensor(tensor: Tensor) -> SharedBytes:
    shared = SharedBytes.__new__(SharedBytes)
    shared.tensor = tensor
    return shared
