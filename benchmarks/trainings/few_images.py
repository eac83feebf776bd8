r"""Trainings of few images and few steps: AP of the last epoch, the best, and how far it fell.

Claim: no setting loses beyond the spread of the seeds, no validation after the first third of the
epochs falls below half of the best one before, and more epochs do not end lower by it. The numbers:
benchmarks/results/few-images*.md.

    git worktree add ../before COMMIT
    python benchmarks/trainings/few_images.py --data bccd.yaml chess.yaml --images 8 24 \
        --epochs 10 30 100 --weights yolox_nano.pth --seeds 0 1 2 \
        --checkouts before=../before now=. --out few.md

Trains with the train.py of each checkout, validates each epoch on the whole val split, and reads
results.csv. The images are drawn as by benchmarks/trainings/subset.py, the same for each checkout.
What is trained is stored in --work and is not trained again; --report trains nothing.
"""

import argparse
import csv
import json
import math
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import (
    add_report_flags,
    command_line,
    file_report,
    processor,
    spread,
    table,
    versions,
)
from benchmarks.trainings.run import require_success
from benchmarks.trainings.subset import draw
from data.images import find_images
from data.layouts import open_data
from utils.files.writers import write_json, write_text
from utils.terminal import run_and_exit

MAP = "metrics/mAP_0.5:0.95"
IMAGE_SIZE = 160


class Setting(NamedTuple):
    """What is trained: the data set's name, images of it, epochs, and a checkpoint or a table."""

    data: str
    images: int
    start: str
    epochs: int


class Curve(NamedTuple):
    """mAP50-95 of each epoch of a training."""

    aps: list[float]

    @property
    def lowest_share(self) -> float:
        """The lowest AP after the first third of the epochs, as a share of the best one before it.

        >>> Curve([0.1, 0.2, 0.1, 0.3, 0.3, 0.3]).lowest_share
        0.5
        """
        first = math.ceil(len(self.aps) / 3)
        shares = [1.0]
        for epoch in range(max(first, 1), len(self.aps)):
            best_before = max(self.aps[:epoch])
            if best_before > 0:
                shares.append(self.aps[epoch] / best_before)
        return min(shares)


def subset_of(data: Path, images: int, work: Path) -> Path:
    """Write a data YAML with some of the training images, unless it is there; return its path."""
    name = name_of(data)
    file = work / "data" / f"{name}{images}.yaml"
    if file.exists():
        return file
    spec = open_data(str(data), splits=["train", "val"])
    found = [path for source in spec.sources("train") for path in find_images(source).images]
    file.parent.mkdir(parents=True, exist_ok=True)
    chosen = draw(found, min(images, len(found)), seed=0)
    listed = file.with_suffix(".txt")
    write_text(listed, "".join(f"{path}\n" for path in chosen))
    paths = {"train": [str(listed)], "val": [str(source) for source in spec.sources("val")]}
    write_text(file, yaml.safe_dump(paths | {"names": dict(enumerate(spec.names))}))
    return file


def name_of(data: Path) -> str:
    """The folder of a data set's YAML, or the YAML's own name."""
    return data.resolve().parent.name if data.stem in ("data", "dataset") else data.stem


