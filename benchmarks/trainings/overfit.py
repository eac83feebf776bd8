r"""Whether each model of full size overfits eight drawn images, trained by train.py.

Claim: AP above 0.9 for each, for some with more steps (--epochs): see
benchmarks/results/overfit*.md. tests/test_families.py does the same with narrow tables.

    python benchmarks/trainings/overfit.py --models yolov5n yolox_nano rtmdet_tiny
    python benchmarks/trainings/overfit.py --out overfit.md

Without --models: all sizes of all tables in models/, which takes hours on a CPU. The tables are
those of models/, without any change. A training has one step for each epoch, no augmentation and no
validation but at the end. val.py measures best.pt on the canvas of the training (--square). The
report is written again after each model; what is done is stored in --work and is not trained again.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import NamedTuple

import cv2
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import add_report_flags, command_line, file_report, table, versions
from benchmarks.trainings.run import ROOT, require_success
from models.tables.find import model_names
from tests.support.overfitting import HEIGHT, IMAGES, NAMES, SHAPES, SIZES, WIDTH, draw_image
from training.settings.hyperparameters import Hyp, read_hyp, write_hyp
from utils.files.writers import write_json
from utils.printable import did_you_mean, printable
from utils.terminal import FaultError, run_and_exit

ENOUGH = 0.9
PARAMETERS = re.compile(r": ([\d,]+) parameters")


class Result(NamedTuple):
    """AP and AP50 of best.pt, parameters of the model, seconds of its training."""

    ap: float
    ap50: float
    parameters: str
    seconds: float


def draw_shapes(root: Path) -> Path:
    """Draw eight images with one or two shapes; return the data YAML, whose val split they are."""
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    for number, shapes in enumerate(SHAPES):
        rows = []
        for kind, x, y in shapes:
            width, height = SIZES[kind]
            center_x = (x + width / 2) / WIDTH
            center_y = (y + height / 2) / HEIGHT
            size = f"{width / WIDTH:.6f} {height / HEIGHT:.6f}"
            rows.append(f"{kind} {center_x:.6f} {center_y:.6f} {size}\n")
        cv2.imwrite(str(root / "images" / f"{number}.png"), draw_image(shapes))
        (root / "labels" / f"{number}.txt").write_text("".join(rows))
    file = root / "shapes.yaml"
    content = {"path": ".", "train": "images", "val": "images", "names": list(NAMES)}
    file.write_text(yaml.safe_dump(content))
    return file


def write_plain_hyp(folder: Path, lr0: float) -> Path:
    """Write hyper-parameters without augmentation, weight decay and warm-up; return the path."""
    _, hyp = read_hyp(ROOT / "data" / "hyps" / "hyp.no-augmentation.yaml")
    plain: Hyp = replace(
        hyp,
        lr0=lr0,
        lrf=0.05,
        nominal_batch=IMAGES,
        weight_decay=0,
        warmup_epochs=0,
    )
    file = folder / f"plain-{lr0:g}.yaml"
    write_hyp(file, "Muon", plain)
    return file


def train(model: str, options: argparse.Namespace, data: Path) -> Result:
    """Train a model and measure it, or read what was stored. Raises FaultError if that fails."""
    name = f"{model}-{options.epochs}-{options.lr0:g}-{options.seed}-{options.device}"
    stored = options.work / f"{name}.json"
    if stored.exists():
        return Result(**json.loads(stored.read_text()))

    folder = options.work / name
    log = options.work / f"{name}.log"
    shutil.rmtree(folder, ignore_errors=True)  # of a training that was interrupted
    shared = ["--data", str(data), "--img", str(WIDTH), "--workers", "0"]
    shared += ["--device", options.device, "--project", str(folder)]
    training = ["train.py", *shared, "--cfg", model, "--name", "run", "--batch", str(IMAGES)]
    training += ["--hyp", str(write_plain_hyp(options.work, options.lr0)), "--noautoanchor"]
    training += ["--epochs", str(options.epochs), "--seed", str(options.seed)]
    training += ["--noval", "--nosave", "--noplots"]
    weights = folder / "run" / "weights" / "best.pt"
    measuring = ["val.py", *shared, "--weights", str(weights), "--name", "val", "--square"]

    began = time.monotonic()
    run(training, log, "w")
    seconds = time.monotonic() - began
    run(measuring, log, "a")

    stats = json.loads((folder / "val" / "metrics.json").read_text())
    counted = PARAMETERS.search(log.read_text())
    parameters = counted[1] if counted else "-"
    result = Result(stats["AP"], stats["AP50"], parameters, round(seconds, 1))
    write_json(stored, result._asdict())
    shutil.rmtree(folder)
    return result


def run(command: Sequence[str], log: Path, mode: str) -> None:
    """Run a script of ours; raise FaultError with the last line of its output if it fails."""
    script, *words = command
    threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    with open(log, mode) as output:
        done = subprocess.run(
            [sys.executable, str(ROOT / script), *words],
            stdout=output,
            stderr=output,
            env=environment,
            check=False,
        )
    require_success(script, done.returncode, log)


def report(options: argparse.Namespace, results: dict[str, Result]) -> list[str]:
    """Return the lines of the report: a row for each model."""
    rows = []
    for model, result in results.items():
        verdict = "yes" if result.ap > ENOUGH else "**no**"
        numbers = [f"{result.ap:.3f}", f"{result.ap50:.3f}", verdict, f"{result.seconds:.0f}"]
        rows.append([f"`{model}`", result.parameters, *numbers])
    settings = f"{options.epochs} steps, Muon at {options.lr0:g}, seed {options.seed}"
    return [
        "# Full sizes on eight drawn images",
        "",
        f"{options.about}, {versions()}, {date.today()}. {WIDTH} px, {settings}.",
        "",
        command_line(),
        "",
        table(["model", "parameters", "AP", "AP50", f"AP > {ENOUGH}", "seconds"], rows),
    ]


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", nargs="+", default=model_names(), help="names for --cfg (default: all)")
    add("--epochs", type=int, default=250, help="optimizer steps (default: 250)")
    add("--lr0", type=float, default=0.01, help="learning rate (default: 0.01)")
    add("--seed", type=int, default=0, help="(default: 0)")
    add("--device", default="cpu", help="(default: cpu)")
    work = Path("runs", "overfit")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add_report_flags(parser)
    options = parser.parse_args(arguments)
    for model in options.models:
        if model not in model_names():
            hint = did_you_mean(model, model_names())
            raise ValueError(f"--models {printable(model)}: no model of that name{hint}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    data = options.work / "shapes" / "shapes.yaml"
    if not data.exists():
        shutil.rmtree(data.parent, ignore_errors=True)
        draw_shapes(data.parent)

    results: dict[str, Result] = {}
    for model in options.models:
        results[model] = train(model, options, data)
        file_report(report(options, results), options.out)
    low = [model for model, result in results.items() if result.ap <= ENOUGH]
    if low:
        raise FaultError(f"AP of {', '.join(low)} is not above {ENOUGH}")


if __name__ == "__main__":
    run_and_exit(main)
