"""Accuracy of whole trainings: data x models x recipes x seeds, beside other projects, as a table and as curves.

Claim: see benchmarks/results/accuracy*.md; each file states its commands.

    python benchmarks/accuracy.py --data bccd.yaml chess_pieces.yaml --models yolov5n.yaml --seeds 0 1 2 --out runs/a \
        --recipe auto= --recipe "published=--optimizer SGD --hyp hyp.scratch-low.yaml" \
        --peer "YOLO11n=PEER/bin/yolo detect train model=yolo11n.yaml data={data} imgsz=320 epochs=100 batch=16 \
                device=cpu seed={seed} pretrained=False project={out} name=run" \
        -- --img 320 --epochs 100 --batch 16

Every combination is one training; the flags after -- are given to all of ours. In a peer's command {data}, {seed} and
{out} are replaced by the data YAML, the seed and an empty folder. The rows of the results.csv that a program writes are
noted with the time since its start. At the end val.py measures its best.pt on the val split, for all programs with the
same evaluator; a checkpoint that it cannot read keeps the program's own figures, marked *. What is done is stored in
--out, and is not trained again, unless its command or its data's path differs.

Seconds to 80, 90 and 95 % of a run's own highest mAP show how early a recipe is good, including its start-up. "at equal
time" is the highest mAP, by the program's own evaluator, that a run has reached when the fastest program on the same
data ends, with the last of its seeds.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from matplotlib.artist import Artist

from benchmarks.report import file_report
from data.splits import find_data, open_data, read_split
from utils.files.writers import write_json
from utils.plots.canvas import draw_no_data, hex_colour, picture
from utils.printable import one_line, printable
from utils.terminal import FaultError, run_and_exit

ROOT = Path(__file__).resolve().parents[1]
SHARES = (0.8, 0.9, 0.95)
LOOK_S = 1.0  # between two looks at results.csv
UNREADABLE = 2  # exit code of val.py for a file that it cannot read
PATIENCE_S = 20.0  # for a program to end after SIGTERM
MAP_COLUMNS = ("metrics/mAP_0.5:0.95", "metrics/mAP50-95(B)")
AP50_COLUMNS = ("metrics/mAP_0.5", "metrics/mAP50(B)")


@dataclass(frozen=True)
class Training:
    """One program on one data set with one seed. command: with the placeholders {data}, {seed} and {out}."""

    program: str
    data: str
    seed: int
    command: tuple[str, ...]

    @property
    def key(self) -> str:
        """A file name, which differs for other data and for another command."""
        name = "_".join([self.program, name_of(self.data), str(self.seed)]).replace("/", "-").replace(" ", "-")
        return f"{name}_{hashlib.sha256(shlex.join([self.data, *self.command]).encode()).hexdigest()[:8]}"


@dataclass
class Outcome:
    """AP and AP50 of best.pt; curve: seconds since the start and mAP50-95, of each validated epoch."""

    ap: float
    ap50: float
    same_evaluator: bool
    images_per_second: float
    curve: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds until the last epoch was validated; NaN without a curve."""
        return self.curve[-1][0] if self.curve else float("nan")

    def reached(self, seconds: float) -> float:
        """The highest mAP50-95 of the curve until then; 0 before the first validation, NaN without a curve.

        >>> Outcome(0.5, 0.9, True, 1.0, [(10, 0.1), (20, 0.4), (30, 0.5)]).reached(25)
        0.4
        """
        return max((value for at, value in self.curve if at <= seconds), default=0.0 if self.curve else float("nan"))

    def seconds_to(self, share: float) -> float:
        """Seconds until the mAP first reached a share of its highest value; NaN without a curve.

        >>> Outcome(0.5, 0.9, True, 1.0, [(10, 0.1), (20, 0.4), (30, 0.5)]).seconds_to(0.8)
        20
        """
        highest = max((value for _, value in self.curve), default=0.0)
        return next((at for at, value in self.curve if value >= share * highest), float("nan"))


def train(training: Training, out: Path, threads: int, stop: threading.Event | None = None) -> Outcome:
    """Run a training, or read what it gave before; end it when `stop` is set.

    Raises FaultError with the path of its log if it fails.
    """
    stored = out / f"{training.key}.json"
    if stored.exists():
        values = json.loads(stored.read_text())
        return Outcome(**{name: float("nan") if value is None else value for name, value in values.items()})
    folder, log = out / training.key, out / f"{training.key}.log"
    shutil.rmtree(folder, ignore_errors=True)  # of a training that was interrupted
    stop = stop or threading.Event()
    command = [filled(word, training, folder) for word in training.command]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with open(log, "w") as output:
        print(f"{training.key}: {shlex.join(command)}", flush=True)
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        rows = list(watch_results(process, folder, stop))
        if process.returncode and not stop.is_set():
            raise FaultError(f"{training.key} ended with {process.returncode}: see {log}")
    outcome = None if stop.is_set() else measure(training, folder, rows)
    if outcome is None or stop.is_set():  # not to be stored: not all of it was trained and measured
        raise FaultError(f"{training.key}: interrupted")
    write_json(stored, asdict(outcome))
    return outcome