def train(
    checkout: tuple[str, Path], data: Path, setting: Setting, seed: int, options: argparse.Namespace
) -> None:
    """Train and store the curve, unless it is stored. checkout: its name and folder."""
    name, folder = checkout
    key = f"{name}_{setting.data}{setting.images}_{Path(setting.start).name}"
    stored = options.work / f"{key}_{setting.epochs}_{seed}.json"
    if stored.exists():
        return

    run = options.work / stored.stem
    shutil.rmtree(run, ignore_errors=True)  # of a training that was interrupted
    is_checkpoint = setting.start.endswith((".pt", ".pth"))
    words = ["--weights" if is_checkpoint else "--cfg", setting.start]
    words += ["--data", str(data), "--epochs", str(setting.epochs), "--seed", str(seed)]
    words += ["--img", str(IMAGE_SIZE), "--device", "cpu", "--amp", "fp32", "--workers", "0"]
    words += ["--cache", "ram", "--cache-dir", str(options.work / "cache")]
    words += ["--noplots", "--nosave", "--project", str(run), "--name", "run"]
    log = options.work / f"{stored.stem}.log"
    with open(log, "w") as output:
        done = subprocess.run(
            [sys.executable, str(folder / "train.py"), *words],
            stdout=output,
            stderr=output,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
    require_success(stored.stem, done.returncode, log)
    with open(run / "run" / "results.csv", newline="") as file:
        aps = [float(row[MAP]) for row in csv.DictReader(file)]
    write_json(stored, {"checkout": name, **setting._asdict(), "seed": seed, "aps": aps})
    print(f"{stored.stem}: last {aps[-1]:.3f}, best {max(aps):.3f}", flush=True)
    shutil.rmtree(run)


def measure(options: argparse.Namespace) -> None:
    """Train what is not stored yet, one seed of all settings after the other."""
    for seed in options.seeds:
        for data in options.data:
            for images in options.images:
                subset = subset_of(data, images, options.work)
                for start in options.weights:
                    for epochs in options.epochs:
                        setting = Setting(name_of(data), images, start, epochs)
                        for checkout in options.checkouts.items():
                            train(checkout, subset, setting, seed, options)


def report(options: argparse.Namespace) -> list[str]:
    """Return the lines of the report, of all that is stored."""
    curves: dict[Setting, dict[str, list[Curve]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(options.work.glob("*.json")):
        stored = json.loads(file.read_text())
        start = Path(stored["start"]).name
        setting = Setting(stored["data"], stored["images"], start, stored["epochs"])
        curves[setting][stored["checkout"]].append(Curve(stored["aps"]))

    columns = ["data", "images", "start", "epochs", "seeds"]
    for name in options.checkouts:
        columns += [f"{name}: last", "best", "lowest"]
    rows = []
    for setting in sorted(curves):
        by_checkout = curves[setting]
        if set(by_checkout) != set(options.checkouts):
            continue
        seeds = [str(len(by_checkout[name])) for name in options.checkouts]
        row = [setting.data, setting.images, setting.start, setting.epochs, " / ".join(seeds)]
        for name in options.checkouts:
            row += cells(by_checkout[name])
        rows.append(row)
    return [
        "# Trainings of few images",
        "",
        f"{options.about}, {processor()}, {versions()}, {date.today()}. {IMAGE_SIZE} px, float32, "
        "no other flags.",
        "",
        command_line(),
        "",
        "AP of the last epoch and of the best one, mean and standard deviation of the seeds; "
        "lowest: the lowest AP after the first third of the epochs, as a share of the best one "
        "before it, of the worst seed.",
        "",
        table(columns, rows),
    ]


def cells(curves: Iterable[Curve]) -> list[str]:
    """Return the cells of some seeds: AP of the last epoch, of the best, and the lowest share."""
    each = list(curves)
    last = spread([curve.aps[-1] for curve in each])
    best = spread([max(curve.aps) for curve in each])
    return [last, best, f"{min(curve.lowest_share for curve in each):.2f}"]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", nargs="+", type=Path, default=[], help="data YAMLs")
    add("--images", nargs="+", type=int, default=[24], help="training images (default: 24)")
    add("--epochs", nargs="+", type=int, default=[30], help="(default: 30)")
    add("--weights", nargs="+", default=["yolov5n.yaml"], help="checkpoints, or tables to train")
    add("--seeds", nargs="+", type=int, default=[0], help="(default: 0)")
    add("--checkouts", nargs="+", default=["now=."], help="NAME=FOLDER of each to compare")
    add("--report", action="store_true", help="train nothing, report what is stored")
    work = Path("runs", "few_images")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add_report_flags(parser)
    options = parser.parse_args(arguments)
    pairs = [checkout.partition("=")[::2] for checkout in options.checkouts]
    options.checkouts = {name: Path(folder).resolve() for name, folder in pairs}
    for name, folder in options.checkouts.items():
        if not (folder / "train.py").exists():
            raise ValueError(f"--checkouts {name}: there is no train.py in {folder}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.report:
        measure(options)
    file_report(report(options), options.out)


if __name__ == "__main__":
    run_and_exit(main)
