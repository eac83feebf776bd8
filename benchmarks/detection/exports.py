r"""Exported models side by side: size, AP, and where the milliseconds of an image go; beside other
projects' exports.

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
import platform
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
from benchmarks.report import file_report
from data.splits import open_data, read_split
from models import load
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.stopwatch import Stopwatch

STAGES = ("decode", "letterbox", "model", "postprocess")
PEER_STAGES = {
    "letterbox": r"pre-?process",
    "model": "inference",
    "postprocess": "NMS|postprocess",
}  # of line "Speed:"


class Figures(NamedTuple):
    """What one run of a model gave."""

    ap: float
    milliseconds: dict[str, float]  # per image, of the stages that were measured


class Contender(NamedTuple):
    name: str
    path: Path
    run: Callable[[], Figures]


def size_mb(path: Path) -> float:
    """Return the size of a model's file, with its external data, or of all files in its folder, in
    MB.
    """
    external = path.with_name(f"{path.name}.data")
    files = path.rglob("*") if path.is_dir() else [path, *([external] if external.exists() else [])]
    return sum(file.stat().st_size for file in files if not file.is_dir()) / 1e6


def mean_ap(weights: str, half: bool, options: argparse.Namespace) -> float:
    """Return AP by val.py."""
    with tempfile.TemporaryDirectory() as folder:
        flags = [
            "--weights",
            weights,
            "--data",
            options.data,
            "--device",
            options.device,
            "--project",
            folder,
        ]
        flags += ["--img", str(options.img), "--batch", "1", "--workers", "0"]
        flags += ["--square"] * options.square + ["--half"] * half
        world = World(torch.device("cpu" if options.device == "cpu" else f"cuda:{options.device}"))
        return float(val.main(val.parse_args(flags)[0], world).coco.stats["AP"])


def time_stages(weights: str, half: bool, options: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds of each stage, as medians over images."""
    labels, _ = read_split(
        open_data(options.data), "val", single=False, cache_dir="", progress=False
    )
    paths = [labels.path(i) for i in range(min(options.images, len(labels)))]
    size = (options.img, options.img) if options.square else options.img
    detector = load(weights, device=options.device, half=half, image_size=size)
    rows = []
    for path in paths[:10] + paths:  # the first ones warm up
        watch = Stopwatch()
        with watch("decode"):
            image = read_image(path)
        detector.predictor(image, channel_order="bgr", watch=watch)
        rows.append([1000 * watch.seconds[stage] for stage in STAGES])
    return dict(zip(STAGES, map(median, zip(*rows[-len(paths) :], strict=True)), strict=True))


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

    return Contender(f"{Path(weights).name}{' --half' if half else ''}", Path(weights), run)


def peer(text: str) -> Contender:
    """A peer by NAME=FILE=COMMAND."""
    name, path, command = text.split("=", 2)

    def run() -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            done = run_command(
                [word.format(out=Path(folder, "out")) for word in shlex.split(command)]
            )
        return read_figures(done.stdout + done.stderr)

    return Contender(name, Path(path), run)


def read_figures(output: str) -> Figures:
    """Read the output of a peer's validation. Raises SystemExit if it lacks the lines "all" or
    "Speed:".
    """
    output = re.sub(r"\x1b\[[0-9;]*m", "", output)  # colors
    overall = re.search(r"^\s*all(?:\s+[\d.e-]+){5}\s+([\d.e-]+)\s*$", output, re.MULTILINE)
    speed = re.search(r"Speed: .*", output)
    if not overall or not speed:
        raise SystemExit(
            f'a peer printed no line "all" or "Speed:"; its output ended with\n{output[-2000:]}'
        )
    found = {
        stage: re.search(rf"([\d.]+)\s*ms (?:{words})", speed[0])
        for stage, words in PEER_STAGES.items()
    }
    return Figures(
        float(overall[1]), {stage: float(match[1]) for stage, match in found.items() if match}
    )


def row(contender: Contender, figures: list[Figures]) -> str:
    """A row of the report: medians over rounds."""
    stages = {
        s: median(f.milliseconds[s] for f in figures)
        for s in STAGES
        if s in figures[0].milliseconds
    }
    total = sum(stages.values())
    shown = " | ".join(f"{stages[stage]:.1f}" if stage in stages else "-" for stage in STAGES)
    outside = f"{1 - stages['model'] / total:.0%}"
    ap = median(f.ap for f in figures)
    return (
        f"| {contender.name} | {size_mb(contender.path):.1f} | {ap:.4f} | {shown} | "
        f"{total:.1f} | {outside} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--weights", nargs="+", required=True, help="the checkpoint, and its exports")
    add("--half", nargs="+", default=[], help="models to run with --half, too")
    add(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=FILE=COMMAND",
        help="another project's model and validation",
    )
    add("--data", required=True, help="data set YAML")
    add("--img", type=int, default=640)
    add(
        "--square",
        action="store_true",
        help="one square canvas for all images, as in exports of a fixed size",
    )
    add("--device", default="cpu")
    add("--images", type=int, default=100, help="images to time")
    add("--rounds", type=int, default=3)
    add(
        "--about",
        default=f"{os.cpu_count()} cores {platform.machine()}",
        help="the hardware, as text for the report",
    )
    add("--out", type=Path, help="file for the report")
    add(
        "--only", type=int, help=argparse.SUPPRESS
    )  # measure this model alone, and print its figures as JSON
    options = parser.parse_args()

    models = [(weights, False) for weights in options.weights] + [
        (weights, True) for weights in options.half
    ]
    if options.only is not None:
        chosen = *models[options.only], options
        print(json.dumps(Figures(mean_ap(*chosen), time_stages(*chosen))._asdict()))
        return
    contenders = [ours(*model, number) for number, model in enumerate(models)] + list(
        map(peer, options.peer)
    )
    figures: list[list[Figures]] = [[] for _ in contenders]
    for number in range(options.rounds):
        for contender, found in zip(contenders, figures, strict=True):
            found.append(contender.run())
            print(f"round {number + 1}, {contender.name}: {found[-1]}", flush=True)
    about = f"{options.img} px{', square' if options.square else ''}, batch 1, {options.about}"
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    file_report(
        [
            f"# Exported models; {about}; {versions}, {date.today()}",
            "",
            f"AP on the val split of {Path(options.data).name}. Milliseconds per image: medians "
            f"over {options.rounds} "
            "rounds in turns; -: not reported, and not in the sum. Load average: "
            f"{os.getloadavg()[0]:.1f}.",
            "",
            f"| | MB | AP | {' | '.join(STAGES)} | sum | share outside the model |",
            f"| {'--- | ' * (len(STAGES) + 5)}".strip(),
            *map(row, contenders, figures),
            "",
            *(f"    {text}" for text in options.peer),
            "",
        ],
        options.out,
    )


if __name__ == "__main__":
    main()
