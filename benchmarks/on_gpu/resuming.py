"""A training that is killed and resumed, against an uninterrupted one: to the bit if the device
allows it.

Some operations of a GPU have no fixed order of summation. So two uninterrupted runs are compared
first: if they are equal, the resumed run must be equal to them, otherwise its losses may differ no
more than theirs, times ten.

A checkpoint of a `--shard` run holds the optimizer's state as contiguous tensors, while weights are
channels-last; the killed run's checkpoint is resumed in that form too.
"""

import csv
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import train
from benchmarks.on_gpu.commands import Command
from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.on_gpu.trainings import training_words
from utils.files import checkpoint_file

LOOK_S = 0.01  # between two looks at the checkpoint of the run that is to be killed
LEAST_TOLERANCE = 1e-3  # relative, of losses of runs that are not equal to the bit
IGNORED = {"config", "seconds", "time"}  # entries of a checkpoint that differ between equal runs


def kill_and_resume(scope: Scope) -> Iterator[Finding]:
    """Two uninterrupted runs, one that is killed and resumed, and one resumed from contiguous
    optimizer state.
    """
    runs = scope.folder / "runs"
    straight, again, killed = (start(scope, name) for name in ("straight", "again", "killed"))
    saved = wait_for_second_epoch(killed, runs / "killed")
    killed.process.kill()
    killed.end()
    yield Finding(f"killed within the second epoch or later, after a checkpoint: {saved}", saved)
    if not saved:
        return

    shutil.copytree(runs / "killed", runs / "contiguous")
    changed = make_state_contiguous(runs / "contiguous" / "weights" / "last.pt")
    resumed = start(scope, "killed", "--resume", str(runs / "killed"))
    sharded = start(scope, "contiguous", "--resume", str(runs / "contiguous"))

    for command, what in (
        (straight, "uninterrupted"),
        (again, "uninterrupted, again"),
        (resumed, "resumed"),
    ):
        yield from command.end().findings(what)
    yield from sharded.end().findings(
        f"resumed from contiguous optimizer state ({changed} tensors were not)"
    )

    differing = differences(runs / "straight", runs / "again")
    spread = largest_loss_difference(runs / "straight", runs / "again")
    yield Finding(f"two uninterrupted runs {verdict(differing, spread)}")
    for name in ("killed", "contiguous"):
        own = differences(runs / "straight", runs / name)
        largest = largest_loss_difference(runs / "straight", runs / name)
        good = not own if not differing else largest <= max(10 * spread, LEAST_TOLERANCE)
        yield Finding(
            f"the uninterrupted and the resumed run ({name}) {verdict(own, largest)}", good
        )


def start(scope: Scope, name: str, *flags: str) -> Command:
    """Start or resume a run that saves often. Image sizes vary, so that cuDNN does not choose by
    timing.
    """
    sizes = scope.sizes
    words = training_words(
        scope, name, "--img", str(sizes.check_img), "--batch", str(sizes.check_batch)
    )
    words += [
        "--epochs",
        str(sizes.resume_epochs),
        "--workers",
        str(min(sizes.workers, 2)),
        "--multi-scale",
    ]
    output = scope.folder / "output" / f"resume-{name}{len(flags)}.txt"
    words += ["--save-minutes", str(sizes.save_minutes), "--cache", "ram", *flags]
    return Command(train.run, words, output, use_fixed_order)


def use_fixed_order() -> None:
    """Choose operations that sum in a fixed order, where torch has them."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)


def wait_for_second_epoch(command: Command, run: Path) -> bool:
    """Wait for a checkpoint from within an epoch after the first; False if the run ends before."""
    last = run / "weights" / "last.pt"
    seen = 0
    while command.process.is_alive():
        written = last.stat().st_mtime_ns if last.exists() else 0
        if written != seen:
            seen = written
            saved = checkpoint_file.load(last)
            if saved["epoch"] >= 1 and saved["batch"] > 0:
                return True
        time.sleep(LOOK_S)
    return False


def make_state_contiguous(last: Path) -> int:
    """Rewrite a checkpoint with contiguous optimizer state, as a `--shard` run saves it; how many
    tensors changed.
    """
    saved = checkpoint_file.load(last)
    changed = 0
    for state in saved["optimizer"]["state"].values():
        for name, value in state.items():
            if isinstance(value, Tensor) and not value.is_contiguous():
                state[name] = value.contiguous()
                changed += 1
    checkpoint_file.save(last, saved)
    return changed


# ---------------------------------------------------------------------- comparison


def differences(one: Path, other: Path) -> list[str]:
    """The parts of two runs' last.pt and results.csv whose bits differ, without times."""
    saved, others = (checkpoint_file.load(run / "weights" / "last.pt") for run in (one, other))
    names = (saved.keys() | others.keys()) - IGNORED
    parts = [name for name in sorted(names) if not same(saved.get(name), others.get(name))]
    return parts if read_rows(one) == read_rows(other) else [*parts, "results.csv"]


def same(one: Any, other: Any) -> bool:
    """Whether two nested records have the same bits, except for times."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        names = one.keys() - IGNORED
        return names == other.keys() - IGNORED and all(
            same(one[name], other[name]) for name in names
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def largest_loss_difference(one: Path, other: Path) -> float:
    """The largest relative difference of a loss in the two results.csv; infinite if one has more
    rows.
    """
    rows, others = read_rows(one), read_rows(other)
    if len(rows) != len(others):
        return float("inf")
    losses = [
        (float(row[key]), float(their[key]))
        for row, their in zip(rows, others, strict=True)
        for key in row
        if key.endswith("_loss")
    ]
    return max(abs(own - their) / max(abs(own), 1e-6) for own, their in losses)


def verdict(differing: list[str], largest: float) -> str:
    if not differing:
        return "are equal to the bit"
    return f"differ in {', '.join(differing)}; losses by {largest:.1e} at most"


def read_rows(run: Path) -> list[dict[str, str]]:
    """results.csv without times."""
    with open(run / "results.csv") as file:
        return [
            {name: value for name, value in row.items() if name != "time"}
            for row in csv.DictReader(file)
        ]
