r"""Which start to take: starts trained on your data for equal wall time, mAP against time.

Claim: see benchmarks/results/starts*.md; each file states its command.

    python benchmarks/starts.py --data mydata.yaml --minutes 10 --img 320
    python benchmarks/starts.py --data bccd.yaml chess_pieces.yaml --minutes 10 --seeds 0 1 2 \
        --weights-dir weights --out starts.md

A start is a model table, or weights, or both: --start NAME=CFG, NAME=CFG:WEIGHTS or NAME=:WEIGHTS,
which may be repeated. Without --start, yolov5n, yolo11n, yolox_nano, yolox_tiny and rtmdet_tiny are
trained from random weights, and with --weights-dir there is a start from each file of
models/pretrained.yaml that lies in that folder. Nothing is downloaded: --download fetches missing
files whose digest is stated, and the --data that have a `download`. The flags after -- are given to
all trainings.

The learning rate of a run falls to its end, so the end is chosen beforehand: a trial of three
epochs of each start gives its seconds per epoch, the first one excluded, and what a run takes
besides (start, filling caches, the last validation). From both follows how many epochs take the
time. A run has no early stopping, and the recipe that train.py chooses for its epochs. "minutes" is
the measured wall time of a run: if it is off, the machine was not as fast as in the trial.

The columns in percent are the highest mAP50-95 so far, when that share of the time has passed. A
run of half the time would be better than half of this run: its learning rate falls sooner. AP and
AP50 are those of best.pt on the val split, by val.py.

The report is written again after each training, and beside it a picture of mAP against time. What
is done is stored in --work and is not trained again, unless its command or its data differ. If a
training fails, the others go on; the same command trains it again.
"""

import argparse
import math
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.accuracy import check_unique, named
from benchmarks.report import (
    add_report_flags,
    command_line,
    file_report,
    spread,
    table,
    versions,
)
from benchmarks.trainings.pace import TRIAL_EPOCHS, Pace, try_out
from benchmarks.trainings.run import ROOT, Outcome, Training, name_of, stop_on_signals, train
from benchmarks.trainings.tables import display_names, plot
from data import open_dataset
from data.dataset_yaml import find_data
from data.layouts import open_data
from models.tables.find import model_names
from models.weights.pretrained import fetch_weights, published
from train import parse_args
from training.settings.config import flag
from training.settings.recipe import AUTO, choose_recipe
from training.start import check_model
from utils.distributed.world import World
from utils.files.folders import require_writable
from utils.log import say_nothing
from utils.printable import counted, printable
from utils.terminal import FaultError, run_and_exit

FROM_SCRATCH = ("yolov5n", "yolo11n", "yolox_nano", "yolox_tiny", "rtmdet_tiny")
SHARES = (0.1, 0.25, 0.5, 0.75)  # of the time
MANY_EPOCHS = 1000  # for which train.py chooses its largest batches
PLANNED = (
    *("data", "seed", "cfg", "weights", "epochs", "imgsz", "patience", "project", "resume"),
    *("evolve", "resume_evolve", "noval", "val_period"),
)


class Start(NamedTuple):
    """What a training starts from; cfg or weights may be "", not both."""

    name: str
    cfg: str
    weights: str


class Planned(NamedTuple):
    """A training whose epochs were chosen by a trial."""

    training: Training
    epochs: int
    pace: Pace


def read_start(text: str) -> Start:
    """Return a start that is given as NAME=CFG[:WEIGHTS].

    >>> read_start("nano=yolox_nano.yaml")
    Start(name='nano', cfg='yolox_nano.yaml', weights='')
    >>> read_start("coco=:yolox_nano.pth")
    Start(name='coco', cfg='', weights='yolox_nano.pth')
    """
    name, value = named(text)
    cfg, _, weights = value.partition(":")
    if not cfg and not weights:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give NAME=CFG, NAME=CFG:WEIGHTS, NAME=:WEIGHTS"
        )
    return Start(name, cfg, weights)