def filled(word: str, training: Training, out: Path) -> str:
    """Return a word of a command with its placeholders replaced; other braces stay."""
    for name, value in (("{data}", training.data), ("{seed}", str(training.seed)), ("{out}", str(out))):
        word = word.replace(name, value)
    return word


def watch_results(
    process: subprocess.Popen[bytes], folder: Path, stop: threading.Event | None = None
) -> Iterator[tuple[float, dict[str, str]]]:
    """Yield the rows of the results.csv under `folder`, each with the seconds from now until it was there.

    stop: ends the process, and what it has started, when it is set.
    """
    started, ended, seen = time.monotonic(), threading.Event(), 0
    while True:
        if stop is not None and stop.is_set():
            end(process)
        if process.poll() is not None:
            ended.set()
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


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the complete rows of a CSV file whose columns may be padded with spaces."""
    text = path.read_text()
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = csv.DictReader([",".join(cell.strip() for cell in line.split(",")) for line in lines])
    return [{name: value for name, value in row.items() if name and value} for row in rows]


def measure(training: Training, folder: Path, rows: Sequence[tuple[float, dict[str, str]]]) -> Outcome:
    """Return the figures of a finished training. rows: of results.csv, with their times."""
    if not rows:
        raise FaultError(f"{training.key}: there is no results.csv with rows under {folder}")
    column = next((name for name in MAP_COLUMNS if any(name in row for _, row in rows)), "")
    rated = [(at, row) for at, row in rows if math.isfinite(float(row.get(column, "nan")))]
    if not rated:
        raise FaultError(f"{training.key}: the results.csv under {folder} has no {' or '.join(MAP_COLUMNS)}")
    curve = [(round(at, 1), float(row[column])) for at, row in rated]
    spec = open_data(training.data, splits=("train",))
    images = len(read_split(spec, "train", single=False, cache_dir="", progress=False)[0])
    spent = rows[-1][0] - rows[0][0]
    speed = images * (len(rows) - 1) / spent if spent > LOOK_S else float("nan")
    if stats := evaluate(training, folder):
        return Outcome(stats["AP"], stats["AP50"], True, speed, curve)
    best = max((row for _, row in rated), key=lambda row: float(row[column]))
    ap50 = next((best[name] for name in AP50_COLUMNS if name in best), "nan")
    return Outcome(float(best[column]), float(ap50), False, speed, curve)


def evaluate(training: Training, folder: Path) -> dict[str, float]:
    """Return COCO's figures of the best.pt under `folder`, by val.py; {} if there is none that it can read.

    Raises FaultError if val.py ends in another way.
    """
    found = sorted(folder.rglob("best.pt"))
    if not found:
        return {}
    command = [sys.executable, str(ROOT / "val.py"), "--weights", str(found[0]), "--data", training.data]
    command += ["--batch", "16"]
    command += ["--project", str(folder), "--name", "val", "--exist-ok"]
    if size := read_size(training.command):
        command += ["--img", size]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ended.returncode == UNREADABLE:
        return {}
    if ended.returncode:
        raise FaultError(f"{training.key}: val.py ended with {ended.returncode}: {one_line(ended.stderr)}")
    stats: dict[str, float] = json.loads((folder / "val" / "metrics.json").read_text())
    return stats


def read_size(command: Sequence[str]) -> str:
    """Return the image size in a command.

    >>> read_size(["train.py", "--img", "320"]), read_size(["yolo", "imgsz=416"]), read_size(["train.py"])
    ('320', '416', '')
    """
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word in ("--img", "--imgsz", "--img-size"):
            return following
        if word.startswith("imgsz="):
            return word.removeprefix("imgsz=")
    return ""


def plan(options: argparse.Namespace) -> list[Training]:
    """Return all trainings: data x (models x recipes, then peers) x seeds.

    Raises ValueError, before anything is trained, if there is nothing to train, or no such data or program.
    """
    programs = {}
    for model in options.models:
        for name, flags in options.recipe:
            ours = [sys.executable, str(ROOT / "train.py"), "--data", "{data}", "--seed", "{seed}", "--cfg", model]
            ours += ["--project", "{out}", "--name", "run", "--exist-ok", "--noplots", *shlex.split(flags)]
            programs[f"{Path(model).stem} {name}"] = [*ours, *options.flags]
    programs |= {name: shlex.split(command) for name, command in options.peer}
    if not programs or not options.seeds:
        raise ValueError("nothing to train: give --models or --peer, and --seeds")
    for name, command in programs.items():
        if not command or shutil.which(command[0]) is None:
            raise ValueError(f"{name}: there is no program '{printable(command[0] if command else '')}'")
    for data in options.data:
        open_data(data, splits=() if "--download" in options.flags else ("train", "val"))
    return [
        Training(program, str(find_data(data).resolve()), seed, tuple(command))
        for data in options.data
        for program, command in programs.items()
        for seed in options.seeds
    ]


def report(trainings: Sequence[Training], outcomes: Sequence[Outcome], title: str) -> list[str]:
    """Return a Markdown table with a row for each program and data set: means over the seeds, ± standard deviation."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for training, outcome in zip(trainings, outcomes, strict=True):
        groups.setdefault((name_of(training.data), training.program), []).append(outcome)
    to = " | ".join(f"s to {share:.0%}" for share in SHARES)
    lines = [f"# {title}", "", f"torch {torch.__version__}", ""]
    heading = f"| data | program | seeds | mAP50-95 | mAP50 | at equal time | seconds | {to} | images/s |"
    lines += [heading, "|---" * (heading.count("|") - 1) + "|"]
    for (data, program), found in groups.items():
        mark = "" if all(one.same_evaluator for one in found) else " *"
        reached = " | ".join(f"{mean(one.seconds_to(share) for one in found):.0f}" for share in SHARES)
        ap, ap50 = ([getattr(one, name) for one in found] for name in ("ap", "ap50"))
        spread = f" ± {stdev(ap):.3f}" if len(ap) > 1 else ""
        speed = mean(one.images_per_second for one in found)
        ends = [max(one.seconds for one in own) for (name, _), own in groups.items() if name == data]
        shortest = min((end for end in ends if end == end), default=float("nan"))
        early = f"{mean(one.reached(shortest) for one in found):.3f} | {mean(one.seconds for one in found):.0f}"
        figures = f"{mean(ap):.3f}{spread}{mark} | {mean(ap50):.3f} | {early} | {reached} | {speed:.1f}"
        lines.append(f"| {data} | {program} | {len(found)} | {figures} |")
    commands = {training.program: shown(training.command) for training in trainings}
    lines += ["", "`*`: by the program's own evaluator.", ""]
    return [*lines, *(f"- {program}: `{command}`" for program, command in commands.items())]


