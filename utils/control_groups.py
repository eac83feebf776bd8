"""Limits of this process's control groups (cgroups of Linux, both versions), as containers set."""

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def group_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """Yield the folder of each control group of this process, and of each of its parents.

    controller: "memory" or "cpu"; of version 2, which has one folder for all, it is ignored. root:
    the folder that contains proc/ and sys/.
    """
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        # the field is empty in version 2
        if controllers and controller not in controllers.split(","):
            continue

        # In a container the path may be the host's: its own group is at the base.
        base = root / "sys/fs/cgroup"
        if controllers:
            together = base / controllers  # such as cpu,cpuacct
            base = together if together.is_dir() else base / controller
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(base):
                yield folder


def cpu_quota(root: Path = ROOT) -> float:
    """Return how many cores this process's groups may use on average; infinity without a limit.

    root: as in `group_folders`.
    """
    quotas = [_quota_of(folder) for folder in group_folders("cpu", root)]
    return min(quotas, default=math.inf)


def _quota_of(folder: Path) -> float:
    """Return the cores that one group may use: its microseconds in each period, over the period."""
    words = " ".join(read_lines(folder / "cpu.max")).split()
    if not words:  # version 1
        quota = read_lines(folder / "cpu.cfs_quota_us")
        period = read_lines(folder / "cpu.cfs_period_us")
        words = [*quota, *period]

    # "max", or -1, means no limit
    if len(words) != 2 or not all(word.strip().isdecimal() for word in words):
        return math.inf
    microseconds, period_us = map(int, words)
    return microseconds / period_us if microseconds and period_us else math.inf


def read_lines(file: Path) -> list[str]:
    """Return the lines of a text file; an empty list if it cannot be read."""
    try:
        # The path of a group may be in any encoding.
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
