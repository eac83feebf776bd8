"""The processes of a run and their collectives; a single process is a world of size one."""

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
    """This process among those of the run.

    Decisions use values that all ranks hold; only rank 0 writes files.
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
        """Return whether this process is rank 0, which writes files."""
        return self.rank == 0

    # ---- collectives on device tensors: all processes must call them in the same order

    def all_reduce_sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes (all-reduce)."""
        if self.size == 1:
            return value
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def all_reduce_mean_(self, values: Iterable[Tensor]) -> None:
        """Replace floating-point tensors by their means over all processes.

        It averages the differences to rank 0's values, because the sum of seven equal floats,
        divided by seven, can be a different float. So repeating it changes no bit.
        """
        for flat, parts in self._by_type(values):
            first = flat.clone()  # rank 0's values
            dist.broadcast(first, 0)

            difference = flat - first
            dist.all_reduce(difference)

            mean = first + difference / self.size
            _copy_to_parts(mean, parts)

    def broadcast_(self, values: Iterable[Tensor]) -> None:
        """Replace tensors by those of rank 0 (broadcast)."""
        for flat, parts in self._by_type(values):
            dist.broadcast(flat, 0)
            _copy_to_parts(flat, parts)

    def _by_type(self, values: Iterable[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Yield one flat tensor per dtype, and the tensors in it; nothing for a single process.

        One, because every collective has a start-up cost.
        """
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for value in values:
            by_dtype.setdefault(value.dtype, []).append(value.detach())
        for parts in by_dtype.values():
            flat = torch.cat([part.flatten() for part in parts])
            yield flat, parts

    # ---- collectives on host memory

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in rank order: [N_0 + N_1 + ..., ...].

        rows: [N, ...], on the CPU.
        """
        if self.size == 1:
            return rows

        # How many rows each process has.
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]), group=self.host_group)

        # The collective takes equal shapes, so all are padded to the longest, and cut afterwards.
        missing = int(max(counts)) - len(rows)
        padding = rows.new_zeros(missing, *rows.shape[1:])
        padded = torch.cat([rows, padding])
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded, group=self.host_group)

        parts = [part[: int(count)] for part, count in zip(gathered, counts, strict=True)]
        return torch.cat(parts)

    def broadcast_collective(self, value: Any) -> Any:
        """Return rank 0's JSON-serializable value.

        A collective: all ranks must call it at about the same time.
        """
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_main else b""
        own_bytes = torch.tensor(list(text), dtype=torch.uint8)
        all_bytes = self.all_gather_rows(own_bytes)  # only rank 0 has any
        return json.loads(all_bytes.numpy().tobytes())

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's JSON-serializable value.

        Not a collective: others wait for rank 0 without timeout.
        """
        if self.rendezvous is None:
            return value
        return self.rendezvous.broadcast_object(value)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the JSON-serializable values of all processes, in rank order."""
        if self.rendezvous is None:
            return [value]
        return self.rendezvous.all_gather_object(value)

    def wait_for_main(self) -> None:
        """Wait until rank 0 gets here too.

        Not a collective: no timeout runs while rank 0 draws or writes.
        """
        self.broadcast_object(None)

    def require_same(self, what: str, value: Any) -> None:
        """Raise ValueError in all processes unless all hold the same JSON-serializable value.

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
        """Run the block first in local rank 0 of each machine, then in the other processes.

        Raises PeerFailedError in the waiting processes if another process fails.
        """
        if self.local_rank > 0:
            self.all_gather_object("arrived")
        yield
        if self.local_rank == 0:
            self.all_gather_object("done")


def _copy_to_parts(flat: Tensor, parts: list[Tensor]) -> None:
    """Copy slices of `flat` back into the tensors that it was concatenated from."""
    sizes = [part.numel() for part in parts]
    for part, piece in zip(parts, flat.split(sizes), strict=True):
        part.copy_(piece.view_as(part))


def _differing(one: Any, other: Any) -> tuple[str, str]:
    """Return both values as text; for two dicts only the entries that differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return str(one), str(other)
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    one_text = ", ".join(f"{key} {one.get(key)}" for key in keys)
    other_text = ", ".join(f"{key} {other.get(key)}" for key in keys)
    return one_text, other_text
