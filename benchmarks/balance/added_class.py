r"""A class added to a trained model with --add-classes, against a training on all labels.

Claim: see benchmarks/results/added-class*.md; each file states its command.

    python benchmarks/balance/added_class.py --data bccd/dataset.yaml --class Platelets \
        --seeds 0 1 2 --work runs/added --out added.md -- --img 320 --epochs 60

Each seed trains a model of all other classes, whose labels alone it sees ("old"). The class is then
added to its best.pt, from the labels of that class alone, once for each value of --ignore-old. For
comparison, a model is trained on all labels from the start ("all labels"). The flags after -- are
given to all trainings, one of which runs at a time. val.py measures each best.pt on the val split
with the labels of all classes that the model has.

The report is written again after each training. What is done is stored in --work and is not trained
again, unless its command or its data differ.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import mean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import add_report_flags, file_report, spread, table, versions
from benchmarks.trainings.run import ROOT, Training, name_of, stop_on_signals, train
from data.layouts import open_data
from utils.command_line.class_choice import class_ids
from utils.printable import printable
from utils.terminal import FaultError, run_and_exit

COLUMNS = ("AP of the old classes", "AP50", "AP of the new class", "AP50", "AP of all", "minutes")
NONE = float("nan")


class Figures(NamedTuple):
    """AP and AP50 of the old classes and of the new one, AP of all, and minutes of training."""

    old_ap: float
    old_ap50: float
    new_ap: float
    new_ap50: float
    ap: float
    minutes: float


def trainings(
    options: argparse.Namespace, names: Sequence[str], new: str, seed: int
) -> list[Training]:
    """The trainings of one seed. names: of all classes. new: the class that is added."""
    others = [name for name in names if name != new]
    first = training_of("old", ("--cfg", options.cfg, "--classes", *others), options, seed)
    old = options.work / first.key / "run" / "weights" / "best.pt"
    made = [first]
    added = ("--add-classes", "--weights", str(old), "--classes", new)
    for score in options.ignore:
        name = f"added --ignore-old {score:g}"
        made.append(training_of(name, (*added, "--ignore-old", f"{score:g}"), options, seed))
    if not options.no_all_labels:
        made.append(training_of("all labels", ("--cfg", options.cfg), options, seed))
    return made


def training_of(
    name: str, flags: Sequence[str], options: argparse.Namespace, seed: int
) -> Training:
    """A training by its name in the report and its own flags."""
    script = [sys.executable, str(ROOT / "train.py"), "--data", "{data}", "--seed", "{seed}"]
    script += ["--project", "{out}", "--name", "run", "--exist-ok", "--noplots"]
    return Training(name, options.data, seed, (*script, *flags, *options.flags))


def measure(
    training: Training, options: argparse.Namespace, new: str, stop: threading.Event
) -> Figures:
    """Return the figures of a training, which is run unless it is stored. stop: ends it."""
    outcome = train(training, options.work, options.threads, stop)
    metrics = options.work / training.key / "val" / "metrics.json"
    if not metrics.exists():
        raise FaultError(f"{metrics} is missing: delete {training.key}.json to train again")
    stats = json.loads(metrics.read_text())
    of_class = stats["per_class"]
    others = [row for name, row in of_class.items() if name != new]
    own = of_class.get(new, {"AP": NONE, "AP50": NONE})
    return Figures(
        old_ap=mean_known(row["AP"] for row in others),
        old_ap50=mean_known(row["AP50"] for row in others),
        new_ap=mean_known([own["AP"]]),
        new_ap50=mean_known([own["AP50"]]),
        ap=stats["AP"],
        minutes=outcome.seconds / 60,
    )


def mean_known(values: Iterable[float]) -> float:
    """Return the mean of the AP of classes; NONE if none is known.

    That of a class without boxes in the val split is -1, which does not count.
    """
    known = [value for value in values if value >= 0]
    return mean(known) if known else NONE


def report(
    options: argparse.Namespace, new: str, found: Mapping[tuple[str, int], Figures]
) -> list[str]:
    """Return the lines of the report: mean and deviation of each training, then each seed."""
    rows = []
    for name in dict.fromkeys(name for name, _ in found):
        figures = [value for (setting, _), value in found.items() if setting == name]
        *metrics, minutes = zip(*figures, strict=True)
        shown = [_shown(spread(values)) for values in metrics]
        rows.append([name, len(figures), *shown, spread(minutes, digits=1)])
    single = []
    for (name, seed), value in found.items():
        *of_seed, taken = value
        shown = [_shown(f"{metric:.4f}") for metric in of_seed]
        single.append([name, seed, *shown, f"{taken:.1f}"])

    data = name_of(options.data)
    return [
        f"# {data}: {printable(new)} is added to a model of the other classes",
        "",
        f"{options.about}, {versions()}, {date.today()}. Mean ± standard deviation over the seeds.",
        "",
        f"    --cfg {options.cfg} -- {' '.join(options.flags)}",
        "",
        table(["training", "seeds", *COLUMNS], rows),
        "",
        "Each training:",
        "",
        table(["training", "seed", *COLUMNS], single),
    ]


def _shown(number: str) -> str:
    """Return the text of a number; "-" for what a model does not have."""
    return "-" if number.startswith("nan") else number


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, help="data YAML with labels of all classes")
    add("--class", dest="new", required=True, help="the class to add, by name or number")
    add("--cfg", default="yolov5n.yaml", help="model (default: yolov5n.yaml)")
    add(
        "--ignore", type=float, nargs="+", default=[1, 0.5], help="of --ignore-old (default: 1 0.5)"
    )
    add("--no-all-labels", action="store_true", help="without the training on all labels")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all)")
    work = Path("runs", "added_class")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add("flags", nargs="*", help="flags for train.py, after --")
    add_report_flags(parser)
    options = parser.parse_args()
    options.data = os.path.abspath(options.data)
    options.work = options.work.absolute()
    return options


def main() -> None:
    options = read_options()
    spec = open_data(options.data, splits=("train", "val"))
    (number,) = class_ids([options.new], spec.names, options.data)
    new = spec.names[number]
    options.work.mkdir(parents=True, exist_ok=True)

    stop = stop_on_signals()

    found: dict[tuple[str, int], Figures] = {}
    for seed in options.seeds:
        for training in trainings(options, spec.names, new, seed):
            found[training.program, seed] = measure(training, options, new, stop)
            file_report(report(options, new, found), options.out)


if __name__ == "__main__":
    run_and_exit(main)
