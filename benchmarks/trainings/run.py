"""One training by any program: started, watched by its results.csv, measured by val.py, stored."""

import csv
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import IO

from data.layouts import open_data
from data.splits import read_split
from utils.files.writers import write_json
from utils.printable import one_line
from utils.terminal import FaultError

ROOT = Path(__file__).resolve().parents[2]
LOOK_S = 1.0  # between two looks at results.csv
SHORT_LOOK_S = 0.1  # between two looks at a process whose seconds count
PATIENCE_S = 20.0  # for a program to end after SIGTERM
MAP_COLUMNS = ("metrics/mAP_0.5:0.95", "metrics/mAP50-95(B)")
AP50_COLUMNS = ("metrics/mAP_0.5", "metrics/mAP50(B)")


@dataclass(frozen=True)
class Training:
    """One program on one data set with one seed.

    command: with the placeholders {data}, {seed} and {out}.
    """

    program: str
    data: str
    seed: int
    command: tuple[str, ...]

    @property
    def key(self) -> str:
        """A file name, which differs for other data and for another command."""
        name = f"{self.program}_{name_of(self.data)}_{self.seed}"
        name = name.replace("/", "-").replace(" ", "-")
        words = shlex.join([self.data, *self.command])
        digest = hashlib.sha256(words.encode()).hexdigest()
        return f"{name}_{digest[:8]}"


@dataclass
class Outcome:
    """AP and AP50 of best.pt.

    curve: seconds since the start and mAP50-95, of each validated epoch. wall: seconds until the
    program had ended; NaN if they were not stored.
    """

    ap: float
    ap50: float
    same_evaluator: bool
    images_per_second: float
    curve: list[tuple[float, float]] = field(default_factory=list)
    wall: float = math.nan

    @property
    def seconds(self) -> float:
        """Seconds until the last epoch was validated; NaN without a curve."""
        return self.curve[-1][0] if self.curve else float("nan")

    def reached(self, seconds: float) -> float:
        """The highest mAP50-95 until then; 0 before the first validation, NaN without a curve.

        >>> Outcome(0.5, 0.9, True, 1.0, [(10, 0.1), (20, 0.4), (30, 0.5)]).reached(25)
        0.4
        """
        if not self.curve:
            return float("nan")
        until_then = [value for at, value in self.curve if at <= seconds]
        return max(until_then, default=0.0)

    def seconds_to(self, share: float) -> float:
        """Seconds until the mAP first reached a share of its highest value; NaN if that is 0.

        >>> Outcome(0.5, 0.9, True, 1.0, [(10, 0.1), (20, 0.4), (30, 0.5)]).seconds_to(0.8)
        20
        >>> Outcome(0.0, 0.0, True, 1.0, [(10, 0.0), (20, 0.0)]).seconds_to(0.8)
        nan
        """
        highest = max((value for _, value in self.curve), default=0.0)
        for at, value in self.curve:
            if value >= share * highest > 0:
                return at
        return float("nan")


def stop_on_signals() -> threading.Event:
    """Return an event, for `train`, which Ctrl-C, SIGTERM and SIGHUP set from now on.

    Trainings have sessions of their own, which no signal of the terminal reaches.
    """
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    return stop


def train(
    training: Training, out: Path, threads: int, stop: threading.Event | None = None
) -> Outcome:
    """Run a training, or read what it gave before; end it when `stop` is set.

    Raises FaultError with the last line of its log if it fails.
    """
    stored = out / f"{training.key}.json"
    if stored.exists():
        return read_outcome(stored)

    folder = out / training.key
    log = out / f"{training.key}.log"
    shutil.rmtree(folder, ignore_errors=True)  # of a training that was interrupted
    stop = stop or threading.Event()
    command = [filled(word, training, folder) for word in training.command]
    print(f"{training.key}: {shlex.join(command)}", flush=True)

    outcome = None
    with open(log, "w") as output:
        began = time.monotonic()
        process = start(command, output, threads)
        rows = list(watch_results(process, folder, stop))
        wall = time.monotonic() - began
        if not stop.is_set():
            require_success(training.key, process.returncode, log)
            outcome = replace(measure(training, folder, rows), wall=round(wall, 1))
            weights = sorted(folder.rglob("best.pt"))
            if weights:
                process = start(validation(training, weights[0], folder), output, threads)
                wait_for(process, stop)
                outcome = validated(outcome, training, process.returncode, folder, log)

    if outcome is None or stop.is_set():  # not to be stored: not all of it was trained and measured
        raise FaultError(f"{training.key}: interrupted")
    write_json(stored, asdict(outcome))
    return outcome


def read_outcome(stored: Path) -> Outcome:
    """The outcome in a file of `train`. Raises FaultError if it contains anything else."""
    try:
        values = json.loads(stored.read_text())
        known = {name: float("nan") if value is None else value for name, value in values.items()}
        return Outcome(**known)
    except (ValueError, TypeError, AttributeError):
        raise FaultError(
            f"{stored}: not the result of a training; delete it to train again"
        ) from None


