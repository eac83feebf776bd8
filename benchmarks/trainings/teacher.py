r"""What --teacher is worth: students trained with and without a larger model, for equal epochs.

Claim: see benchmarks/results/teacher*.md; each file states its command.

    python benchmarks/trainings/teacher.py --data bccd/dataset.yaml chess_pieces/dataset.yaml \
        --seeds 0 1 2 --work runs/teacher --out teacher.md -- --img 320 --epochs 60

For each data set the teacher (`--teacher-cfg`) is trained once, with seed 0 and the flags after --.
Then each student (`--cfg`) is trained with each seed, without and with `--teacher`, one training at
a time, with the same flags. val.py measures each best.pt on the val split.

The defaults: yolov5s teaches, because it has four times the weights of yolov5n and of the models of
its size needs the fewest operations from random weights (docs/models.md); yolov5n is of its family,
yolo11n of another one.

The report is written again after each training. What is done is stored in --work and is not
trained again, unless its command or its data differ.
"""

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from statistics import mean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import (
    add_report_flags,
    command_line,
    file_report,
    spread,
    table,
    versions,
)
from benchmarks.trainings.run import ROOT, Outcome, Training, name_of, stop_on_signals, train
from utils.terminal import FaultError, run_and_exit


class Student(NamedTuple):
    """A training of the report. taught: whether by the teacher."""

    data: str
    cfg: str
    taught: bool
    seed: int


Found = Mapping[Student, Outcome]


def command_of(options: argparse.Namespace, cfg: str, *more: str) -> tuple[str, ...]:
    """Return the command of a training, with its placeholders."""
    script = [sys.executable, str(ROOT / "train.py"), "--data", "{data}", "--seed", "{seed}"]
    script += ["--cfg", cfg, "--project", "{out}", "--name", "run", "--exist-ok", "--noplots"]
    return (*script, *more, *options.flags)


def teacher_of(options: argparse.Namespace, data: str) -> Training:
    """Return the training of the teacher."""
    command = command_of(options, options.teacher_cfg)
    return Training(f"teacher-{Path(options.teacher_cfg).stem}", data, 0, command)


def training_of(options: argparse.Namespace, student: Student) -> Training:
    """Return the training of a student."""
    program = Path(student.cfg).stem
    flags: list[str] = []
    if student.taught:
        program += "-taught"
        flags = ["--teacher", str(weights_of(teacher_of(options, student.data), options.work))]
    command = command_of(options, student.cfg, *flags)
    return Training(program, student.data, student.seed, command)


def weights_of(training: Training, work: Path) -> Path:
    """Return the best.pt of a training."""
    return work / training.key / "run" / "weights" / "best.pt"


def compared(found: Found, data: str, cfg: str) -> list[object]:
    """Return a row of the report: a student without and with the teacher."""
    without = {key.seed: value for key, value in found.items() if key[:3] == (data, cfg, False)}
    taught = {key.seed: value for key, value in found.items() if key[:3] == (data, cfg, True)}
    both = [seed for seed in without if seed in taught]
    if not both:
        return [name_of(data), cfg, 0, *["-"] * 6]
    gains = [taught[seed].ap - without[seed].ap for seed in both]
    slower = mean(taught[seed].seconds / without[seed].seconds for seed in both)
    return [
        name_of(data),
        cfg,
        len(both),
        spread([without[seed].ap for seed in both]),
        spread([taught[seed].ap for seed in both]),
        spread(gains),
        spread([without[seed].ap50 for seed in both]),
        spread([taught[seed].ap50 for seed in both]),
        f"{slower:.2f}",
    ]


def report(options: argparse.Namespace, teachers: Mapping[str, Outcome], found: Found) -> list[str]:
    """Return the lines of the report: students compared, the teachers, then each training."""
    rows = [compared(found, data, cfg) for data in options.data for cfg in options.cfg]
    columns = ["data", "student", "seeds", "AP alone", "AP taught", "difference"]
    columns += ["AP50 alone", "AP50 taught", "time taught / alone"]

    of_teachers = []
    for data, outcome in teachers.items():
        numbers = [f"{value:.4f}" for value in (outcome.ap, outcome.ap50)]
        of_teachers.append([name_of(data), options.teacher_cfg, *numbers])
    single = []
    for key, value in found.items():
        words = [name_of(key.data), key.cfg, "yes" if key.taught else "no", key.seed]
        single.append([*words, f"{value.ap:.4f}", f"{value.ap50:.4f}", f"{value.seconds:.0f}"])

    return [
        "# Students with and without a teacher",
        "",
        f"{options.about}, {versions()}, {date.today()}. Mean ± standard deviation over the seeds; "
        "the difference is that of trainings with the same seed.",
        "",
        command_line(),
        "",
        table(columns, rows),
        "",
        "The teachers:",
        "",
        table(["data", "model", "AP", "AP50"], of_teachers),
        "",
        "Each training:",
        "",
        table(["data", "student", "taught", "seed", "AP", "AP50", "seconds"], single),
    ]


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", required=True, nargs="+", help="data YAMLs")
    add("--teacher-cfg", default="yolov5s.yaml", help="the teacher (default: yolov5s.yaml)")
    students = ["yolov5n.yaml", "yolo11n.yaml"]
    add("--cfg", nargs="+", default=students, help=f"students (default: {' '.join(students)})")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads (default: all)")
    work = Path("runs", "teacher")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add("flags", nargs="*", help="flags for train.py, after --")
    add_report_flags(parser)
    options = parser.parse_args()
    options.data = [os.path.abspath(data) for data in options.data]
    options.work = options.work.resolve()
    return options


def main() -> None:
    options = read_options()
    options.work.mkdir(parents=True, exist_ok=True)

    stop = stop_on_signals()

    teachers: dict[str, Outcome] = {}
    found: dict[Student, Outcome] = {}
    for data in options.data:
        training = teacher_of(options, data)
        teachers[data] = train(training, options.work, options.threads, stop)
        weights = weights_of(training, options.work)
        if not weights.exists():
            raise FaultError(f"{weights} is missing: delete {training.key}.json to train it again")

        for seed in options.seeds:
            for cfg in options.cfg:
                for taught in (False, True):
                    student = Student(data, cfg, taught, seed)
                    training = training_of(options, student)
                    found[student] = train(training, options.work, options.threads, stop)
                    file_report(report(options, teachers, found), options.out)


if __name__ == "__main__":
    run_and_exit(main)