def chosen_starts(options: argparse.Namespace) -> list[Start]:
    """Return the starts that are given, or else those from scratch and in --weights-dir."""
    if options.start:
        return list(options.start)
    starts = [Start(name, f"{name}.yaml", "") for name in FROM_SCRATCH]
    if options.weights_dir:
        starts += published_starts(options.weights_dir, download=options.download)
    return starts


def published_starts(folder: Path, *, download: bool) -> list[Start]:
    """Return a start for each published file that lies in a folder; report those that are missing.

    download: fetch the missing ones whose digest is stated.
    """
    starts = []
    missing = []
    for file, source in published().items():
        path = folder / file
        if download and source.digits:
            folder.mkdir(parents=True, exist_ok=True)
            fetch_weights(str(path))
        if path.exists():
            starts.append(Start(f"{model_of(file)}-weights", "", str(path)))
        else:
            missing.append(file)
    if missing:
        print(f"not in {printable(folder)}, so left out: {', '.join(missing)}", flush=True)
    return starts


def model_of(file: str) -> str:
    """Return a short name of the model in a published file.

    >>> model_of("rtmdet_tiny_8xb32-300e_coco_20220902_112414-78e30dcc.pth"), model_of("v9-t.pt")
    ('rtmdet_tiny', 'v9-t')
    """
    stem = Path(file).stem
    models = [name for name in model_names() if stem == name or stem.startswith(f"{name}_")]
    return max(models, key=len, default=stem)


def command_of(start: Start, options: argparse.Namespace, epochs: int) -> list[str]:
    """Return the command of train.py with placeholders, for a number of epochs."""
    command = [sys.executable, str(ROOT / "train.py"), "--data", "{data}", "--seed", "{seed}"]
    command += ["--cfg", start.cfg, "--weights", start.weights]
    command += ["--epochs", str(epochs), "--img", str(options.img), "--patience", "0"]
    command += ["--project", "{out}", "--name", "run", "--exist-ok", "--noplots"]
    return [*command, *options.flags]


def check_starts(starts: Sequence[Start], options: argparse.Namespace) -> None:
    """Raise ValueError if a start or a flag cannot be used, before anything is trained."""
    if not starts or not options.seeds:
        raise ValueError("nothing to train: give --start or --weights-dir, and --seeds")
    check_unique("start", [start.name for start in starts])
    check_unique("seed", options.seeds)
    check_unique("data set", options.data)
    for start in starts:
        for seed in options.seeds:
            check_command(start, seed, options)
        check_model(start.cfg, start.weights, download=False)


def check_command(start: Start, seed: int, options: argparse.Namespace) -> None:
    """Raise ValueError if train.py refuses a command, or the flags after -- change its plan."""
    words = command_of(start, options, 1)[2:]
    words[words.index("{seed}")] = str(seed)
    own_words = words[: len(words) - len(options.flags)]
    given, _ = parse_args(words)
    planned, _ = parse_args(own_words)
    for name in PLANNED:
        if getattr(given, name) != getattr(planned, name):
            raise ValueError(f"{flag(name)} after --: the benchmark itself plans its trainings")


def count_images(data: str, flags: Sequence[str]) -> int:
    """Return the number of images, or tiles, that an epoch of train.py draws with these flags."""
    cfg, _ = parse_args(flags)
    dataset = open_dataset(
        (data,),
        ("train", "val"),
        World(torch.device("cpu")),
        say_nothing,
        download=False,
        single_class=cfg.single_cls,
        cache_dir=cfg.cache_dir,
        tile=cfg.tile,
        tile_overlap=cfg.tile_overlap,
    )
    dataset.choose_classes(cfg.classes)
    dataset.read("train", say_nothing, leave_out_emptied=True)
    dataset.balance(cfg.repeat_factor, say_nothing)
    return dataset.draws.least_per_pass


