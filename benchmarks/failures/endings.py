"""How soon a run of several processes ends when one fails, and whether --max-restarts continues it.

Claim: on one machine, less than 30 seconds after the fault no process of a run under torch's
launcher is left; the exit code is not 0, and one line says why. With --max-restarts the run
continues in the same folder and finishes, 5 times out of 5. (torch 2.15, gloo, two cores: 1 to 4
seconds, 5 of 5.)

    python benchmarks/failures/endings.py --processes 2 4 --restarts 5

The runs are runs of train.py on generated images, started as users start them. The faults are those
of tests/test_failures.py: instead of training its second epoch a process raises an exception, is
killed, asks for more memory than there is, or refuses its data; Ctrl-C is sent while DataLoader
workers run. Times are only meaningful on a machine that does nothing else.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import file_report, table, versions
from tests.support.launching import TORCHRUN, Job, launched, small_run_flags, wait_until
from tests.support.tiny_data import draw_tiny_data
from tests.test_failures import error_lines
from utils.flags import FlagParser
from utils.terminal import run_and_exit

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "tests" / "support" / "launching.py")
FAULTS = {
    "rank 1 raises an exception": "rank_1_raises",
    "rank 0 is killed": "rank_0_is_killed",
    "rank 1 is killed": "rank_1_is_killed",
    "rank 1 runs out of memory": "rank_1_runs_out_of_memory",
    "rank 1 refuses its data": "rank_1_refuses",
}
Row = list[object]


def torchrun(processes: int, folder: Path, *flags: str) -> list[str]:
    """The command of a run with these flags of the launcher; appended flags of train.py count."""
    data = folder.parent / "data" / "tiny.yaml"
    own = small_run_flags(data, str(ROOT / "tests" / "tables" / "tiny.yaml"), folder)
    return [*TORCHRUN, "--nproc_per_node", str(processes), *flags, SCRIPT, *own, "--batch", "4"]


def ended(job: Job, what: str, processes: int) -> Row:
    """Wait for the end of a job; the row for the report, with the seconds from now."""
    started = time.monotonic()
    code = job.end(120)
    seconds = time.monotonic() - started

    lines = error_lines(job.err)
    first = lines[0][:60] if lines else ""
    return [what, processes, f"{seconds:.1f}", code, len(lines), first]


def faults(processes: int, root: Path) -> Iterator[Row]:
    """A row for each fault."""
    for what, fault in FAULTS.items():
        folder = root / f"{fault}-{processes}"
        stamp = folder / "stamp"
        variables = {"KESTREL_FAULT": f"tests.test_failures:{fault}", "KESTREL_STAMP": str(stamp)}
        command = [*torchrun(processes, folder), "--epochs", "1000"]
        with launched(command, folder, **variables) as job:
            wait_until(stamp.exists, 120, what)
            yield ended(job, what, processes)


def interrupted(processes: int, root: Path) -> Row:
    """The row for Ctrl-C, sent while each process has two DataLoader workers."""
    folder = root / f"interrupted-{processes}"
    last = folder / "exp" / "weights" / "last.pt"
    more = ["--epochs", "1000", "--workers", "2", "--batch", str(2 * processes)]
    command = [*torchrun(processes, folder), *more]
    with launched(command, folder, KESTREL_FAULT="tests.test_failures:many_cores") as job:
        wait_until(last.exists, 120, "the first checkpoint")
        os.killpg(job.process.pid, signal.SIGINT)
        return ended(job, "Ctrl-C", processes)


def restarted(number: int, root: Path) -> bool:
    """Whether a run whose rank 1 is killed in its second epoch continues and finishes."""
    folder = root / f"restarted-{number}"
    fault = "tests.training.checkpoints.test_restart:dies_once"
    command = [*torchrun(2, folder, "--max-restarts", "3"), "--epochs", "4"]
    with launched(command, folder, KESTREL_FAULT=fault) as job:
        code = job.end(300)
        output = job.out

    runs = [path.name for path in folder.glob("exp*")]
    rows = (folder / "exp" / "results.csv").read_text().splitlines()[1:]
    is_complete = code == 0 and runs == ["exp"] and len(rows) == 4
    return is_complete and "resuming " in output


def report(rows: Sequence[Row], restarts: Sequence[bool]) -> str:
    columns = ["fault", "processes", "seconds", "exit code", "error lines", "first error line"]
    machine = f"{os.cpu_count()} cores, {platform.machine()}"
    return (
        f"# How runs end: {machine}, {date.today()}\n\n"
        f"torchrun, gloo, {versions()}. Seconds are counted from the fault until no process is "
        "left, launcher and DataLoader workers included; exit codes are the launcher's. Error "
        f"lines are those of Kestrel, not of the launcher.\n\n{table(columns, rows)}\n\n"
        f"--max-restarts 3, rank 1 killed in its second epoch: {sum(restarts)} of {len(restarts)} "
        "runs continued in the same folder and finished."
    )


def main() -> None:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--processes", type=int, nargs="+", default=[2, 4], choices=[1, 2, 4])
    add("--restarts", type=int, default=5)
    add("--out", type=Path, default=ROOT / "runs" / "endings.md", help="file for the report")
    options: argparse.Namespace = parser.read()

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        draw_tiny_data(root / "data")

        rows: list[Row] = []
        for processes in options.processes:
            rows += faults(processes, root)
            rows.append(interrupted(processes, root))
        restarts = [restarted(number, root) for number in range(options.restarts)]
    file_report([report(rows, restarts)], options.out)


if __name__ == "__main__":
    run_and_exit(main)
