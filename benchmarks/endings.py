"""How soon a run of several processes ends when one of them fails, and whether it goes on where it may.

Claim: on one machine, from the fault until no process is left, a run under torch's launcher takes less than 30 seconds,
ends with an exit code other than 0, and tells why in one line; with --max-restarts it goes on in the same folder and
ends well, 5 times out of 5. (torch 2.15, gloo, two cores: 1 to 4 seconds, 5 of 5.)

    python benchmarks/endings.py --processes 2 4 --restarts 5

The runs are train.py's own, of drawn images, started as users start them. The faults are those of
tests/test_failures.py: in place of its second epoch a process raises, is killed, asks for more memory than there is, or
refuses its data; Ctrl-C comes while loader processes run. What it costs is a time on a machine that does nothing else.
"""

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.pop(1)  # this folder, whose profile.py would hide Python's

import torch

from tests.conftest import draw_tiny_data
from tests.support.launching import TORCHRUN, Job, launched, small, until
from tests.test_failures import ours
from utils.files.writers import write_text
from utils.flags import FlagParser
from utils.terminal import run_and_exit

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = str(ROOT / "tests" / "support" / "launching.py")
FAULTS = {
    "a rank raises": "rank_1_raises",
    "rank 0 is killed": "rank_0_is_killed",
    "rank 1 is killed": "rank_1_is_killed",
    "memory is wanting": "rank_1_lacks_memory",
    "a rank refuses": "rank_1_refuses",
}
Row = list[object]


def torchrun(processes: int, folder: Path, *flags: str) -> list[str]:
    """The command of an endless run; later flags count."""
    own = small(folder.parent / "data" / "tiny.yaml", str(ROOT / "tests" / "tables" / "tiny.yaml"), folder)
    return [*TORCHRUN, "--nproc_per_node", str(processes), *flags, SCRIPT, *own, "--batch", "4"]


def ended(job: Job, what: str, processes: int) -> Row:
    """How a job ends from now on."""
    began = time.monotonic()
    code = job.end(120)
    lines = ours(job.err)
    return [what, processes, f"{time.monotonic() - began:.1f}", code, len(lines), lines[0][:60] if lines else ""]


def faults(processes: int, root: Path) -> Iterator[Row]:
    for what, fault in FAULTS.items():
        folder = root / f"{fault}-{processes}"
        stamp = folder / "stamp"
        variables = {"KESTREL_FAULT": f"tests.test_failures:{fault}", "KESTREL_STAMP": str(stamp)}
        command = [*torchrun(processes, folder), "--epochs", "1000"]
        with launched(command, folder, **variables) as job:
            until(stamp.exists, 120, what)
            yield ended(job, what, processes)


def interrupted(processes: int, root: Path) -> Row:
    """Ctrl-C, once each process has two loaders."""
    folder = root / f"interrupted-{processes}"
    more = ["--epochs", "1000", "--workers", "2", "--batch", str(2 * processes)]
    with launched([*torchrun(processes, folder), *more], folder, KESTREL_FAULT="tests.test_failures:many_cores") as job:
        until((folder / "exp" / "weights" / "last.pt").exists, 120, "the first checkpoint")
        os.killpg(job.process.pid, signal.SIGINT)
        return ended(job, "Ctrl-C", processes)


def restarted(number: int, root: Path) -> bool:
    """Whether a run whose rank 1 is killed in its second epoch goes on in its folder and ends well."""
    folder = root / f"restarted-{number}"
    command = [*torchrun(2, folder, "--max-restarts", "3"), "--epochs", "4"]
    with launched(command, folder, KESTREL_FAULT="tests.utils.training.checkpoints.test_restart:dies_once") as job:
        code, runs = job.end(300), [path.name for path in folder.glob("exp*")]
        rows = (folder / "exp" / "results.csv").read_text().splitlines()[1:]
        return (code, runs, len(rows)) == (0, ["exp"], 4) and "going on with" in job.out


def report(rows: Sequence[Row], restarts: Sequence[bool]) -> str:
    columns = ["what", "processes", "seconds", "exit code", "lines of ours", "the first of them"]
    lines: list[Sequence[object]] = [columns, ["---"] * len(columns), *rows]
    table = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    return (
        f"# How runs end: {os.cpu_count()} cores, {platform.machine()}, {date.today()}\n\n"
        f"torchrun, gloo, torch {torch.__version__}, Python {platform.python_version()}. *Seconds* are those from the "
        f"fault until no process is left, launcher and loaders included; exit codes are the launcher's.\n\n{table}\n\n"
        f"--max-restarts 3, rank 1 killed in its second epoch: {sum(restarts)} of {len(restarts)} went on in the same "
        "folder and ended well.\n"
    )


def main() -> None:
    parser = FlagParser(__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], choices=[1, 2, 4])
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "endings.md", help="file for the report")
    options: argparse.Namespace = parser.read()
    with tempfile.TemporaryDirectory() as name:
        root, rows = Path(name), []
        draw_tiny_data(root / "data")
        for processes in options.processes:
            rows += [*faults(processes, root), interrupted(processes, root)]
        text = report(rows, [restarted(number, root) for number in range(options.restarts)])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    run_and_exit(main)
