r"""Accuracy of whole trainings: data x models x recipes x seeds, beside other projects, as a table
and as curves.

Claim: see benchmarks/results/accuracy*.md; each file states its commands.

    python benchmarks/accuracy.py --data bccd.yaml chess_pieces.yaml --models yolov5n.yaml \
        --seeds 0 1 2 --out runs/a \
        --recipe auto= --recipe "published=--optimizer SGD --hyp hyp.scratch-low.yaml" \
        --peer "YOLO11n=PEER/bin/yolo detect train model=yolo11n.yaml data={data} imgsz=320 \
                epochs=100 batch=16 device=cpu seed={seed} pretrained=False project={out} \
                name=run" \
        -- --img 320 --epochs 100 --batch 16

Every combination is one training; the flags after -- are given to all of ours. In a peer's command
{data}, {seed} and {out} are replaced by the data YAML, the seed and an empty folder. The rows of
the results.csv that a program writes are noted with the time since its start. At the end val.py
measures its best.pt on the val split, for all programs with the same evaluator; where it fails, the
program's own figures stay, marked *. What is done is stored in --out, and is not trained again,
unless its command or its data's path differs. A program that ends with an error is not stored; for
one that only fails after it has written best.pt, give "NAME=sh -c 'COMMAND; true'".
benchmarks/trainings/subset.py makes small data sets.

Seconds to 80, 90 and 95 % of a run's own highest mAP show how early a recipe is good, including its
start-up. "at equal time" is the highest mAP, by the program's own evaluator, that a run has reached
when the fastest program on the same data ends, with the last of its seeds.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import file_report
from benchmarks.trainings.run import ROOT, Outcome, Training, filled, train
from benchmarks.trainings.tables import plot, report
from data.splits import find_data, find_hyp, open_data
from train import parse_args
from training.settings.recipe import AUTO
from training.start import check_model
from utils.printable import printable
from utils.terminal import run_and_exit


def plan(options: argparse.Namespace) -> list[Training]:
    """Return all trainings: data x (models x recipes, then peers) x seeds.

    Raises ValueError, before anything is trained, if there is nothing to train, no such data, model
    or program, a flag that train.py does not know, or two of the same.
    """
    peers = [(name, words(name, command)) for name, command in options.peer]
    for name, command in peers:
        if not command or shutil.which(command[0]) is None:
            raise ValueError(
                f"{name}: there is no program '{printable(command[0] if command else '')}'"
            )
        if not any("{out}" in word for word in command):
            raise ValueError(f"{name}: there is no {{out}} in its command")
    own = []
    for model in options.models:
        for name, flags in options.recipe:
            planned = [
                "--data",
                "{data}",
                "--seed",
                "{seed}",
                "--cfg",
                model,
                "--project",
                "{out}",
                "--name",
                "run",
            ]
            ours = [
                sys.executable,
                str(ROOT / "train.py"),
                *planned,
                "--exist-ok",
                "--noplots",
                *words(name, flags),
            ]
            own.append((f"{Path(model).stem} {name}", [*ours, *options.flags]))
    programs = dict([*own, *peers])
    if not programs or not options.seeds:
        raise ValueError("nothing to train: give --models or --peer, and --seeds")
    files = [str(find_data(data).resolve()) for data in options.data]
    names = [name for name, _ in [*own, *peers]]
    for what, values in (("program", names), ("seed", options.seeds), ("data set", files)):
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ValueError(f"the {what} {printable(str(twice[0]))} is given twice")
    for data in options.data:
        open_data(data, splits=() if "--download" in options.flags else ("train", "val"))
    trainings = [
        Training(program, data, seed, tuple(command))
        for data in files
        for program, command in programs.items()
        for seed in options.seeds
    ]
    ours = dict(own)
    for training in trainings:
        if training.program in ours:
            check_flags(training)
    return trainings


def words(name: str, command: str) -> list[str]:
    """Return the words of a command or of flags. Raises ValueError with the program's name for an
    open quote.
    """
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_flags(training: Training) -> None:
    """Raise ValueError if train.py would refuse the flags, the model, the weights or the
    hyper-parameter file.

    And if a flag changes what the benchmark has planned.
    """
    arguments = [filled(word, training, Path("out")) for word in training.command[2:]]
    cfg, _ = parse_args(arguments)
    planned, _ = parse_args(arguments[: arguments.index("--exist-ok")])
    for name in ("data", "seed", "cfg", "project", "name", "resume"):
        if getattr(cfg, name) != getattr(planned, name):
            raise ValueError(f"{training.program}: the benchmark itself gives --{name}")
    check_model(cfg.cfg, cfg.weights, download=cfg.download)
    if cfg.hyp != AUTO:
        find_hyp(cfg.hyp)


def named(text: str) -> tuple[str, str]:
    """Split "name=value" at the first equals sign. The name is a cell of a table and part of file
    names.
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: give name=value")
    if not re.fullmatch(r"[\w.+-]{1,60}", name):
        raise argparse.ArgumentTypeError(
            f"{name!r}: a name has 1 to 60 letters, digits, '.', '_', '+' or '-'"
        )
    return name, value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", nargs="+", required=True, help="data YAMLs")
    add(
        "--models",
        nargs="*",
        default=["yolov5n.yaml"],
        help="for --cfg (default: yolov5n.yaml); empty: peers only",
    )
    add(
        "--recipe",
        type=named,
        action="append",
        default=[],
        help="name=flags of train.py; repeat for more (auto=)",
    )
    add("--peer", type=named, action="append", default=[], help="name=command; repeat for more")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add(
        "--jobs",
        type=int,
        default=1,
        help="trainings at the same time (default: 1); they slow each other down",
    )
    add(
        "--threads",
        type=int,
        default=os.cpu_count() or 1,
        help="CPU threads of each training (default: all)",
    )
    add("--title", default="Accuracy", help="of the report")
    add(
        "--out", type=Path, default=Path("runs", "accuracy"), help="folder (default: runs/accuracy)"
    )
    add("flags", nargs="*", help="flags for train.py, after --")
    options = parser.parse_args()
    for name in ("jobs", "threads"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} {getattr(options, name)}: choose 1 or more")
    options.recipe = options.recipe or [(AUTO, "")]
    trainings = plan(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"--out {printable(options.out)} is a file") from None
    for number in (signal.SIGTERM, signal.SIGHUP):  # the trainings have sessions of their own
        signal.signal(number, signal.default_int_handler)
    stop, failed = threading.Event(), threading.Event()

    def train_unless_failed(training: Training) -> Outcome:
        if failed.is_set():
            raise CancelledError
        try:
            return train(training, options.out, options.threads, stop)
        except BaseException:
            # here: this thread takes the next training before another one can cancel that
            failed.set()
            raise

    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(train_unless_failed, each) for each in trainings]
        try:
            errors = [
                future.exception() for future in wait(futures, return_when=FIRST_EXCEPTION).done
            ]
            for error in errors:
                if error and not isinstance(error, CancelledError):
                    rest = (
                        "what is running is trained to its end and stored; nothing else is started"
                    )
                    print(f"{error}; {rest}", file=sys.stderr, flush=True)
            wait(
                [each for each in futures if not each.cancel()]
            )  # Ctrl-C ends it, but would break pool.shutdown()
        except KeyboardInterrupt:
            stop.set()
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGHUP,
            ):  # until the trainings have ended
                signal.signal(number, signal.SIG_IGN)
            wait([each for each in futures if not each.cancel()])
            raise
    outcomes = [future.result() for future in futures]
    plot(trainings, outcomes, options.out / "accuracy.png")
    file_report(report(trainings, outcomes, options.title), options.out / "report.md")


if __name__ == "__main__":
    run_and_exit(main)