def batch_size(flags: Sequence[str], images: int, epochs: int) -> int:
    """Return the batch size that train.py takes for so many epochs.

    The recipe takes smaller batches in very short runs, so a trial of a few epochs must be told.

    >>> batch_size([], images=50, epochs=100), batch_size([], images=200, epochs=100)
    (8, 16)
    >>> batch_size(["--batch", "4"], images=50, epochs=100)
    4
    """
    cfg, _ = parse_args(flags)
    if "batch_size" in cfg.given or cfg.hyp != AUTO:
        return cfg.batch_size
    recipe = choose_recipe(
        cfg.optimizer, images=images, epochs=epochs, classes=1, trained=None, sharded=cfg.shard
    )
    return recipe.batch_size or cfg.batch_size


def plan(
    start: Start, data: str, images: int, options: argparse.Namespace, stop: threading.Event
) -> tuple[int, Pace]:
    """Return the epochs of a start on a data set, and the pace that they were chosen by.

    images: that an epoch draws. stop: ends a trial.
    """
    wanted = options.minutes * 60
    size = batch_size(options.flags, images, MANY_EPOCHS)
    while True:
        command = [*command_of(start, options, TRIAL_EPOCHS), "--batch-size", str(size)]
        trial = Training(f"trial-{start.name}-{size}", data, options.seeds[0], tuple(command))
        pace = try_out(trial, options.work, options.threads, stop)
        epochs = pace.epochs_in(wanted)

        # Again with the batches of so many epochs; smaller batches make no more epochs.
        smaller = batch_size(options.flags, images, epochs)
        if smaller >= size or size < 1:
            break
        size = smaller

    expected = pace.seconds(epochs) / 60
    print(
        f"{start.name} on {name_of(data)}: {pace.fixed:.0f} s + {pace.epoch:.1f} s an epoch: "
        f"{counted(epochs, 'epoch')} in {expected:.1f} minutes",
        flush=True,
    )
    return epochs, pace


def plan_all(
    starts: Sequence[Start], options: argparse.Namespace, stop: threading.Event
) -> list[Planned]:
    """Try out each start on each data set; return all trainings, those of a seed together."""
    files = [str(find_data(data).resolve()) for data in options.data]
    paces = {}
    for data in files:
        images = count_images(data, options.flags)
        for start in starts:
            paces[data, start] = plan(start, data, images, options, stop)

    made = []
    for seed in options.seeds:
        for (data, start), (epochs, pace) in paces.items():
            command = tuple(command_of(start, options, epochs))
            made.append(Planned(Training(start.name, data, seed, command), epochs, pace))
    return made


def report(options: argparse.Namespace, found: Mapping[Planned, Outcome]) -> list[str]:
    """Return the lines of the report: a table and a conclusion for each data set."""
    data_sets = list(dict.fromkeys(each.training.data for each in found))
    names = display_names(data_sets)
    minutes = "1 minute" if options.minutes == 1 else f"{options.minutes:g} minutes"
    machine = f"{options.about}, {counted(options.threads, 'thread')}, {versions()}"
    lines = [
        f"# Starts, {minutes} each",
        "",
        f"{machine}, {date.today()}. mAP50-95 on the val split, mean ± standard deviation over the "
        "seeds.",
        "",
        command_line(),
    ]
    for data in data_sets:
        groups: dict[str, list[tuple[Planned, Outcome]]] = {}
        for planned, outcome in found.items():
            if planned.training.data == data:
                groups.setdefault(planned.training.program, []).append((planned, outcome))
        lines += ["", f"## {printable(names[data])}", "", table_of(groups, options.minutes * 60)]
        values = {name: [one.ap for _, one in group] for name, group in groups.items()}
        lines += ["", f"Best start at {minutes}: {conclusion(values)}"]
    return lines


def table_of(groups: Mapping[str, Sequence[tuple[Planned, Outcome]]], seconds: float) -> str:
    """Return the table of a data set, the best start first. seconds: of each training."""
    columns = ["start", "seeds", "epochs", "minutes"]
    columns += [f"{share:.0%}" for share in SHARES]
    columns += ["AP", "AP50"]
    rows = []
    for name, group in sorted(groups.items(), key=lambda item: -mean_ap(item[1])):
        outcomes = [outcome for _, outcome in group]
        epochs = sorted({planned.epochs for planned, _ in group})
        cells = [name, str(len(group)), ", ".join(map(str, epochs))]
        cells.append(f"{mean(one.wall for one in outcomes) / 60:.1f}")
        for share in SHARES:
            cells.append(f"{mean(one.reached(share * seconds) for one in outcomes):.3f}")
        cells.append(spread([one.ap for one in outcomes]))
        cells.append(spread([one.ap50 for one in outcomes]))
        rows.append(cells)
    return table(columns, rows)


