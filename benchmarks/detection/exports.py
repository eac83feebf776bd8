r"""Exported models side by side, other projects' too: size, AP, and milliseconds of each stage.

Claim: every export has the AP of its checkpoint within 0.001 (INT8: within 0.01), and decoding,
letterboxing and NMS together take under a quarter of the time of an image on two CPU cores
(benchmarks/results/).

    python export.py --weights m.pt --include torchscript onnx openvino --img 320 --dynamic
    python benchmarks/detection/exports.py --data mydata.yaml --img 320 --square \
        --weights m.pt m.torchscript m.onnx m_openvino_model --half m.pt m_openvino_model \
        --peer "YOLOv5, ONNX=y5.onnx=PEER/bin/yolov5 val --weights y5.onnx --data mydata.yaml \
                --img 320 --project {out}"

In each round every model runs once in a process of its own, so that no runtime's threads disturb
another one, on `--images` images of the val split, read from their files one at a time; a peer's
command evaluates the whole split. Models take turns, so that other load on the machine affects all
of them. AP is that of val.py, or what a peer's command prints on its line "all". The stages of a
peer are those that it reports on its line "Speed:", without decoding. Whole programs are compared
by benchmarks/detection/programs.py.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import val
from benchmarks.report import add_report_flags, file_report, table_row, versions
from data.layouts import open_data
from data.splits import read_split
from models import load
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.stopwatch import Stopwatch

STAGES = ("decode", "letterbox", "model", "postprocess")
# Their names in a peer's line "Speed:".
PEER_STAGES = {
    "letterbox": r"pre-?process",
    "model": "inference",
    "postprocess": "NMS|postprocess",
}


class Figures(NamedTuple):
    """What one run of a model gave."""

    ap: float
    milliseconds: dict[str, float]  # per image, of the stages that were measured


class Contender(NamedTuple):
    name: str
    path: Path
    run: Callable[[], Figures]


def size_mb(path: Path) -> float:
    """The MB of a model's file, with its external data, or of all files in its folder."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if not file.is_dir()]
    else:
        external = path.with_name(f"{path.name}.data")
        files = [path]
        if external.exists():
            files.append(external)
    return sum(file.stat().st_size for file in files) / 1e6


def mean_ap(weights: str, half: bool, options: argparse.Namespace) -> float:
    """AP by val.py."""
    words = ["--weights", weights, "--data", options.data, "--device", options.device]
    words += ["--img", str(options.img), "--batch", "1", "--workers", "0"]
    if options.square:
        words.append("--square")
    if half:
        words.append("--half")

    world = World(torch.device("cpu" if options.device == "cpu" else f"cuda:{options.device}"))
    with tempfile.TemporaryDirectory() as folder:
        settings, _ = val.parse_args([*words, "--project", folder])
        evaluation = val.main(settings, world)
    return float(evaluation.coco.stats["AP"])


def time_stages(weights: str, half: bool, options: argparse.Namespace) -> dict[str, float]:
    """The milliseconds of each stage, as medians over images."""
    spec = open_data(options.data)
    labels, _ = read_split(spec, "val", cache_dir="", progress=False)
    paths = [labels.path(i) for i in range(min(options.images, len(labels)))]
    size = (options.img, options.img) if options.square else options.img
    detector = load(weights, device=options.device, half=half, image_size=size)

    watches = []
    for path in paths[:10] + paths:  # the first ones warm up
        watch = Stopwatch()
        with watch("decode"):
            image = read_image(path)
        detector.predictor(image, channel_order="bgr", watch=watch)
        watches.append(watch)

    timed = watches[-len(paths) :]
    return {stage: median(1000 * watch.seconds[stage] for watch in timed) for stage in STAGES}


