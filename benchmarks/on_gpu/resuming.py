"""A training that is killed and resumed, against an uninterrupted one: to the bit if the device
allows it.

Some operations of a GPU have no fixed order of summation. So two uninterrupted runs are compared
first: if they are equal, the resumed run must be equal to them, otherwise its losses may differ no
more than theirs, times ten.

A checkpoint of a `--shard` run holds the optimizer's state as contiguous tensors, while weights are
channels-last; the killed run's checkpoint is resumed in that form too.
"""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import train
from benchmarks.on_gpu.commands import Command
from benchmarks.on_gpu.stage import Finding, Scope
from benchmarks.on_gpu.trainings import training_words
from benchmarks.trainings.bits import IGNORED, rows_without_time, same
from utils.files import checkpoint_file

LOOK_S = 0.01  # between two looks at the checkpoint of the run that is to be killed
LEAST_TOLERANCE = 1e-3  # relative, of losses of runs that are not equal to the bit


def kill_and_resume(scope: Scope) -> Iterator[Finding]:
    """Two uninterrupted runs, one killed and resumed, one resumed from contiguous state."""
    runs = scope.folder / "runs"
    straight = start(scope, "straight")
    again = start(scope, "again")
    killed = start(scope, "killed")

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

    yield from straight.end().findings("uninterrupted")
    yield from again.end().findings("uninterrupted, again")
    yield from resumed.end().findings("resumed")
    what = f"resumed from contiguous optimizer state ({changed} tensors were not)"
    yield from sharded.end().findings(what)

    differing = differences(runs / "straight", runs / "again")
    spread = largest_loss_difference(runs / "straight", runs / "again")
    yield Finding(f"two uninterrupted runs {verdict(differing, spread)}")
    for name in ("killed", "contiguous"):
        own = differences(runs / "straight", runs / name)
        largest = largest_loss_difference(runs / "straight", runs / name)
        if differing:  # the device has no fixed order of summation
            good = largest <= max(10 * spread, LEAST_TOLERANCE)
        else:
            good = not own
        text = f"the uninterrupted and the resumed run ({name}) {verdict(own, largest)}"
        yield Finding(text, good)


def start(scope: Scope, name: str, *flags: str) -> Command:
    """Start or resume a run that saves often.

    Image sizes vary, so that cuDNN does not choose its algorithms by timing.
    """
    sizes = scope.sizes
    workers = min(sizes.workers, 2)
    words = ["--img", str(sizes.check_img), "--batch", str(sizes.long_check_batch), "--multi-scale"]
    words += ["--epochs", str(sizes.resume_epochs), "--workers", str(workers), "--cache", "ram"]
    words += ["--save-minutes", str(sizes.save_minutes), *flags]

    output = scope.folder / "output" / f"resume-{name}{len(flags)}.txt"
    return Command(train.run_script, training_words(scope, name, *words), output, use_fixed_order)


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
    """Rewrite a checkpoint with contiguous optimizer state; return how many tensors changed."""
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
    saved = checkpoint_file.load(one / "weights" / "last.pt")
    others = checkpoint_file.load(other / "weights" / "last.pt")
    names = sorted((saved.keys() | others.keys()) - IGNORED)
    parts = [name for name in names if not same(saved.get(name), others.get(name))]

    if rows_without_time(one) != rows_without_time(other):
        parts.append("results.csv")
    return parts


def largest_loss_difference(one: Path, other: Path) -> float:
    """The largest relative difference of a loss in two results.csv; infinite if one is longer."""
    rows = rows_without_time(one)
    others = rows_without_time(other)
    if len(rows) != len(others):
        return float("inf")

    relative = []
    for row, other_row in zip(rows, others, strict=True):
        for name in row:
            if name.endswith("_loss"):
                own = float(row[name])
                difference = abs(own - float(other_row[name]))
                relative.append(difference / max(abs(own), 1e-6))
    return max(relative)


def verdict(differing: list[str], largest: float) -> str:
    if not differing:
        return "are equal to the bit"
    return f"differ in {', '.join(differing)}; losses by {largest:.1e} at most"
