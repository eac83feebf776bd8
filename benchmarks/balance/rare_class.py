r"""A class made rare: AP of it and of all classes, with --repeat-factor and --class-weights.

Claim: see benchmarks/results/rare-class*.md; each file states its command.

    python benchmarks/balance/rare_class.py --data bccd/dataset.yaml --class Platelets \
        --seeds 0 1 2 --work runs/rare --out rare.md -- --img 320 --epochs 100

Images with the class are left out of the training split until `--keep` of its boxes remain, in a
list of images below --work: an object whose label is missing would be trained as background. The
other splits stay whole. Then each of four settings is trained with each seed, one training at a
time: the defaults, --repeat-factor, --class-weights auto, and both; the flags after -- are given
to all. val.py measures each best.pt on the val split.

With --repeat-factor an epoch has more samples, and a run more steps. What the steps alone are worth
shows `--settings defaults` with as many more epochs.

The report is written again after each training. What is done is stored in --work and is not
trained again, unless its command or its data differ.
"""

import argparse
import json
import os
import random
import sys
import threading
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import add_report_flags, file_report, spread, table, versions
from benchmarks.trainings.run import ROOT, Training, name_of, stop_on_signals, train
from data.labels import Labels
from data.layouts import open_data
from data.splits import read_split
from utils.command_line.class_choice import class_ids
from utils.files.writers import write_text, write_yaml
from utils.printable import counted, printable
from utils.terminal import FaultError, run_and_exit

SETTINGS = ("defaults", "repeat-factor", "class-weights", "both")
COLUMNS = ("AP of the class", "AP50 of the class", "AP", "AP50", "AP of the others")


class Figures(NamedTuple):
    """AP and AP50 of the rare class and of all classes, and AP of the others."""

    rare_ap: float
    rare_ap50: float
    ap: float
    ap50: float
    others_ap: float


def thinned(labels: Labels, class_id: int, keep: float, seed: int) -> list[int]:
    """Return the images of a training split without most of those that have a class.

    Images with the class stay, in random order, until `keep` of its boxes are reached, at least one
    image.
    """
    boxes = np.zeros(len(labels), np.int64)
    for index in range(len(labels)):
        rows = labels.rows(index)
        boxes[index] = ((labels.classes[rows] == class_id) & ~labels.crowd[rows]).sum()

    with_class = np.flatnonzero(boxes).tolist()
    random.Random(seed).shuffle(with_class)
    wanted = keep * boxes.sum()
    kept: list[int] = []
    for index in with_class:
        if not kept or boxes[kept].sum() + boxes[index] <= wanted:
            kept.append(index)
    return sorted([*np.flatnonzero(boxes == 0).tolist(), *kept])


def write_thinned(options: argparse.Namespace) -> tuple[Path, str, str]:
    """Write the data YAML of the thinned data; return its path, the class, and what it has."""
    spec = open_data(options.data, splits=("train", "val"))
    (class_id,) = class_ids([options.rare], spec.names, options.data)
    labels, _ = read_split(spec, "train", cache_dir="", progress=False)
    images = thinned(labels, class_id, options.keep, options.thin_seed)
    rest = labels.subset(images)

    name = f"{name_of(options.data)}-{class_id}-{options.keep:g}-{options.thin_seed}"
    folder = options.work / name
    folder.mkdir(parents=True, exist_ok=True)
    paths = [os.path.abspath(labels.path(index)) for index in images]
    write_text(folder / "train.txt", "".join(f"{path}\n" for path in paths))
    val = [str(path) for path in spec.sources("val")]
    names = dict(enumerate(spec.names))
    file = folder / "data.yaml"
    write_yaml(file, {"train": "train.txt", "val": val, "names": names})

    before = int((labels.classes == class_id).sum())
    after = int((rest.classes == class_id).sum())
    name = spec.names[class_id]
    what = (
        f"{name_of(options.data)}: {printable(name)} thinned from {before} to "
        f"{counted(after, 'box')}, {len(labels)} to {counted(len(rest), 'training image')}"
    )
    return file, name, what


