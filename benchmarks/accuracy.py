r"""Accuracy of whole trainings: data x models x recipes x seeds, beside other projects.

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
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.report import file_report
from benchmarks.trainings.run import ROOT, Outcome, Training, filled, train
from benchmarks.trainings.tables import plot, report
from data.dataset_yaml import find_data, find_hyp
from data.layouts import open_data
from train import parse_args
from training.settings.recipe import AUTO
from training.start import check_model
from utils.printable import printable
from utils.terminal import run_and_exit

WHAT_IS_RUNNING = "what is running is trained to its end and stored; nothing else is started"


def plan(options: argparse.Namespace) -> list[Training]:
    """All trainings: data x (models x recipes, then peers) x seeds.

    Raises ValueError, before anything is trained, if there is nothing to train, no such data, model
    or program, a flag that train.py does not know, or two of the same.
    """
    peers = [(name, words(name, command)) for name, command in options.peer]
    for name, command in peers:
        check_peer(name, command)

    own = []
    for model in options.models:
        for name, flags in options.recipe:
            program = f"{Path(model).stem} {name}"
            own.append((program, own_command(model, [*words(name, flags), *options.flags])))

    programs = dict([*own, *peers])
    if not programs or not options.seeds:
        raise ValueError("nothing to train: give --models or --peer, and --seeds")
    files = [str(find_data(data).resolve()) for data in options.data]
    check_unique("program", [name for name, _ in [*own, *peers]])
    check_unique("seed", options.seeds)
    check_unique("data set", files)
    splits = () if "--download" in options.flags else ("train", "val")
    for data in options.data:
        open_data(data, splits=splits)

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


def own_command(model: str, flags: Sequence[str]) -> list[str]:
    """The command of train.py with placeholders, and these flags at its end."""
    planned = ["--data", "{data}", "--seed", "{seed}", "--cfg", model]
    planned += ["--project", "{out}", "--name", "run"]
    script = str(ROOT / "train.py")
    return [sys.executable, script, *planned, "--exist-ok", "--noplots", *flags]


def check_peer(name: str, command: Sequence[str]) -> None:
    """Raise ValueError if there is no such program, or its command has no {out}."""
    program = command[0] if command else ""
    if not program or shutil.which(program) is None:
        raise ValueError(f"{name}: there is no program '{printable(program)}'")
    if not any("{out}" in word for word in command):
        raise ValueError(f"{name}: there is no {{out}} in its command")


def check_unique(what: str, values: Sequence[object]) -> None:
    """Raise ValueError if a value is given twice."""
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ValueError(f"the {what} {printable(str(twice[0]))} is given twice")


def words(name: str, command: str) -> list[str]:
    """The words of a command or of flags. Raises ValueError with the name for an open quote."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def check_flags(training: Training) -> None:
    """Raise ValueError if train.py would refuse the flags, or if they change what is planned.

    The model, the weights and the hyper-parameter file are looked for, too.
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
    """Split "name=value" at the first equals sign.

    The name is a cell of a table and part of file names.
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r}: give name=value")
    if not re.fullmatch(r"[\w.+-]{1,60}", name):
        allowed = "1 to 60 letters, digits, '.', '_', '+' or '-'"
        raise argparse.ArgumentTypeError(f"{name!r}: a name has {allowed}")
    return name, value


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    yolov5n = ["yolov5n.yaml"]
    cores = os.cpu_count() or 1
    out = Path("runs", "accuracy")
    about_models = "for --cfg (default: yolov5n.yaml); empty: peers only"
    about_recipe = "name=flags of train.py; repeat for more (auto=)"
    about_peer = "name=command; repeat for more"
    about_jobs = "trainings at the same time (default: 1); they slow each other down"
    about_threads = "CPU threads of each training (default: all)"
    add("--data", nargs="+", required=True, help="data YAMLs")
    add("--models", nargs="*", default=yolov5n, help=about_models)
    add("--recipe", type=named, action="append", default=[], help=about_recipe)
    add("--peer", type=named, action="append", default=[], help=about_peer)
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--jobs", type=int, default=1, help=about_jobs)
    add("--threads", type=int, default=cores, help=about_threads)
    add("--title", default="Accuracy", help="of the report")
    add("--out", type=Path, default=out, help="folder (default: runs/accuracy)")
    add("flags", nargs="*", help="flags for train.py, after --")
    options = parser.parse_args()

    for name in ("jobs", "threads"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} {getattr(options, name)}: choose 1 or more")
    options.recipe = options.recipe or [(AUTO, "")]
    return options


def train_all(trainings: Sequence[Training], options: argparse.Namespace) -> list[Outcome]:
    """Train, `--jobs` at a time. After an error nothing else is started, and it is raised."""
    stop = threading.Event()
    failed = threading.Event()

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
            done = wait(futures, return_when=FIRST_EXCEPTION).done
            for error in [future.exception() for future in done]:
                if error and not isinstance(error, CancelledError):
                    print(f"{error}; {WHAT_IS_RUNNING}", file=sys.stderr, flush=True)

            # Ctrl-C ends this wait, but would break pool.shutdown().
            wait_for_rest(futures)
        except KeyboardInterrupt:
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)  # until the trainings have ended
            wait_for_rest(futures)
            raise
    return [future.result() for future in futures]


def wait_for_rest(futures: Sequence[Future[Outcome]]) -> None:
    """Cancel what has not started, and wait for the others."""
    wait([each for each in futures if not each.cancel()])


def main() -> None:
    options = read_options()
    trainings = plan(options)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"--out {printable(options.out)} is a file") from None

    for number in (signal.SIGTERM, signal.SIGHUP):  # the trainings have sessions of their own
        signal.signal(number, signal.default_int_handler)
    outcomes = train_all(trainings, options)

    plot(trainings, outcomes, options.out / "accuracy.png")
    file_report(report(trainings, outcomes, options.title), options.out / "report.md")


if __name__ == "__main__":
    run_and_exit(main)