def run_command(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises SystemExit with the end of its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        output = (done.stdout + done.stderr)[-2000:]
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{output}")
    return done


def ours(weights: str, half: bool, number: int) -> Contender:
    """One of our models. number: of it in the list that --only refers to."""

    def run() -> Figures:
        done = run_command([sys.executable, *sys.argv, "--only", str(number)])
        return Figures(**json.loads(done.stdout.splitlines()[-1]))

    name = Path(weights).name
    return Contender(f"{name} --half" if half else name, Path(weights), run)


def peer(text: str) -> Contender:
    """A peer by NAME=FILE=COMMAND."""
    name, path, command = text.split("=", 2)

    def run() -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out")
            done = run_command([word.format(out=out) for word in shlex.split(command)])
        return read_figures(done.stdout + done.stderr)

    return Contender(name, Path(path), run)


def read_figures(output: str) -> Figures:
    """The figures in the output of a peer's validation.

    Raises SystemExit if it lacks the lines "all" or "Speed:".
    """
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)  # colors
    overall = re.search(r"^\s*all(?:\s+[\d.e-]+){5}\s+([\d.e-]+)\s*$", output, re.MULTILINE)
    speed = re.search(r"Speed: .*", output)
    if not overall or not speed:
        end = output[-2000:]
        raise SystemExit(f'a peer printed no line "all" or "Speed:"; its output ended with\n{end}')

    milliseconds = {}
    for stage, words in PEER_STAGES.items():
        match = re.search(rf"([\d.]+)\s*ms (?:{words})", speed[0])
        if match:
            milliseconds[stage] = float(match[1])
    return Figures(float(overall[1]), milliseconds)


def row(contender: Contender, figures: list[Figures]) -> str:
    """A row of the report: medians over rounds."""
    measured = figures[0].milliseconds
    stages = {}
    for stage in STAGES:
        if stage in measured:
            stages[stage] = median(each.milliseconds[stage] for each in figures)
    total = sum(stages.values())

    ap = median(each.ap for each in figures)
    cells = [contender.name, f"{size_mb(contender.path):.1f}", f"{ap:.4f}"]
    cells += [f"{stages[stage]:.1f}" if stage in stages else "-" for stage in STAGES]
    cells += [f"{total:.1f}", f"{1 - stages['model'] / total:.0%}"]
    return table_row(cells)


def main() -> None:
    options = read_options()
    models = [(weights, False) for weights in options.weights]
    models += [(weights, True) for weights in options.half]
    if options.only is not None:
        weights, half = models[options.only]
        ap = mean_ap(weights, half, options)
        print(json.dumps(Figures(ap, time_stages(weights, half, options))._asdict()))
        return

    contenders = [ours(*model, number) for number, model in enumerate(models)]
    contenders += [peer(text) for text in options.peer]
    figures: list[list[Figures]] = [[] for _ in contenders]
    for number in range(options.rounds):
        for contender, found in zip(contenders, figures, strict=True):
            found.append(contender.run())
            print(f"round {number + 1}, {contender.name}: {found[-1]}", flush=True)

    canvas = f"{options.img} px, square" if options.square else f"{options.img} px"
    about = f"{canvas}, batch 1, {options.about}; {versions()}"
    lines = [
        f"# Exported models; {about}, {date.today()}",
        "",
        f"AP on the val split of {Path(options.data).name}. Milliseconds per image: medians over "
        f"{options.rounds} rounds in turns; -: not reported, and not in the sum. Load average: "
        f"{os.getloadavg()[0]:.1f}.",
        "",
        f"| | MB | AP | {' | '.join(STAGES)} | sum | share outside the model |",
        table_row(["---"] * (len(STAGES) + 5)),
        *map(row, contenders, figures),
        "",
        *(f"    {text}" for text in options.peer),
        "",
    ]
    file_report(lines, options.out)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    about_peer = "another project's model and validation"
    about_square = "one square canvas for all images, as in exports of a fixed size"
    add("--weights", nargs="+", required=True, help="the checkpoint, and its exports")
    add("--half", nargs="+", default=[], help="models to run with --half, too")
    add("--peer", action="append", default=[], metavar="NAME=FILE=COMMAND", help=about_peer)
    add("--data", required=True, help="data set YAML")
    add("--img", type=int, default=640)
    add("--square", action="store_true", help=about_square)
    add("--device", default="cpu")
    add("--images", type=int, default=100, help="images to time")
    add("--rounds", type=int, default=3)
    add_report_flags(parser)
    # Set by this script: measure this model alone, and print its figures as JSON.
    add("--only", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
