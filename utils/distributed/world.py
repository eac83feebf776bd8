"""The processes that train together. One process is a world of size one, and every caller treats it like any other."""

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
    """This process among those of the run. Decisions are made from numbers that every rank holds; rank 0 writes."""

    device: torch.device
    rank: int = 0
    local_rank: int = 0
    size: int = 1
    local_size: int = 1
    devices: tuple[torch.device, ...] = ()  # two or more: DataParallel in this one process
    meeting: Rendezvous | None = None
    host_group: Any = None  # the process group for what lies in the host's memory

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    # ---- of the device: collectives, in which all processes take part alike

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def all_reduce_mean_(self, values: Iterable[Tensor]) -> None:
        """Replace floating-point tensors by their means over all processes; to do it again changes no bit.

        Means of differences to rank 0's: the sum of seven equal numbers, divided by seven, may be another one.
        """
        for flat, parts in self._by_type(values):
            first = flat.clone()
            dist.broadcast(first, 0)
            apart = flat - first
            dist.all_reduce(apart)
            _scatter(first + apart / self.size, parts)

    def broadcast_(self, values: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        for flat, parts in self._by_type(values):
            dist.broadcast(flat, 0)
            _scatter(flat, parts)

    def _by_type(self, values: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Tensors of each type as one, since what a collective costs is its start; nothing for a lone process."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for value in values if self.size > 1 else ():
            kinds.setdefault(value.dtype, []).append(value.detach())
        for parts in kinds.values():
            yield torch.cat([part.flatten() for part in parts]), parts

    # ---- of the host

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all processes, [N_0 + N_1 + ..., ...], in the order of their ranks. rows: on the CPU."""
        if self.size == 1:
            return rows
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self.host_group)
        most = int(max(counts))
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded, group=self.host_group)
        return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])

    def broadcast_collective(self, value: Any) -> Any:
        """Rank 0's value for all, of what JSON can hold. A collective, for where all come at about the same time."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_main else b""
        return json.loads(self.all_gather_rows(torch.tensor(list(text), dtype=torch.uint8)).numpy().tobytes())

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's value for all, of what JSON can hold. Not a collective: the others wait as long as rank 0 takes."""
        return self.meeting.broadcast_object(value) if self.meeting else value

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, of what JSON can hold."""
        return self.meeting.all_gather_object(value) if self.meeting else [value]

    def wait_for_main(self) -> None:
        """Wait until rank 0 has come here too. It may draw and write meanwhile: nobody sits in a collective."""
        self.broadcast_object(None)

    def require_same(self, what: str, value: Any) -> None:
        """Raises ValueError, in all processes, if they do not hold the same value, of what JSON can hold.

        what: the subject of the sentence. Of records only the entries that differ are shown.
        """
        values = self.all_gather_object(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                one, another = _differing(values[0], other)
                raise ValueError(f"{what} differs between the processes: {one} on rank 0, {another} on rank {rank}")

    @contextmanager
    def local_main_first(self) -> Iterator[None]:
        """A block that the first process of each machine goes through before the others, who find its work done.

        Raises PeerFailedError in those who wait, if another process fails.
        """
        if self.local_rank > 0:
            self.all_gather_object("came")
        yield
        if self.local_rank == 0:
            self.all_gather_object("done")


def _scatter(flat: Tensor, parts: list[Tensor]) -> None:
    """Copy the pieces of `flat` into the tensors that it was joined from."""
    for part, piece in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view_as(part))


def _differing(one: Any, other: Any) -> tuple[str, str]:
    """Of two records the entries that differ, of anything else all."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return str(one), str(other)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    return ", ".join(f"{key} {one.get(key)}" for key in keys), ", ".join(f"{key} {other.get(key)}" for key in keys)