def trainings(options: argparse.Namespace, data: Path) -> list[Training]:
    """All trainings, all settings of a seed before the next one."""
    factor = ["--repeat-factor", f"{options.threshold:g}"]
    weights = ["--class-weights", "auto"]
    flags_of = dict(zip(SETTINGS, ([], factor, weights, [*factor, *weights]), strict=True))
    script = [sys.executable, str(ROOT / "train.py"), "--data", "{data}", "--seed", "{seed}"]
    script += ["--cfg", options.cfg, "--project", "{out}", "--name", "run", "--exist-ok"]
    script += ["--noplots"]
    made = []
    for seed in options.seeds:
        for name in options.settings:
            command = (*script, *flags_of[name], *options.flags)
            made.append(Training(name, str(data), seed, command))
    return made


def measure(
    training: Training, options: argparse.Namespace, rare: str, stop: threading.Event
) -> Figures:
    """Return the figures of a training, which is run unless it is stored. stop: ends it."""
    train(training, options.work, options.threads, stop)
    metrics = options.work / training.key / "val" / "metrics.json"
    if not metrics.exists():
        raise FaultError(f"{metrics} is missing: delete {training.key}.json to train again")
    stats = json.loads(metrics.read_text())
    own = stats["per_class"][rare]
    others = [row["AP"] for name, row in stats["per_class"].items() if name != rare]
    known = [ap for ap in others if ap >= 0]
    return Figures(own["AP"], own["AP50"], stats["AP"], stats["AP50"], mean(known or [0.0]))


def report(
    options: argparse.Namespace, what: str, found: Mapping[tuple[str, int], Figures]
) -> list[str]:
    """Return the lines of the report: mean and deviation of each setting, then each training."""
    names = list(dict.fromkeys(name for name, _ in found))
    rows = []
    for name in names:
        figures = [value for (setting, _), value in found.items() if setting == name]
        cells = [spread([each[column] for each in figures]) for column in range(len(COLUMNS))]
        rows.append([name, len(figures), *cells])
    single = []
    for (name, seed), value in found.items():
        single.append([name, seed, *(f"{number:.4f}" for number in value)])

    command = f"--keep {options.keep:g} --threshold {options.threshold:g} --cfg {options.cfg} -- "
    return [
        f"# A rare class: {what}",
        "",
        f"{options.about}, {versions()}, {date.today()}. Mean ± standard deviation over the seeds.",
        "",
        f"    {command}{' '.join(options.flags)}",
        "",
        table(["setting", "seeds", *COLUMNS], rows),
        "",
        "Each training:",
        "",
        table(["setting", "seed", *COLUMNS], single),
    ]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, help="data YAML")
    add("--class", dest="rare", required=True, help="the class to thin, by name or number")
    add("--keep", type=float, default=0.05, help="share of its boxes that stay (default: 0.05)")
    add("--thin-seed", type=int, default=0, help="chooses the images that stay (default: 0)")
    add("--threshold", type=float, default=0.5, help="of --repeat-factor (default: 0.5)")
    add("--settings", nargs="+", choices=SETTINGS, default=SETTINGS, help="(default: all)")
    add("--cfg", default="yolov5n.yaml", help="model (default: yolov5n.yaml)")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all)")
    work = Path("runs", "rare_class")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add("flags", nargs="*", help="flags for train.py, after --")
    add_report_flags(parser)
    options = parser.parse_args()
    if not 0 < options.keep <= 1:
        raise ValueError(f"--keep {options.keep:g}: choose a share above 0, up to 1")
    return options


def main() -> None:
    options = read_options()
    data, rare, what = write_thinned(options)
    print(what, flush=True)

    stop = stop_on_signals()

    found: dict[tuple[str, int], Figures] = {}
    for training in trainings(options, data):
        found[training.program, training.seed] = measure(training, options, rare, stop)
        file_report(report(options, what, found), options.out)


if __name__ == "__main__":
    run_and_exit(main)