def mean_ap(group: Sequence[tuple[Planned, Outcome]]) -> float:
    return mean(outcome.ap for _, outcome in group)


def conclusion(values: Mapping[str, Sequence[float]]) -> str:
    """Return which start is the best, and which are not clearly worse.

    values: AP of each seed. A start is clearly worse if the means are further apart than the larger
    of their standard deviations.

    >>> conclusion({"a": [0.50, 0.52], "b": [0.60, 0.64], "c": [0.59, 0.61]})
    'b, AP 0.620 ± 0.028 (2 seeds); not clearly worse: c'
    >>> conclusion({"a": [0.5], "b": [0.4]})
    'a, AP 0.500 (1 seed, which does not show what chance does)'
    """
    best = max(values, key=lambda name: mean(values[name]))
    seeds = counted(len(values[best]), "seed")
    text = f"{best}, AP {spread(values[best])} ({seeds}"
    if len(values[best]) < 2:
        return f"{text}, which does not show what chance does)"

    level = []
    for name, found in values.items():
        apart = mean(values[best]) - mean(found)
        if name != best and apart <= max(deviation(values[best]), deviation(found)):
            level.append(name)
    others = f"; not clearly worse: {', '.join(level)}" if level else ""
    return f"{text}){others}"


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 of one value."""
    return stdev(values) if len(values) > 1 else 0.0


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", nargs="+", required=True, help="data YAMLs")
    add("--minutes", type=float, required=True, help="wall time of each training")
    add("--img", type=int, default=320, help="image size in pixels (default: 320)")
    add("--seeds", type=int, nargs="+", default=[0], help="(default: 0)")
    add("--start", type=read_start, action="append", help="NAME=CFG[:WEIGHTS]; repeat for more")
    add("--weights-dir", type=Path, help="folder with published weights, each of which is a start")
    add("--download", action="store_true", help="fetch missing weights and data")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all)")
    work = Path("runs", "starts")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add("flags", nargs="*", help="flags for train.py, after --")
    add_report_flags(parser)
    options = parser.parse_args(arguments)
    if not 0 < options.minutes < math.inf:
        raise ValueError(f"--minutes {options.minutes:g}: choose a number above 0")
    if options.threads < 1:
        raise ValueError(f"--threads {options.threads}: choose 1 or more")
    if options.weights_dir and not options.weights_dir.is_dir() and not options.download:
        raise ValueError(f"--weights-dir {printable(options.weights_dir)}: there is no such folder")
    if options.start and options.weights_dir:
        raise ValueError("--weights-dir adds to the default starts: give it without --start")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    starts = chosen_starts(options)
    check_starts(starts, options)
    for data in options.data:
        open_data(data, download=options.download, splits=("train", "val"))
    out = options.out or options.work / "starts.md"
    require_writable(options.work, "--work")
    require_writable(out.parent, "--out")
    options.work.mkdir(parents=True, exist_ok=True)

    stop = stop_on_signals()
    planned = plan_all(starts, options, stop)
    print(f"{len(planned)} trainings of {options.minutes:g} minutes", flush=True)
    found: dict[Planned, Outcome] = {}
    failures: list[FaultError] = []
    for each in planned:
        try:
            found[each] = train(each.training, options.work, options.threads, stop)
        except FaultError as error:
            if stop.is_set():
                raise
            print(error, flush=True)
            failures.append(error)
            continue
        file_report(report(options, found), out)
        plot([one.training for one in found], list(found.values()), out.with_suffix(".png"))
    if failures:
        failed = counted(len(failures), "training")
        raise FaultError(f"{failed} failed, the first one: {failures[0]}")


if __name__ == "__main__":
    run_and_exit(main)
