"""Used and free memory of devices and of the machine."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from utils.control_groups import group_folders, read_lines


def memory_gib(device: torch.device) -> float:
    """Return the GiB that this process uses on the device.

    On a CPU it is the resident memory, 0 if that is unknown.
    """
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / 2**30
    try:
        with open("/proc/self/statm") as file:
            resident_pages = int(file.read().split()[1])
    except OSError:
        return 0.0
    return resident_pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can still allocate on the device; for a CPU, of RAM."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    if device.type == "mps":
        return max(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory(), 0)
    return free_ram()


def release_memory(device: torch.device) -> None:
    """Collect garbage and return cached memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if device.type == "mps":
        torch.mps.empty_cache()


def reserved_by(step: Callable[[], None], device: torch.device) -> int:
    """Return the peak bytes that this process reserves on a GPU during `step`.

    Bytes that were allocated before do not count. They are reserved bytes, not allocated ones: what
    the allocator loses to rounding and fragmentation is not free.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()  # or the step would reuse cached memory, which would not be counted
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def ring_budget(local_processes: int = 1) -> int:
    """Return the bytes of RAM for the batches that this process's loader workers prepare.

    That is its share of a quarter of what is free. For GPUs this memory is page-locked, so that the
    system cannot move it to disk.
    """
    return free_ram() // 4 // local_processes


def free_ram(root: Path = Path("/")) -> int:
    """Return the bytes of RAM that are free or could be freed; sys.maxsize if unknown.

    They are within the limits of this process's control groups.

    root: the folder that contains proc/ and sys/.
    """
    free_kib = _read_number("MemAvailable", root / "proc/meminfo")
    on_machine = sys.maxsize if free_kib is None else free_kib * 1024
    smallest = min([on_machine, *_free_in_groups(root)])
    return max(smallest, 0)


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield the bytes left in each control group of this process, and in each of its parents.

    Both versions of control groups (cgroups) are read.
    """
    for folder in group_folders("memory", root):
        yield from _free_in_group(folder)


def _free_in_group(folder: Path) -> Iterator[int]:
    """Yield the bytes left in one control group, if it has a limit.

    Inactive file cache counts as free.
    """
    version_2 = ("memory.max", "memory.current", "inactive_file")
    version_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for limit_file, used_file, cache in (version_2, version_1):
        numbers = [*read_lines(folder / limit_file), *read_lines(folder / used_file)]
        # "max" means no limit
        if len(numbers) == 2 and all(number.isdecimal() for number in numbers):
            limit, used = map(int, numbers)
            inactive = _read_number(cache, folder / "memory.stat") or 0
            yield limit - used + inactive


def _read_number(name: str, file: Path) -> int | None:
    """Return the number after `name` in a file of lines with a name and a number; None without."""
    for line in read_lines(file):
        words = line.replace(":", " ").split()
        if words and words[0] == name:
            return int(words[1])
    return None
