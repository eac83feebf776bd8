"""How closely training with N processes matches one, beside deliberate faults and rounding.

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
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

import train
import training.state
from benchmarks.report import file_report, processor, table, versions
from data.shapes.generate import generate
from models import Detector
from tests.support.launching import TORCHRUN
from tests.support.processes import FAULTS
from training.averages.ema import EMA
from utils.distributed.launch import Launch
from utils.distributed.session import distributed_session
from utils.distributed.world import World
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
        parts = [str(getattr(self, field.name)) for field in fields(self)]
        return "-".join(parts).replace(" ", "_")


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
    changed = list(BROKEN)
    if processes == 1:
        changed = [replace(run, nudged=True) for run in both]
    return [*both, MULTI_SCALE, *changed]


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
    wanted = {*SHOWN_STEPS, options.steps}
    real = EMA.update

    def update(self: EMA, weights: State) -> None:
        real(self, weights)
        if self.updates in wanted:
            record[self.updates] = {"model": cloned(weights), "ema": cloned(self.state_dict())}

    cfg, _ = train.parse_args(flags(run, options, folder, world))
    with ExitStack() as changes:
        if run.fault:
            changes.enter_context(FAULTS[run.fault](world))
        if run.nudged:
            changes.enter_context(nudge())
        changes.enter_context(mock.patch.object(EMA, "update", update))
        train.main(cfg, world)
    return record


def cloned(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}


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
    """A run's command line: one epoch of two batches for each step, which accumulates gradients."""
    words = common_flags(options, folder)
    words += ["--project", str(folder / str(world.size)), "--name", run.name]
    words += ["--epochs", str(options.steps), "--amp", run.precision]
    words += ["--optimizer", "SGD", "--hyp", "hyp.scratch-low.yaml"]

    if run.learned:
        words += ["--weights", str(folder / "learned" / "weights" / "last.pt")]
    else:
        words += ["--cfg", options.cfg]
    if run.sync_bn:
        words.append("--sync-bn")
    if run.multi_scale:
        words.append("--multi-scale")
    return words


def learn(options: argparse.Namespace, folder: Path) -> None:
    """Train the weights that the runs start from."""
    words = common_flags(options, folder)
    words += ["--project", str(folder), "--name", "learned", "--cfg", options.cfg]
    words += ["--epochs", str(options.learn), "--amp", "fp32"]
    cfg, _ = train.parse_args(words)
    train.main(cfg, World(torch.device("cpu")))


def common_flags(options: argparse.Namespace, folder: Path) -> list[str]:
    """The flags of every run."""
    words = ["--data", options.data, "--cache-dir", str(folder / "cache"), "--workers", "0"]
    words += ["--img", str(options.img), "--batch", str(options.batch)]
    return [*words, "--noval", "--nosave", "--noplots"]


# ---------------------------------------------------------------------- launches and the report


def launch(processes: int, options: argparse.Namespace, folder: Path) -> None:
    """Do the runs in so many processes. Raises SystemExit if one fails; it has printed why."""
    launcher = [*TORCHRUN, "--standalone", "--nproc_per_node", str(processes)]
    names = ("cfg", "data", "img", "batch", "steps")
    given = [f"--{name}={getattr(options, name)}" for name in names]
    command = [*launcher, __file__, *given, "--measure", str(folder)]

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, check=False, stdout=sys.stderr, env=environment)
    if finished.returncode:
        raise SystemExit(finished.returncode)


def difference(first: State, second: State) -> float:
    """The largest |first - second| / |first| over the tensors; 0 for a tensor that is 0 in both.

    Raises ValueError if a value is not finite.
    """
    found = [0.0]
    for name, value in first.items():
        gap = (value.double() - second[name].double()).norm()
        if gap:  # a tensor that is 0 in both has no relative difference
            found.append((gap / value.double().norm()).item())
    if not all(map(math.isfinite, found)):
        raise ValueError("the weights of a run became nan or infinite: nothing can be compared")
    return max(found)


def differences(first: dict[str, State], second: dict[str, State]) -> list[str]:
    """The differences of weights, their average, and BatchNorm's running statistics, as text."""
    weights = {name: value for name, value in first["model"].items() if "running" not in name}
    statistics = {name: value for name, value in first["model"].items() if "running" in name}
    found = [
        difference(weights, second["model"]),
        difference(first["ema"], second["ema"]),
        difference(statistics, second["model"]),
    ]
    return [f"{value:.1e}" for value in found]


