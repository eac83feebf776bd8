"""The ranks of a run as threads of this process, for tests of decisions and writes that need no
model replicas.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from utils.distributed.world import World

T = TypeVar("T")
WAIT_S = 10.0  # how long a rank waits for the others


class ThreadGroup:
    """Exchanges values between threads; fails if a thread does not call, or calls another
    operation.
    """

    def __init__(self, size: int) -> None:
        self.values: list[tuple[str, Any]] = [("", None)] * size
        self.barrier = threading.Barrier(size, timeout=WAIT_S)

    def exchange(self, rank: int, operation: str, value: Any) -> list[Any]:
        """The values of all ranks, in rank order."""
        self.values[rank] = operation, value
        self.barrier.wait()
        values = list(self.values)
        self.barrier.wait()
        assert {name for name, _ in values} == {operation}, (
            f"the ranks call different operations: {values}"
        )
        return [value for _, value in values]


@dataclass(frozen=True)
class ThreadWorld(World):
    """A World whose processes are threads."""

    group: Any = None

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        return torch.stack(self.group.exchange(self.rank, "all_reduce_sum", value)).sum(0)

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        return torch.cat(self.group.exchange(self.rank, "all_gather_rows", rows))

    def broadcast_object(self, value: Any) -> Any:
        return self.group.exchange(self.rank, "broadcast_object", value)[0]

    def all_gather_object(self, value: Any) -> list[Any]:
        return self.group.exchange(self.rank, "all_gather_object", value)


def thread_worlds(size: int) -> list[ThreadWorld]:
    """The worlds of all ranks of one run."""
    group, device = ThreadGroup(size), torch.device("cpu")
    return [ThreadWorld(device, rank, rank, size, size, group=group) for rank in range(size)]


def run_ranks(works: list[Callable[[], T]], worlds: list[ThreadWorld]) -> list[T]:
    """Run the work of each rank in a thread; returns their results. If one fails, the others fail
    too.
    """
    barrier = worlds[0].group.barrier

    def run(work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(run, work) for work in works]
    errors = [error for future in futures if (error := future.exception())]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
