"""How many epochs a training gets into a given wall time, from a short training of the same kind.

A learning-rate schedule must end with the time, so the number of epochs is chosen beforehand.
"""

import json
import math
import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

from benchmarks.trainings.run import (
    Training,
    filled,
    read_rows,
    require_success,
    start,
    wait_for,
)
from utils.files.writers import write_json
from utils.terminal import FaultError

TRIAL_EPOCHS = 3


@dataclass(frozen=True)
class Pace:
    """Wall time of a training: `fixed` seconds, and `epoch` seconds for each epoch."""

    fixed: float
    epoch: float

    def seconds(self, epochs: int) -> float:
        """Return the seconds that a number of epochs takes.

        >>> Pace(fixed=10.0, epoch=5.0).seconds(4)
        30.0
        """
        return self.fixed + epochs * self.epoch

    def epochs_in(self, seconds: float) -> int:
        """Return the epochs whose time is nearest to `seconds`; at least 1.

        >>> pace = Pace(fixed=10.0, epoch=5.0)
        >>> pace.epochs_in(62.0), pace.epochs_in(63.0), pace.epochs_in(5.0)
        (10, 11, 1)
        """
        return max(math.floor((seconds - self.fixed) / self.epoch + 0.5), 1)


def pace_of(wall: float, epochs: list[float]) -> Pace:
    """Return the pace of a training from its wall time and the seconds of each of its epochs.

    The first epoch fills caches: what it took longer than the others is fixed. So are the start,
    and the validation of the best epoch at the end.

    >>> pace_of(30.0, [6.0, 4.0, 4.0])
    Pace(fixed=18.0, epoch=4.0)
    """
    each = mean(epochs[1:])
    return Pace(wall - len(epochs) * each, each)


def try_out(training: Training, out: Path, threads: int, stop: threading.Event) -> Pace:
    """Run a training of a few epochs, or read what it gave before; end it when `stop` is set.

    Raises FaultError with the last line of its log if it fails.
    """
    stored = out / f"{training.key}.json"
    if stored.exists():
        return read_pace(stored)

    folder = out / training.key
    log = out / f"{training.key}.log"
    shutil.rmtree(folder, ignore_errors=True)  # of a trial that was interrupted
    command = [filled(word, training, folder) for word in training.command]
    with open(log, "w") as output:
        began = time.monotonic()
        process = start(command, output, threads)
        wait_for(process, stop)
        wall = time.monotonic() - began

    if stop.is_set():
        raise FaultError(f"{training.key}: interrupted")
    require_success(training.key, process.returncode, log)

    results = sorted(folder.rglob("results.csv"))
    rows = read_rows(results[0]) if results else []
    epochs = [float(row["time"]) for row in rows]
    if len(epochs) < 2:
        raise FaultError(f"{training.key}: the results.csv under {folder} has fewer than 2 epochs")
    pace = pace_of(wall, epochs)
    write_json(stored, asdict(pace))
    shutil.rmtree(folder)
    return pace


def read_pace(stored: Path) -> Pace:
    """Return the pace in a file of `try_out`. Raises FaultError if it contains anything else."""
    try:
        return Pace(**json.loads(stored.read_text()))
    except (ValueError, TypeError, AttributeError):
        where = os.fspath(stored)
        raise FaultError(f"{where}: not the pace of a training; delete it to try again") from None
