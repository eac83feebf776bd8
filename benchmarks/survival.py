"""Whether a run that is killed and resumed many times ends with the same bits as an uninterrupted
run.

Claim: a run whose process (or one of its two processes) is killed with SIGKILL at 20 random
moments, and which is resumed each time, ends with the same bits as an uninterrupted run in the
weights, averaged weights, optimizer state and results.csv (except times), with one process and with
two.

    python benchmarks/survival.py --processes 1 2 --kills 20

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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from data.shapes.generate import generate
from tests.support.launching import TORCHRUN, environment_of, launched
from tests.test_resume import rows, same
from utils.files import checkpoint_file
from utils.files.writers import write_text
from utils.flags import FlagParser
from utils.terminal import run_and_exit

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 40
WORDS = (
    f"--cfg yolov5n.yaml --img 64 --batch 32 --epochs {EPOCHS} --device cpu --workers 1 "
    "--save-minutes 0.033"
)
WINDOW_S = (2.0, 14.0)  # seconds after its start in which an attempt is killed
Life = dict[str, object]


def command(processes: int, root: Path, name: str) -> list[str]:
    """The command that starts a run, or resumes it if it has a last.pt."""
    launcher = (
        [sys.executable] if processes == 1 else [*TORCHRUN, "--nproc_per_node", str(processes)]
    )
    paths = [
        "--data",
        str(root / "set" / "shapes.yaml"),
        "--project",
        str(root / f"{processes}"),
        "--name",
        name,
    ]
    last = root / f"{processes}" / name / "weights" / "last.pt"
    resume = ["--resume", str(last)] if last.exists() else []
    flags = [*paths, "--exist-ok", "--cache-dir", str(root / "cache"), *WORDS.split(), *resume]
    return [*launcher, str(ROOT / "train.py"), *flags]


def trainers(running_pids: Sequence[int]) -> list[int]:
    """The ids of the processes of a job that train, by rank; not the launcher or DataLoader
    workers.
    """
    found = {}
    for pid in running_pids:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        is_script = (
            any(word.endswith(b"/train.py") for word in words)
            and b"torch.distributed.run" not in words
        )
        if is_script and parent not in found.values():
            found[int(environment_of(pid).get("RANK", "0"))] = pid
    return [found[rank] for rank in sorted(found)]


def live(processes: int, root: Path, name: str, *, kill_after: float = 0.0, rank: int = 0) -> Life:
    """Start or resume a run once; return what became of it. kill_after: seconds until `rank` is
    killed; 0: never.
    """
    started, run = time.monotonic(), root / f"{processes}" / name
    with launched(command(processes, root, name), root / "io") as job:
        while kill_after and time.monotonic() - started < kill_after and job.process.poll() is None:
            time.sleep(0.01)
        killed = False
        if kill_after and job.process.poll() is None and (found := trainers(job.running_pids())):
            os.kill(found[min(rank, len(found) - 1)], signal.SIGKILL)
            killed = True
        code = job.end(600)
        lines = job.out.splitlines()
    partial_files = [file.name for file in run.glob("**/*.tmp.*")]
    last = run / "weights" / "last.pt"
    saved = checkpoint_file.load(last) if last.exists() else {"epoch": 0, "batch": 0}
    return {
        "seconds": time.monotonic() - started,
        "killed": killed,
        "code": code,
        "doing": doing(lines, partial_files),
        "kept": f"epoch {saved['epoch']}, batch {saved['batch']}",
    }


def doing(lines: Sequence[str], partial_files: Sequence[str]) -> str:
    """What a run was doing when it was killed, according to its output and temporary files."""
    if partial_files:
        return f"writing {re.sub(r'[.]tmp.*', '', partial_files[0])}"
    if not any("writing to" in line for line in lines):
        return "starting"
    is_trained = any(re.match(rf"\s*{EPOCHS}/{EPOCHS} ", line) for line in lines)
    return "plots, last validation" if is_trained else "training, validation"


def survive(processes: int, kills: int, root: Path) -> str:
    """Kill and resume a run `kills` times, compare it with an uninterrupted one; return a section
    of the report.
    """
    straight = live(processes, root, "straight")
    generator = random.Random(processes)
    table = [
        "| attempt | killed after | rank | exit code | while | last.pt then |",
        "|---|---|---|---|---|---|",
    ]
    killed = 0
    while killed < kills:
        after, rank = generator.uniform(*WINDOW_S), generator.randrange(processes)
        attempt = live(processes, root, "broken", kill_after=after, rank=rank)
        if not attempt["killed"]:
            break  # the run has finished, after fewer kills than requested
        killed += 1
        table.append(
            f"| {killed} | {after:.1f} s | {rank} | {attempt['code']} | {attempt['doing']} | "
            f"{attempt['kept']} |"
        )
    live(processes, root, "broken")
    folder, differing = root / f"{processes}", []
    for file in ("last.pt", "best.pt"):
        one, other = (
            checkpoint_file.load(folder / name / "weights" / file)
            for name in ("straight", "broken")
        )
        compared = one.keys() - {"config", "seconds"}
        differing += [f"{file} {part}" for part in compared if not same(one[part], other[part])]
    if rows(folder / "straight") != rows(folder / "broken"):
        differing.append("results.csv")
    verdict = f"differs in {', '.join(differing)}" if differing else "equal to the bit"
    count = len(rows(folder / "broken"))
    return "\n".join(
        [
            f"\n## {processes} process{'es' if processes > 1 else ''}: {verdict}\n",
            f"Uninterrupted, a run takes {straight['seconds']:.0f} s. {killed} kills; results.csv "
            f"has {count} rows.\n",
            *table,
        ]
    )


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "survival.md", help="file for the report"
    )
    options: argparse.Namespace = parser.read()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        generate(root / "set", train=640, val=64, size=96)
        tables = [survive(processes, options.kills, root) for processes in options.processes]
    text = (
        f"# Killed and resumed runs: {os.cpu_count()} cores, {platform.machine()}, "
        f"{date.today()}\n\n"
        f"`{WORDS}`, torch {torch.__version__}, Python {platform.python_version()}. Compared: "
        "last.pt "
        "(weights, averages, optimizer, losses, best epoch, random state), best.pt and "
        "results.csv, without times.\n" + "\n".join(tables) + "\n"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    run_and_exit(main)
