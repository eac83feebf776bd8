"""Everything to find out on a day with a GPU: correctness, real trainings, exports, then speed.

    # at most 8 minutes on one H100 or H200 with 16 cores
    python benchmarks/gpu.py
    # other images than the generated shapes
    python benchmarks/gpu.py --data mydata.yaml --out results
    # some stages only, with those that they need
    python benchmarks/gpu.py --stages host-waits steps-64
    # try it without a GPU: what a CPU can run
    python benchmarks/gpu.py --device cpu --small

Claim: on one H100 or H200 every check passes. benchmarks/results/gpu_* has what was measured.

Each stage runs in a process of its own with a time limit, so that it can hang or crash without harm
to the others. What does not fit into `--minutes` is left out and listed. `--out` gets gpu.md (all
findings), gpu.json (the same with numbers) and gpu.log (the output of all stages), written anew
after each stage. No stage needs a network. The exit code is 1 if a stage found something wrong,
failed or was stopped. The stages, in their order:

"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.on_gpu.commands import FORK
from benchmarks.on_gpu.report import result, summary, write_results
from benchmarks.on_gpu.running import Outcome, run_stages
from benchmarks.on_gpu.stage import SMALL, Scope, Sizes, Stage
from benchmarks.on_gpu.stages import STAGES
from data.layouts import open_data
from utils.distributed.devices import pick_devices
from utils.distributed.launch import RankInfo
from utils.flags import FlagParser
from utils.printable import did_you_mean
from utils.terminal import run_and_exit

CORES_PER_JOB = 5  # stages that do not measure time run beside each other


def main(arguments: Sequence[str] | None = None) -> None:
    started = time.monotonic() - process_age()

    options = read_options(arguments)
    stages = chosen(options.stages)
    device = find_device(options.device)
    data = ""
    if options.data:
        data = str(open_data(options.data).file.resolve())

    # Running stages are ended with this process, unless the signal is ignored, as under nohup.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, end_with_stages)

    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kestrel-gpu-") as name:
        folder = Path(name, "work")
        folder.mkdir()
        logs = Path(name, "logs")
        logs.mkdir()

        sizes = SMALL if options.small else Sizes()
        outcomes = run_stages(
            stages,
            Scope(device, folder, sizes, data),
            logs,
            deadline=started + 60 * options.minutes,
            jobs=max(1, (os.cpu_count() or 1) // CORES_PER_JOB),
            report=partial(show_last, out=options.out, logs=logs, started=started),
        )
        write_results(options.out, outcomes, logs, about(started))

    print("", *summary(outcomes, options.out), about(started), sep="\n")
    if any(outcome.is_bad for outcome in outcomes):
        sys.exit(1)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Raises ValueError for values that no run can have."""
    listed = "\n".join(f"    {stage.name:18} {stage.about}" for stage in STAGES)
    parser = FlagParser(__doc__ + listed)
    add = parser.add_argument
    about_data = "data set YAML for trainings and the loader (default: generated shapes)"
    about_small = "small images, short trainings: to try the command on a CPU"
    add("--device", default="0", help="a GPU's number, or cpu")
    add("--data", default="", help=about_data)
    add("--small", action="store_true", help=about_small)
    add("--stages", nargs="+", default=[], help="only these stages, and those that they need")
    add("--minutes", type=float, default=8.0, help="time for all stages together")
    add("--out", type=Path, default=Path("runs/gpu"), help="folder for the results")
    options: argparse.Namespace = parser.read(arguments)

    if options.minutes <= 0:
        raise ValueError(f"--minutes {options.minutes:g}: choose more than 0")
    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out {options.out} is a file")
    return options


def chosen(names: Sequence[str]) -> list[Stage]:
    """The stages with these names and those that they need, in order; all if there are no names.

    Raises ValueError for an unknown name.
    """
    by_name = {stage.name: stage for stage in STAGES}
    wanted = list(names or by_name)
    for name in wanted:  # which grows meanwhile
        if name not in by_name:
            near = did_you_mean(name, by_name)
            raise ValueError(f"--stages {name}: there is no such stage{near}; --help lists them")
        wanted += [needed for needed in by_name[name].after if needed not in wanted]
    return [stage for stage in STAGES if stage.name in wanted]


def find_device(wanted: str) -> str:
    """ "cpu" or the number of a GPU. Raises ValueError if there is none such, or more than one.

    A process of its own looks: the stages are forked from this one, which therefore must not use
    CUDA.
    """
    with ProcessPoolExecutor(1, mp_context=FORK) as pool:
        devices = pool.submit(pick_devices, wanted, RankInfo()).result()

    if len(devices) > 1 or devices[0].type not in ("cpu", "cuda"):
        raise ValueError(f"--device {wanted}: give the number of one CUDA GPU, or cpu")
    return "cpu" if devices[0].type == "cpu" else str(devices[0].index)


def process_age() -> float:
    """Seconds since this process started: its imports count too. 0 on systems without /proc."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return 0.0

    started_ticks = int(fields[19])  # since the system started
    return uptime_s - started_ticks / os.sysconf("SC_CLK_TCK")


def show_last(outcomes: list[Outcome], out: Path, logs: Path, started: float) -> None:
    """Print the last outcome, and write all that is known, since this command may be stopped."""
    last = outcomes[-1]
    print(f"[{time.monotonic() - started:5.0f} s] {last.stage}: {result(last)}", flush=True)
    write_results(out, outcomes, logs, about(started))


def about(started: float) -> str:
    """The command and the time that it has taken so far."""
    command = f"python benchmarks/gpu.py {' '.join(sys.argv[1:])}".rstrip()
    return f"{command}: {time.monotonic() - started:.0f} s"


def end_with_stages(number: int, _: FrameType | None) -> None:
    """End as after an error, so that running stages are ended too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    run_and_exit(main)
