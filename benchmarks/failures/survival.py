"""Whether a run that is killed and resumed many times ends with the bits of an uninterrupted one.

Claim: a run whose process (or one of its two processes) is killed with SIGKILL at 20 random
moments, and which is resumed each time, ends with the same bits as an uninterrupted run in the
weights, averaged weights, optimizer state and results.csv (except times), with one process and with
two.

    python benchmarks/failures/survival.py --processes 1 2 --kills 20

The runs are runs of train.py, started as users start them (yolov5n, generated shapes, DataLoader
workers, plots, and a checkpoint every two seconds, so that some kills hit while one is written).
The moments are drawn uniformly from the first seconds of each attempt. What the run was doing at
that moment is concluded from its files and output.
"""

import argparse
import os
import platform
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.report import file_report
from benchmarks.trainings.bits import IGNORED, rows_without_time, same, train_command
from data.shapes.generate import generate
from tests.support.launching import environment_of, launched
from utils.files import checkpoint_file
from utils.flags import FlagParser
from utils.terminal import run_and_exit

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 40
WORDS = (
    f"--cfg yolov5n.yaml --img 64 --batch 32 --epochs {EPOCHS} --device cpu --workers 1 "
    "--save-minutes 0.033"
)
WINDOW_S = (2.0, 14.0)  # seconds after its start in which an attempt is killed
TIMEOUT_S = 600.0


class Attempt(NamedTuple):
    """What became of a run that was started or resumed once."""

    seconds: float
    killed: bool
    code: int  # exit code
    doing: str  # when it was killed
    kept: str  # what last.pt held at its end


def command(processes: int, root: Path, name: str) -> list[str]:
    """The command that starts a run, or resumes it if it has a last.pt."""
    run = root / f"{processes}" / name
    last = run / "weights" / "last.pt"
    flags = WORDS.split()
    if last.exists():
        flags += ["--resume", str(last)]

    return train_command(
        ROOT / "train.py",
        run,
        data=root / "set" / "shapes.yaml",
        cache=root / "cache",
        processes=processes,
        flags=flags,
    )


def trainers(running_pids: Sequence[int]) -> list[int]:
    """The ids of the processes of a job that train, by rank; not the launcher or its workers."""
    found: dict[int, int] = {}  # rank -> process id
    for pid in running_pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        is_launcher = b"torch.distributed.run" in words
        is_script = any(word.endswith(b"/train.py") for word in words) and not is_launcher

        # A DataLoader worker has the command line of the process that forked it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        parent = int(fields[1])
        if is_script and parent not in found.values():
            rank = int(environment_of(pid).get("RANK", "0"))
            found[rank] = pid
    return [found[rank] for rank in sorted(found)]


def live(
    processes: int, root: Path, name: str, *, kill_after: float = 0.0, rank: int = 0
) -> Attempt:
    """Start or resume a run once.

    Args:
        processes: of the run.
        root: folder of the data and of all runs.
        name: of the run.
        kill_after: seconds until a process is killed; 0: never.
        rank: of the process that is killed.
    """
    started = time.monotonic()
    with launched(command(processes, root, name), root / "io") as job:
        while time.monotonic() - started < kill_after and job.process.poll() is None:
            time.sleep(0.01)

        killed = False
        if kill_after and job.process.poll() is None:
            found = trainers(job.running_pids())
            if found:
                os.kill(found[min(rank, len(found) - 1)], signal.SIGKILL)
                killed = True

        code = job.end(TIMEOUT_S)
        lines = job.out.splitlines()

    run = root / f"{processes}" / name
    partial_files = [file.name for file in run.glob("**/*.tmp.*")]
    last = run / "weights" / "last.pt"
    saved = checkpoint_file.load(last) if last.exists() else {"epoch": 0, "batch": 0}
    return Attempt(
        seconds=time.monotonic() - started,
        killed=killed,
        code=code,
        doing=doing(lines, partial_files),
        kept=f"epoch {saved['epoch']}, batch {saved['batch']}",
    )


def doing(lines: Sequence[str], partial_files: Sequence[str]) -> str:
    """What a run was doing when it was killed, according to its output and temporary files."""
    if partial_files:
        return f"writing {re.sub(r'[.]tmp.*', '', partial_files[0])}"
    if not any("writing to" in line for line in lines):
        return "starting"

    is_trained = any(re.match(rf"\s*{EPOCHS}/{EPOCHS} ", line) for line in lines)
    return "plots, last validation" if is_trained else "training, validation"


def survive(processes: int, kills: int, root: Path) -> str:
    """Compare a run that is killed `kills` times with a straight one; a section of the report."""
    straight = live(processes, root, "straight")

    generator = random.Random(processes)
    table = [
        "| attempt | killed after | rank | exit code | while | last.pt then |",
        "|---|---|---|---|---|---|",
    ]
    killed = 0
    while killed < kills:
        after = generator.uniform(*WINDOW_S)
        rank = generator.randrange(processes)
        attempt = live(processes, root, "broken", kill_after=after, rank=rank)
        if not attempt.killed:
            break  # the run has finished, after fewer kills than requested
        killed += 1
        table.append(
            f"| {killed} | {after:.1f} s | {rank} | {attempt.code} | {attempt.doing} | "
            f"{attempt.kept} |"
        )
    live(processes, root, "broken")

    folder = root / f"{processes}"
    differing = differences(folder / "straight", folder / "broken")
    verdict = f"differs in {', '.join(differing)}" if differing else "equal to the bit"
    count = len(rows_without_time(folder / "broken"))
    noun = "processes" if processes > 1 else "process"
    heading = [
        f"\n## {processes} {noun}: {verdict}\n",
        f"Uninterrupted, a run takes {straight.seconds:.0f} s. {killed} kills; results.csv has "
        f"{count} rows.\n",
    ]
    return "\n".join([*heading, *table])


def differences(straight: Path, broken: Path) -> list[str]:
    """The parts of two run folders that are not equal to the bit."""
    differing = []
    for file in ("last.pt", "best.pt"):
        one = checkpoint_file.load(straight / "weights" / file)
        other = checkpoint_file.load(broken / "weights" / file)
        compared = one.keys() - IGNORED
        differing += [f"{file} {part}" for part in compared if not same(one[part], other[part])]

    if rows_without_time(straight) != rows_without_time(broken):
        differing.append("results.csv")
    return differing


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--processes", type=int, nargs="+", default=[1, 2])
    add("--kills", type=int, default=20)
    out = ROOT / "runs" / "survival.md"
    add("--out", type=Path, default=out, help="file for the report")
    options: argparse.Namespace = parser.read()

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        generate(root / "set", train=640, val=64, size=96)
        sections = [survive(processes, options.kills, root) for processes in options.processes]

    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    text = (
        f"# Killed and resumed runs: {machine}, {date.today()}\n\n"
        f"`{WORDS}`, {versions}. Compared: last.pt (weights, averages, optimizer, losses, best "
        "epoch, random state), best.pt and results.csv, without times.\n"
    )
    file_report([text + "\n".join(sections)], options.out)


if __name__ == "__main__":
    run_and_exit(main)