def report(options: argparse.Namespace, folder: Path) -> str:
    def record_of(processes: int, run: Run) -> Record:
        return torch.load(folder / f"{processes}-{run.name}.pt", weights_only=True)

    def ends(processes: int, run: Run, against: Run) -> list[str]:
        expected = record_of(1, against)[options.steps]
        return differences(expected, record_of(processes, run)[options.steps])

    many = [number for number in sorted(set(options.processes)) if number > 1]
    compared = ["weights", "average", "statistics"]
    columns = ["processes", "precision", "compared with one process in", *compared]

    proof: list[list[object]] = []
    for precision, run in PROOF.items():
        proof += [[number, precision, precision, *ends(number, run, run)] for number in many]
    for precision, run in PROOF.items():
        nudged = replace(run, nudged=True)
        proof.append([NUDGED, precision, precision, *ends(1, nudged, run)])
    for number in (1, *many):
        proof.append([number, "fp32", "fp64", *ends(number, PROOF["fp32"], PROOF["fp64"])])
    parts = [head(options), f"After {options.steps} optimizer steps:\n\n" + table(columns, proof)]

    if 2 in many:
        broken = [["none, with --multi-scale", *ends(2, MULTI_SCALE, MULTI_SCALE)]]
        for run, right in BROKEN.items():
            broken.append([run.fault or "plain BatchNorm", *ends(2, run, right)])
        faults = table(["fault", *compared], broken)
        parts.append(f"Two processes with a fault, float64:\n\n{faults}")
        parts.append(chaos(options, record_of))
    return "\n\n".join(parts)


def chaos(options: argparse.Namespace, record_of: Callable[[int, Run], Record]) -> str:
    """How the differences grow from random weights, as a table."""
    shown = [step for step in SHOWN_STEPS if step < options.steps]
    steps = [*shown, options.steps]

    rows = []
    for precision, run in RANDOM.items():
        one = record_of(1, run)
        others = {"2": record_of(2, run), NUDGED: record_of(1, replace(run, nudged=True))}
        for name, other in others.items():
            gaps = [difference(one[step]["model"], other[step]["model"]) for step in steps]
            rows.append([name, precision, *(f"{gap:.1e}" for gap in gaps)])

    what = "From random weights, all tensors compared with one process, by number of steps:"
    columns = ["processes", "precision", *map(str, steps)]
    return f"{what}\n\n{table(columns, rows)}"


def head(options: argparse.Namespace) -> str:
    model = f"{Path(options.cfg).stem}, {options.img} px"
    machine = f"{os.cpu_count()} cores {processor()}"
    return (
        f"# Equivalence of N processes: {model}; {machine}, {date.today()}\n\n"
        f"Global batch {options.batch}, two batches per epoch, SGD, hyp.scratch-low.yaml, "
        "gradients accumulated as in any run; starting weights trained for "
        f"{options.learn} epochs with AdamW. {versions()}."
    )


def read_flags(arguments: Sequence[str]) -> argparse.Namespace:
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add("--cfg", default="yolov5n.yaml")
    add("--data", default="", help="data YAML (default: generated shapes, two batches)")
    add("--img", type=int, default=128, help="image side in pixels")
    add("--batch", type=int, default=16, help="images per batch, over all processes")
    add("--steps", type=int, default=20, help="optimizer steps")
    add("--learn", type=int, default=60, help="epochs that the starting weights are trained for")
    about_processes = "numbers of processes to compare with one process"
    add("--processes", type=int, nargs="+", default=[1, 2, 4], help=about_processes)
    add("--out", type=Path, default=ROOT / "runs" / "equivalence.md", help="file for the report")
    # Set by this script: the folder for a launch's results.
    add("--measure", type=Path, help=argparse.SUPPRESS)
    return parser.read(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_flags(sys.argv[1:] if arguments is None else arguments)
    if options.measure:
        run_here(options, options.measure)
        return

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.data:
            size = max(options.img, 64)
            root = generate(folder / "shapes", train=2 * options.batch, val=8, size=size)
            options.data = str(root / "shapes.yaml")

        learn(options, folder)
        for number in sorted({1, *options.processes}):
            launch(number, options, folder)
        text = report(options, folder)
    file_report([text], options.out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_and_exit(main)
