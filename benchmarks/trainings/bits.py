"""Runs of train.py that must be equal to the bit: their commands, and how they are compared."""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.launching import TORCHRUN

# Entries that differ between equal runs: their folder and their times.
IGNORED = {"config", "seconds", "time"}


def train_command(
    script: Path, folder: Path, *, data: Path, cache: Path, processes: int, flags: Sequence[str]
) -> list[str]:
    """The command of a run, as a user starts it.

    Args:
        script: the train.py of a checkout.
        folder: the run folder.
        data: the data YAML.
        cache: the folder for cached labels and images.
        processes: more than one are started by torch's launcher.
        flags: the other flags of train.py.
    """
    launcher = [sys.executable]
    if processes > 1:
        launcher = [*TORCHRUN, "--nproc_per_node", str(processes)]

    words = ["--data", str(data), "--cache-dir", str(cache)]
    words += ["--project", str(folder.parent), "--name", folder.name, "--exist-ok"]
    return [*launcher, str(script), *words, *flags]


def same(one: Any, other: Any) -> bool:
    """Whether two nested records have the same bits, except for IGNORED; NaN equals NaN.

    >>> same({"lr": 0.1, "time": 1.0}, {"lr": 0.1, "time": 2.0})
    True
    >>> same([torch.zeros(1)], [-torch.zeros(1)])
    False
    """
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and same_tensors(one, other)

    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() - IGNORED
        if names != other.keys() - IGNORED:
            return False
        return all(same(one[name], other[name]) for name in names)

    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))

    both_nan = one != one and other != other
    return bool(one == other or both_nan)


def same_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors on the CPU have the same type, shape and bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def rows_without_time(run: Path) -> list[dict[str, str]]:
    """The rows of a run's results.csv without their times."""
    with open(run / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))

    for row in rows:
        row.pop("time", None)
    return rows