def validated(outcome: Outcome, training: Training, code: int, folder: Path, log: Path) -> Outcome:
    """The outcome with the figures of val.py, or as it is if that failed. code: val.py's."""
    if code:
        failure = f"val.py ended with {code}: {last_line(log)}"
        own = "the program's own figures are used, marked *"
        print(f"{training.key}: {failure}; {own}", flush=True)
        return outcome

    stats = json.loads((folder / "val" / "metrics.json").read_text())
    return replace(outcome, ap=stats["AP"], ap50=stats["AP50"], same_evaluator=True)


def start(command: Sequence[str], output: IO[str], threads: int) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C does not reach it."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(
        command, stdout=output, stderr=output, env=environment, start_new_session=True
    )


def last_line(log: Path) -> str:
    """The last line of a program's output that is not empty."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else "no output"


def filled(word: str, training: Training, out: Path) -> str:
    """A word of a command with its placeholders replaced; other braces stay."""
    word = word.replace("{data}", training.data)
    word = word.replace("{seed}", str(training.seed))
    return word.replace("{out}", str(out))


def watch_results(
    process: subprocess.Popen[bytes], folder: Path, stop: threading.Event | None = None
) -> Iterator[tuple[float, dict[str, str]]]:
    """Yield the rows of the results.csv under `folder`, each with the seconds until it was there.

    stop: ends the process, and what it has started, when it is set.
    """
    started = time.monotonic()
    ended = threading.Event()
    seen = 0  # rows
    while True:
        if stop is not None and stop.is_set():
            end(process)
        if process.poll() is not None:
            ended.set()

        # The newest one: a program may write others before.
        found = sorted(folder.rglob("results.csv"), key=lambda path: path.stat().st_mtime)
        rows = read_rows(found[-1]) if found else []
        for row in rows[seen:]:
            yield time.monotonic() - started, row
        seen = max(seen, len(rows))
        if ended.wait(LOOK_S):
            return


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that has its own session, and the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(PATIENCE_S)


def wait_for(process: subprocess.Popen[bytes], stop: threading.Event) -> None:
    """Wait until a process has ended; end it when `stop` is set."""
    while process.poll() is None:
        if stop.wait(SHORT_LOOK_S):
            end(process)


def require_success(name: str, code: int, log: Path) -> None:
    """Raise FaultError with the last line of a program's log if it failed. code: how it ended."""
    if code:
        raise FaultError(f"{name} ended with {code}: {last_line(log)} (see {log})")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The complete rows of a CSV file whose columns may be padded with spaces."""
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1].splitlines()
    lines = [re.sub(r"\s*,\s*", ",", line.strip()) for line in complete]

    rows = []
    for row in csv.DictReader(lines):
        rows.append({name: value for name, value in row.items() if name and value})
    return rows


def measure(
    training: Training, folder: Path, rows: Sequence[tuple[float, dict[str, str]]]
) -> Outcome:
    """The figures of a finished training by its own evaluator.

    rows: of results.csv, with their times.
    """
    if not rows:
        raise FaultError(f"{training.key}: there is no results.csv with rows under {folder}")

    # Epochs that were validated.
    column = next((name for name in MAP_COLUMNS if any(name in row for _, row in rows)), "")
    rated = [(at, row) for at, row in rows if math.isfinite(float(row.get(column, "nan")))]
    if not rated:
        wanted = " or ".join(MAP_COLUMNS)
        raise FaultError(f"{training.key}: the results.csv under {folder} has no {wanted}")
    curve = [(round(at, 1), float(row[column])) for at, row in rated]

    # Images/s from the first row to the last.
    spec = open_data(training.data, splits=("train",))
    labels, _ = read_split(spec, "train", cache_dir="", progress=False)
    first_at = rows[0][0]
    last_at = rows[-1][0]
    speed = float("nan")
    if last_at - first_at > LOOK_S:
        speed = len(labels) * (len(rows) - 1) / (last_at - first_at)

    best = max((row for _, row in rated), key=lambda row: float(row[column]))
    ap50 = next((best[name] for name in AP50_COLUMNS if name in best), "nan")
    return Outcome(float(best[column]), float(ap50), False, speed, curve)


def validation(training: Training, weights: Path, folder: Path) -> list[str]:
    """The command that writes a checkpoint's figures to val/metrics.json under `folder`."""
    command = [sys.executable, str(ROOT / "val.py"), "--weights", str(weights)]
    command += ["--data", training.data, "--batch", "16"]
    command += ["--project", str(folder), "--name", "val", "--exist-ok"]
    size = read_size(training.command)
    if size:
        command += ["--img", size]
    return command


def read_size(command: Sequence[str]) -> str:
    """The last image size in a command, which is the one that counts; "" for none.

    >>> read_size(["--img", "64", "--img=320"]), read_size(["sh", "-c", "a imgsz=416; true"])
    ('320', '416')
    >>> read_size(["train.py"])
    ''
    """
    # Names and values, also of a shell's command and of name=value.
    words: list[str] = []
    for word in " ".join(command).replace(";", " ").split():
        words += word.split("=", 1)

    size = ""
    for word, following in pairwise(words):
        if word in ("--img", "--imgsz", "--img-size", "imgsz"):
            size = following
    return size


def name_of(data: str) -> str:
    """A short name of a data YAML."""
    path = Path(data)
    return path.parent.name if path.stem in ("data", "dataset") else path.stem
