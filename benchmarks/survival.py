"""Whether a run that is killed again and again ends with the bits of one that is left alone.

Claim: killed with SIGKILL at 20 random instants (of one of two processes, or of the only one) and gone on with each
time, a run ends with the same weights, averages, optimizer state and results.csv (times aside), to the bit, as an
uninterrupted one, with one process and with two.

    python benchmarks/survival.py --processes 1 2 --kills 20

The runs are train.py's own, started as users start them (yolov5n, generated shapes, loader processes, pictures, and a
checkpoint every two seconds, so that some kills strike while one is written). Instants are drawn evenly from the first
seconds of a life; what the run was doing then is told by what it left behind.
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
sys.path.pop(1)  # this folder, whose profile.py would hide Python's

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
WORDS = f"--cfg yolov5n.yaml --img 64 --batch 32 --epochs {EPOCHS} --device cpu --workers 1 --save-minutes 0.033"
WINDOW_S = (2.0, 14.0)  # in which a life is killed, counted from its start
Life = dict[str, object]


def command(processes: int, root: Path, name: str) -> list[str]:
    """A life of a run, which goes on if it can."""
    starter = [sys.executable] if processes == 1 else [*TORCHRUN, "--nproc_per_node", str(processes)]
    places = ["--data", str(root / "set" / "shapes.yaml"), "--project", str(root / f"{processes}"), "--name", name]
    last = root / f"{processes}" / name / "weights" / "last.pt"
    resume = ["--resume", str(last)] if last.exists() else []
    own = [*places, "--exist-ok", "--cache-dir", str(root / "cache"), *WORDS.split(), *resume]
    return [*starter, str(ROOT / "train.py"), *own]


def trainers(alive: Sequence[int]) -> list[int]:
    """Of a job's processes those that train, by rank; not the launcher, nor loaders."""
    found = {}
    for pid in alive:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        is_script = any(word.endswith(b"/train.py") for word in words) and b"torch.distributed.run" not in words
        if is_script and parent not in found.values():
            found[int(environment_of(pid).get("RANK", "0"))] = pid
    return [found[rank] for rank in sorted(found)]


def live(processes: int, root: Path, name: str, *, kill_after: float = 0.0, rank: int = 0) -> Life:
    """One life; what is left of it. kill_after: seconds after which the process of a rank is killed, 0 for never."""
    began, run = time.monotonic(), root / f"{processes}" / name
    with launched(command(processes, root, name), root / "io") as job:
        while kill_after and time.monotonic() - began < kill_after and job.process.poll() is None:
            time.sleep(0.01)
        killed = False
        if kill_after and job.process.poll() is None and (found := trainers(job.alive())):
            os.kill(found[min(rank, len(found) - 1)], signal.SIGKILL)
            killed = True
        code = job.end(600)
        lines = job.out.splitlines()
    torn = [file.name for file in run.glob("**/*.tmp.*")]
    last = run / "weights" / "last.pt"
    at = checkpoint_file.load(last) if last.exists() else {"epoch": 0, "batch": 0}
    return {
        "seconds": time.monotonic() - began,
        "killed": killed,
        "code": code,
        "doing": doing(lines, torn),
        "kept": f"epoch {at['epoch']}, batch {at['batch']}",
    }


def doing(lines: Sequence[str], torn: Sequence[str]) -> str:
    """What a run was at when it was killed."""
    if torn:
        return f"writing {re.sub(r'[.]tmp.*', '', torn[0])}"
    if not any("writing to" in line for line in lines):
        return "starting"
    over = any(re.match(rf"\s*{EPOCHS}/{EPOCHS} ", line) for line in lines)
    return "pictures, last validation" if over else "training, validation"


def survive(processes: int, kills: int, root: Path) -> str:
    """The table of one number of processes."""
    straight = live(processes, root, "straight")
    chosen = random.Random(processes)
    table = ["| life | killed after | rank | code | doing | last.pt then holds |", "|---|---|---|---|---|---|"]
    struck = 0
    while struck < kills:
        after, rank = chosen.uniform(*WINDOW_S), chosen.randrange(processes)
        life = live(processes, root, "broken", kill_after=after, rank=rank)
        if not life["killed"]:
            break  # the run is done: fewer kills than were wanted
        struck += 1
        table.append(f"| {struck} | {after:.1f} s | {rank} | {life['code']} | {life['doing']} | {life['kept']} |")
    live(processes, root, "broken")
    folder, differing = root / f"{processes}", []
    for file in ("last.pt", "best.pt"):
        one, other = (checkpoint_file.load(folder / name / "weights" / file) for name in ("straight", "broken"))
        compared = one.keys() - {"config", "seconds"}
        differing += [f"{file} {part}" for part in compared if not same(one[part], other[part])]
    if rows(folder / "straight") != rows(folder / "broken"):
        differing.append("results.csv")
    verdict = f"differs in {', '.join(differing)}" if differing else "equal to the bit"
    counted = len(rows(folder / "broken"))
    return "\n".join(
        [
            f"\n## {processes} process{'es' if processes > 1 else ''}: {verdict}\n",
            f"Left alone a run takes {straight['seconds']:.0f} s. {struck} kills; results.csv has {counted} rows.\n",
            *table,
        ]
    )


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "survival.md", help="file for the report")
    options: argparse.Namespace = parser.read()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        generate(root / "set", train=640, val=64, size=96)
        tables = [survive(processes, options.kills, root) for processes in options.processes]
    text = (
        f"# Runs that are killed: {os.cpu_count()} cores, {platform.machine()}, {date.today()}\n\n"
        f"`{WORDS}`, torch {torch.__version__}, Python {platform.python_version()}. Compared are last.pt (weights, "
        "averages, optimizer, losses, best, random state), best.pt and results.csv, times aside.\n"
        + "\n".join(tables)
        + "\n"
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    run_and_exit(main)