def shown(command: Sequence[str]) -> str:
    """Return a command without the folders of this machine's programs.

    >>> shown(["/usr/bin/yolo", "train", "data={data}"])
    "yolo train 'data={data}'"
    """
    first, *others = command
    name = "python" if first == sys.executable else Path(first).name
    return shlex.join([name, *(word.removeprefix(f"{ROOT}/") for word in others)])


def name_of(data: str) -> str:
    """Return a short name of a data YAML."""
    path = Path(data)
    return path.parent.name if path.stem in ("data", "dataset") else path.stem


def plot(trainings: Sequence[Training], outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw mAP50-95 against wall time: a panel for each data set, a colour for each program, a line for each seed."""
    names = list(dict.fromkeys(name_of(training.data) for training in trainings))
    programs = list(dict.fromkeys(training.program for training in trainings))
    legend: dict[str, Artist] = {}
    with picture(path, 5 * len(names) + 2, 4.2) as figure:
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            axes.set(title=name, xlabel="minutes since the start of the program", ylabel="mAP50-95")
            axes.grid(True)
            for training, outcome in zip(trainings, outcomes, strict=True):
                if name_of(training.data) == name and outcome.curve:
                    number = programs.index(training.program)
                    minutes, values = zip(*((at / 60, value) for at, value in outcome.curve), strict=True)
                    marker = "o" if len(values) == 1 else None
                    style = {"color": hex_colour(number), "linewidth": 1.6, "alpha": 0.85, "marker": marker}
                    legend[training.program] = axes.plot(minutes, values, **style)[0]
            if not axes.lines:
                draw_no_data(axes)
        figure.legend(list(legend.values()), list(legend), loc="outside right upper")


def named(text: str) -> tuple[str, str]:
    """Split "name=value" at the first equals sign."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: give name=value")
    return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", nargs="+", required=True, help="data YAMLs")
    add("--models", nargs="*", default=["yolov5n.yaml"], help="for --cfg (default: yolov5n.yaml); empty: peers only")
    add("--recipe", type=named, action="append", default=[], help="name=flags of train.py; repeat for more (auto=)")
    add("--peer", type=named, action="append", default=[], help="name=command; repeat for more")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--jobs", type=int, default=1, help="trainings at the same time (default: 1); they slow each other down")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of each training (default: all)")
    add("--title", default="Accuracy", help="of the report")
    add("--out", type=Path, default=Path("runs", "accuracy"), help="folder (default: runs/accuracy)")
    add("flags", nargs="*", help="flags for train.py, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the trainings have sessions of their own
    options.recipe = options.recipe or [("auto", "")]
    options.out.mkdir(parents=True, exist_ok=True)
    trainings = plan(options)
    stop = threading.Event()
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(train, each, options.out, options.threads, stop) for each in trainings]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            stop.set()
            raise
        finally:  # after a failure, what is running is trained to its end and stored
            pool.shutdown(wait=False, cancel_futures=True)
        outcomes = [future.result() for future in futures]
    plot(trainings, outcomes, options.out / "accuracy.png")
    file_report(report(trainings, outcomes, options.title), options.out / "report.md")


if __name__ == "__main__":
    run_and_exit(main)
