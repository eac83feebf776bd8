"""The processes of a run and their collectives. A single process is a world of size one with the
same interface.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from utils.distributed.rendezvous import Rendezvous


@dataclass(frozen=True)
class World:
    """This process among those of the run. Decisions use values that all ranks hold; only rank 0
    writes files.
    """

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    size: int = 1
    local_size: int = 1
    devices: tuple[torch.device, ...] = ()  # two or more: DataParallel in a single process
    rendezvous: Rendezvous | None = None
    host_group: Any = None  # the process group for tensors in host memory

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0, which writes files."""
        return self.rank == 0

    # ---- collectives on device tensors: all processes must call them in the same order

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes (all-reduce)."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def all_reduce_mean_(self, values: Iterable[Tensor]) -> None:
        """Replace floating-point tensors by their means over all processes; repeating it changes no
        bit.

        It averages the differences to rank 0's values, because the sum of seven equal floats,
        divided by seven, can be a different float.
        """
        for flat, parts in self._by_type(values):
            first = flat.clone()
            dist.broadcast(first, 0)
            difference = flat - first
            dist.all_reduce(difference)
            _copy_to_parts(first + difference / self.size, parts)

    def broadcast_(self, values: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0 (broadcast)."""
        for flat, parts in self._by_type(values):
            dist.broadcast(flat, 0)
            _copy_to_parts(flat, parts)

    def _by_type(self, values: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """One flat tensor per dtype, since every collective has a start-up cost; nothing for a
        single process.
        """
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for value in values if self.size > 1 else ():
            by_dtype.setdefault(value.dtype, []).append(value.detach())
        for parts in by_dtype.values():
            yield torch.cat([part.flatten() for part in parts]), parts

    # ---- collectives on host memory

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        """All-gather the rows of all processes, in rank order: [N_0 + N_1 + ..., ...]. rows: on the
        CPU.
        """
        if self.size == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self.host_group)
        longest = int(max(counts))
        padded = torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.host_group)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def broadcast_collective(self, value: Any) -> Any:
        """Broadcast rank 0's JSON-serializable value. A collective: all ranks must call it at about
        the same time.
        """
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_main else b""
        return json.loads(
            self.all_gather_rows(torch.tensor(list(text), dtype=torch.uint8)).numpy().tobytes()
        )

    def broadcast_object(self, value: Any) -> Any:
        """Broadcast rank 0's JSON-serializable value. Not a collective: others wait for rank 0
        without timeout.
        """
        return self.rendezvous.broadcast_object(value) if self.rendezvous else value

    def all_gather_object(self, value: Any) -> list[Any]:
        """All-gather JSON-serializable values, in rank order."""
        return self.rendezvous.all_gather_object(value) if self.rendezvous else [value]

    def wait_for_main(self) -> None:
        """Wait until rank 0 gets here too. Not a collective: no timeout runs while rank 0 draws or
        writes.
        """
        self.broadcast_object(None)

    def require_same(self, what: str, value: Any) -> None:
        """Raise ValueError in all processes unless all of them hold the same JSON-serializable
        value.

        what: the subject of the error message. For dicts the message shows only the entries that
        differ.
        """
        values = self.all_gather_object(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                one, another = _differing(values[0], other)
                raise ValueError(
                    f"{what} differs between the processes: {one} on rank 0, {another} on rank "
                    f"{rank}"
                )

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """Context manager whose block runs first in local rank 0 of each machine, then in the other
        processes.

        Raises PeerFailedError in the waiting processes if another process fails.
        """
        if self.local_rank > 0:
            self.all_gather_object("arrived")
        yield
        if self.local_rank == 0:
            self.all_gather_object("done")


def _copy_to_parts(flat: Tensor, parts: list[Tensor]) -> None:
    """Copy slices of `flat` back into the tensors that it was concatenated from."""
    for part, piece in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view_as(part))


def _differing(one: Any, other: Any) -> tuple[str, str]:
    """Both values as text; for two dicts only the entries that differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return str(one), str(other)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return ", ".join(f"{key} {one.get(key)}" for key in keys), ", ".join(
        f"{key} {other.get(key)}" for key in keys
    )
