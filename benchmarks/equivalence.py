"""How closely training with N processes matches one process, compared with deliberate faults and
rounding changes.

Claim: with the same seed, global batch and --sync-bn, after 20 optimizer steps with augmentation,
the weights, their average and BatchNorm's statistics of 2 and 4 gloo processes equal those of one
process trained in float64: up to 1e-9 of each tensor's norm if they train in float64, up to 1e-4 in
float32. Every fault that makes a process see only a part of the batch differs by orders of
magnitude more.

    python benchmarks/equivalence.py --cfg yolov5n.yaml --img 128 --batch 16 --processes 1 2 4

Runs are runs of train.py on the CPU with one thread per process. They start from weights trained
for `--learn` epochs with AdamW. From random weights no comparison is possible: there the smallest
change grows tenfold with each step, even in one process, as the last table shows.

A difference is the largest |a - b| / |a| over all tensors, with the Euclidean norm. The faults are
those of tests/support/processes.py.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import train
import training.state
from data.shapes.generate import generate
from models import Detector
from tests.support.launching import TORCHRUN
from tests.support.processes import FAULTS
from training.ema import EMA
from utils.distributed.launch import Launch
from utils.distributed.session import distributed_session
from utils.distributed.world import World
from utils.files.writers import write_text
from utils.flags import FlagParser
from utils.terminal import run_and_exit

ROOT = Path(__file__).resolve().parents[1]
SHOWN_STEPS = (1, 5, 10)  # besides the last one
PRECISIONS = ("fp64", "fp32")
NUDGED = "1, starting weights changed in the last bits"
State = Mapping[str, Tensor]
Record = dict[int, dict[str, State]]  # {optimizer step: {"model": ..., "ema": ...}}


@dataclass(frozen=True)
class Run:
    """The settings of a training run.

    learned: start from trained weights. fault: one of FAULTS, "" for none. nudged: change the
    starting weights in their last bits.
    """

    precision: str
    learned: bool = True
    sync_bn: bool = True
    multi_scale: bool = False
    fault: str = ""
    nudged: bool = False

    @property
    def name(self) -> str:
        parts = (
            self.precision,
            self.learned,
            self.sync_bn,
            self.multi_scale,
            self.fault,
            self.nudged,
        )
        return "-".join(map(str, parts)).replace(" ", "_")


PROOF = {precision: Run(precision) for precision in PRECISIONS}
RANDOM = {precision: Run(precision, learned=False) for precision in PRECISIONS}
MULTI_SCALE = Run("fp64", multi_scale=True)
SIZES = "rank-local image size"
ELSEWHERE = {SIZES, "slow writer"}  # faults that are run with --multi-scale, or not at all
BROKEN = {  # {faulty run: the run that it is compared with}
    **{Run("fp64", fault=fault): PROOF["fp64"] for fault in FAULTS if fault not in ELSEWHERE},
    replace(MULTI_SCALE, fault=SIZES): MULTI_SCALE,
    Run("fp64", sync_bn=False): PROOF["fp64"],
}


def runs_of(processes: int) -> list[Run]:
    """The runs that are done with this number of processes."""
    if processes > 2:
        return list(PROOF.values())
    both = [*PROOF.values(), *RANDOM.values()]
    return [
        *both,
        MULTI_SCALE,
        *(BROKEN if processes == 2 else [replace(run, nudged=True) for run in both]),
    ]


# ---------------------------------------------------------------------- in each of the processes


def run_here(options: argparse.Namespace, folder: Path) -> None:
    """Do all runs of this launch; rank 0 saves their records in the folder."""
    with distributed_session() as connect:
        world = connect(Launch(device="cpu"))
        for run in runs_of(world.size):
            record = train_recorded(run, options, folder, world)
            if world.is_main:
                torch.save(record, folder / f"{world.size}-{run.name}.pt")
            world.wait_for_main()


def train_recorded(run: Run, options: argparse.Namespace, folder: Path, world: World) -> Record:
    """Train; return the weights and their average after SHOWN_STEPS and after the last step."""
    record: Record = {}
    real, wanted = EMA.update, {*SHOWN_STEPS, options.steps}

    def update(self: EMA, weights: State) -> None:
        real(self, weights)
        if self.updates in wanted:
            both = {"model": weights, "ema": self.state_dict()}
            record[self.updates] = {
                part: {k: v.clone() for k, v in state.items()} for part, state in both.items()
            }

    fault = FAULTS[run.fault](world) if run.fault else nullcontext()
    with fault, nudge() if run.nudged else nullcontext(), mock.patch.object(EMA, "update", update):
        train.main(train.parse_args(flags(run, options, folder, world))[0], world)
    return record


@contextmanager
def nudge() -> Iterator[None]:
    """Change the starting weights of a run by about one unit in the last place."""
    real = training.state.build_replica

    def build(model: Detector, *arguments: Any, **keywords: Any) -> Any:
        random = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=random, dtype=parameter.dtype)
            parameter.data.mul_(1 + noise * torch.finfo(parameter.dtype).eps)
        return real(model, *arguments, **keywords)

    with mock.patch.object(training.state, "build_replica", build):
        yield


def flags(run: Run, options: argparse.Namespace, folder: Path, world: World) -> list[str]:
    """A run's command line: one epoch of two batches for each step, so that gradients are
    accumulated.
    """
    start = (
        ["--weights", str(folder / "learned" / "weights" / "last.pt")]
        if run.learned
        else ["--cfg", options.cfg]
    )
    places = [
        "--project",
        str(folder / str(world.size)),
        "--name",
        run.name,
        "--cache-dir",
        str(folder / "cache"),
    ]
    words = (
        f"--data {options.data} --img {options.img} --batch {options.batch} --epochs "
        f"{options.steps} --workers 0"
    )
    switches = [*["--sync-bn"] * run.sync_bn, *["--multi-scale"] * run.multi_scale]
    recipe = [
        "--optimizer",
        "SGD",
        "--hyp",
        "hyp.scratch-low.yaml",
        "--noval",
        "--nosave",
        "--noplots",
    ]
    return [*words.split(), *start, *places, *switches, *recipe, "--amp", run.precision]


def learn(options: argparse.Namespace, folder: Path) -> None:
    """Train the weights that the runs start from."""
    words = (
        f"--data {options.data} --cfg {options.cfg} --img {options.img} --batch "
        f"{options.batch} --workers 0"
    )
    more = f"--epochs {options.learn} --amp fp32 --noval --nosave --noplots"
    places = ["--project", str(folder), "--name", "learned", "--cache-dir", str(folder / "cache")]
    train.main(
        train.parse_args([*words.split(), *more.split(), *places])[0], World(torch.device("cpu"))
    )


# ---------------------------------------------------------------------- launches and the report


def launch(processes: int, options: argparse.Namespace, folder: Path) -> None:
    """Do the runs in so many processes. Raises SystemExit if a process fails; it has printed
    why.
    """
    launcher = [*TORCHRUN, "--standalone", "--nproc_per_node", str(processes)]
    given = [
        f"--{name}={getattr(options, name)}" for name in ("cfg", "data", "img", "batch", "steps")
    ]
    command = [*launcher, __file__, *given, "--measure", str(folder)]
    finished = subprocess.run(
        command, check=False, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if finished.returncode:
        raise SystemExit(finished.returncode)


def difference(first: State, second: State) -> float:
    """The largest |first - second| / |first| over the tensors; 0 for a tensor that is 0 in both.

    Raises ValueError if a value is not finite.
    """
    found = [0.0]
    for key, value in first.items():
        gap = (value.double() - second[key].double()).norm()
        found.append((gap / value.double().norm()).item() if gap else 0.0)
    if not all(map(math.isfinite, found)):
        raise ValueError("the weights of a run became nan or infinite: nothing can be compared")
    return max(found)


def differences(first: dict[str, State], second: dict[str, State]) -> list[str]:
    """The differences of the weights, of their average, and of BatchNorm's running statistics, as
    text.
    """
    weights, statistics = (
        {k: v for k, v in first["model"].items() if ("running" in k) is running}
        for running in (False, True)
    )
    found = difference(weights, second["model"]), difference(first["ema"], second["ema"])
    return [f"{value:.1e}" for value in (*found, difference(statistics, second["model"]))]


def report(options: argparse.Namespace, folder: Path) -> str:
    def record_of(processes: int, run: Run) -> Record:
        return torch.load(folder / f"{processes}-{run.name}.pt", weights_only=True)

    def ends(processes: int, run: Run, against: Run) -> list[str]:
        return differences(
            record_of(1, against)[options.steps], record_of(processes, run)[options.steps]
        )

    many = [number for number in sorted(set(options.processes)) if number > 1]
    columns = [
        "processes",
        "precision",
        "compared with one process in",
        "weights",
        "average",
        "statistics",
    ]
    proof = [
        [number, run.precision, run.precision, *ends(number, run, run)]
        for run in PROOF.values()
        for number in many
    ]
    proof += [
        [NUDGED, run.precision, run.precision, *ends(1, replace(run, nudged=True), run)]
        for run in PROOF.values()
    ]
    proof += [
        [number, "fp32", "fp64", *ends(number, PROOF["fp32"], PROOF["fp64"])]
        for number in (1, *many)
    ]
    parts = [head(options), f"After {options.steps} optimizer steps:\n\n" + table(columns, proof)]
    if 2 in many:
        broken = [["none, with --multi-scale", *ends(2, MULTI_SCALE, MULTI_SCALE)]]
        broken += [
            [run.fault or "plain BatchNorm", *ends(2, run, right)] for run, right in BROKEN.items()
        ]
        parts.append(
            "Two processes with a fault, float64:\n\n" + table(["fault", *columns[3:]], broken)
        )
        parts.append(chaos(options, record_of))
    return "\n\n".join(parts) + "\n"


def chaos(options: argparse.Namespace, record_of: Callable[[int, Run], Record]) -> str:
    steps = (*(step for step in SHOWN_STEPS if step < options.steps), options.steps)
    rows = []
    for precision, run in RANDOM.items():
        one = record_of(1, run)
        for name, other in (
            ("2", record_of(2, run)),
            (NUDGED, record_of(1, replace(run, nudged=True))),
        ):
            gaps = [difference(one[step]["model"], other[step]["model"]) for step in steps]
            rows.append([name, precision, *(f"{gap:.1e}" for gap in gaps)])
    columns = ["processes", "precision", *map(str, steps)]
    return (
        "From random weights, all tensors compared with one process, by number of steps:\n\n"
        + table(columns, rows)
    )


def head(options: argparse.Namespace) -> str:
    return (
        f"# Equivalence of N processes: {Path(options.cfg).stem}, {options.img} px; "
        f"{os.cpu_count()} cores "
        f"{processor()}, {date.today()}\n\n"
        f"Global batch {options.batch}, two batches per epoch, SGD, hyp.scratch-low.yaml, "
        "gradients accumulated as in "
        f"any run; starting weights trained for {options.learn} epochs with AdamW. torch "
        f"{torch.__version__}, "
        f"Python {platform.python_version()}."
    )


def processor() -> str:
    """The processor's name, or the machine type if the name is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--cfg", default="yolov5n.yaml")
    add("--data", default="", help="data YAML (default: generated shapes, two batches)")
    add("--img", type=int, default=128, help="image side in pixels")
    add("--batch", type=int, default=16, help="images per batch, over all processes")
    add("--steps", type=int, default=20, help="optimizer steps")
    add("--learn", type=int, default=60, help="epochs that the starting weights are trained for")
    add(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 2, 4],
        help="numbers of processes to compare with one process",
    )
    add("--out", type=Path, default=ROOT / "runs" / "equivalence.md", help="file for the report")
    add(
        "--measure", type=Path, help=argparse.SUPPRESS
    )  # set by this script: the folder for a launch's results
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_flags(sys.argv[1:] if arguments is None else arguments)
    if options.measure:
        run_here(options, options.measure)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.data:
            root = generate(
                folder / "shapes", train=2 * options.batch, val=8, size=max(options.img, 64)
            )
            options.data = str(root / "shapes.yaml")
        learn(options, folder)
        for number in sorted({1, *options.processes}):
            launch(number, options, folder)
        text = report(options, folder)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(options.out, text)
    print(text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_and_exit(main)
