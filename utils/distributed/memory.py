"""How much memory a device or a machine has left."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch


def memory_gib(device: torch.device) -> float:
    """GiB in use by this process on the device; its resident memory on a CPU. 0 where it cannot be told."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / 2**30
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
    except OSError:
        return 0.0


def free_memory(device: torch.device) -> int:
    """Bytes that this process can still take on the device; of RAM on a CPU."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    if device.type == "mps":
        return max(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), 0)
    return free_ram()


def release_memory(device: torch.device) -> None:
    """Free what nothing refers to any more, and hand cached memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if device.type == "mps":
        torch.mps.empty_cache()


def reserved_by(step: Callable[[], None], device: torch.device) -> int:
    """Bytes that `step` makes this process take from a GPU at its peak, beyond those in use before.

    Reserved bytes, not allocated ones: what the allocator loses to rounding and fragments is not free either.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # what is cached from before must not serve for free
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def free_ram(root: Path = Path("/")) -> int:
    """Bytes of RAM that are free or could be freed, within the limits of this process's control groups.

    sys.maxsize where it cannot be told. root: where the kernel's files are.
    """
    free_kib = _number_of("MemAvailable", root / "proc/meminfo")
    machine = sys.maxsize if free_kib is None else free_kib * 1024
    return max(min([machine, *_left_in_groups(root)]), 0)


def _left_in_groups(root: Path) -> Iterator[int]:
    """Bytes left in each control group that holds this process, of version 2 or 1, and in each that holds that."""
    for line in _lines(root / "proc/self/cgroup"):
        _, kind, path = line.split(":", 2)
        if kind in ("", "memory"):  # version 2 names no kind
            base = root / "sys/fs/cgroup" / kind
            group = base / path.lstrip("/")  # a container sees its own as the base, whatever the path says
            for folder in (group, *group.parents):
                if folder.is_relative_to(base):
                    yield from _left_in(folder)


def _left_in(folder: Path) -> Iterator[int]:
    """Bytes left in one control group, if it has a limit. Files that it caches and has not used lately can go."""
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        numbers = [*_lines(folder / limit), *_lines(folder / used)]
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):  # no limit is called "max"
            yield int(numbers[0]) - int(numbers[1]) + (_number_of(cache, folder / "memory.stat") or 0)


def _number_of(name: str, file: Path) -> int | None:
    """The number behind a name in a file of names and numbers, a pair in a line; None if it is not there."""
    found = (line.replace(":", " ").split() for line in _lines(file))
    return next((int(words[1]) for words in found if words and words[0] == name), None)


def _lines(file: Path) -> list[str]:
    """The lines of a text file; none if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
