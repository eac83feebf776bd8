"""The processes that train together. One process is a world of size one, and every caller treats it like any other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.devices import pick_device


@dataclass(frozen=True)
class World:
    """This process among those of the run. Decisions are made from numbers that every rank holds; rank 0 writes."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return value

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, [N_0 + N_1 + ..., ...], in the order of their ranks."""
        return rows


@contextmanager
def connect(device: str) -> Iterator[World]:
    """The world this process belongs to.

    Raises ValueError where a launcher asks for several processes, or for a device that is not there.
    """
    size = os.environ.get("WORLD_SIZE") or "1"
    if size != "1":
        raise ValueError(f"WORLD_SIZE is {size}: training in several processes is not built yet; start one process")
    yield World(pick_device(device))
