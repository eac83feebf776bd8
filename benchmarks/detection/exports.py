r"""Exported models side by side: size, mAP, and where the milliseconds of an image go.

Claim: every export has the mAP of its checkpoint within 0.001 (INT8: within 0.01), and decoding, letterboxing and NMS
together take under a quarter of the time of an image on two CPU cores (benchmarks/results/).

    python export.py --weights best.pt --include torchscript onnx openvino --img 320 --dynamic
    python benchmarks/detection/exports.py --data mydata.yaml --img 320 \
        --weights best.pt best.torchscript best.onnx best_openvino_model

mAP is that of val.py on the val split, with one canvas for all images if one of the files was exported for a fixed
size. Times are measured on the images of that split, read from their files one at a time; the models take turns image
by image, so other load on the machine affects all of them. Whole programs, also of other projects, are compared by
benchmarks/detection/programs.py.
"""

import argparse
import os
import platform
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import val
from benchmarks.report import file_report
from data.splits import open_data, read_split
from models import load
from models.python_api import LoadedDetector
from utils.distributed.world import World
from utils.images.decode import read_image
from utils.stopwatch import Stopwatch

STAGES = ("decode", "letterbox", "model", "NMS")


def size_mb(path: Path) -> float:
    """Return the size of a file, or of all files in a folder, in MB."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def mean_ap(weights: str, options: argparse.Namespace, square: bool) -> float:
    """Return AP by val.py."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--weights", weights, "--data", options.data, "--device", options.device, "--project", folder]
        flags += ["--img", str(options.img), "--batch", "1", "--workers", "0", *(["--square"] if square else [])]
        world = World(torch.device("cpu" if options.device == "cpu" else f"cuda:{options.device}"))
        return float(val.main(val.parse_args(flags)[0], world).coco.stats["AP"])


def measure(detectors: list[LoadedDetector], paths: list[str], rounds: int) -> list[list[list[float]]]:
    """Return the milliseconds of each stage for each image of each detector, measured in turns."""
    times: list[list[list[float]]] = [[] for _ in detectors]
    for path in paths[:5]:  # warm up
        for detector in detectors:
            detector(path)
    for _ in range(rounds):
        for path in paths:
            for detector, rows in zip(detectors, times, strict=True):
                watch = Stopwatch()
                with watch("decode"):
                    image = read_image(path)
                detector.predictor(image, channel_order="bgr", watch=watch)
                rows.append([1000 * watch.seconds[stage] for stage in STAGES])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--weights", nargs="+", required=True, help="the checkpoint, and its exports")
    add("--data", required=True, help="data set YAML")
    add("--img", type=int, default=640)
    add("--device", default="cpu")
    add("--images", type=int, default=100, help="images to time")
    add("--rounds", type=int, default=3)
    add("--half", action="store_true", help="time the checkpoint in 16 bits, too")
    add("--about", default=f"{os.cpu_count()} cores {platform.machine()}", help="the hardware, as text for the report")
    add("--out", type=Path, help="file for the report")
    options = parser.parse_args()

    labels, _ = read_split(open_data(options.data), "val", single=False, cache_dir="", progress=False)
    paths = [labels.path(i) for i in range(min(options.images, len(labels)))]
    settings = {"device": options.device, "image_size": options.img}
    detectors = [load(weights, **settings) for weights in options.weights]  # type: ignore[arg-type]
    names = [Path(weights).name for weights in options.weights]
    square = any(detector.predictor.backend.canvas for detector in detectors)
    scores = [f"{mean_ap(weights, options, square):.4f}" for weights in options.weights]
    sizes = [f"{size_mb(Path(weights)):.1f}" for weights in options.weights]
    if options.half:
        detectors.append(load(options.weights[0], half=True, **settings))  # type: ignore[arg-type]
        names, scores, sizes = [*names, f"{names[0]} --half"], [*scores, "-"], [*sizes, sizes[0]]
    times = measure(detectors, paths, options.rounds)
    lines = [
        f"# Exported models; {options.img} px, batch 1, {options.about}, torch {torch.__version__}, {date.today()}",
        "",
        f"AP of val.py on {options.data}{' with --square' if square else ''}. Milliseconds: medians over {len(paths)} "
        f"images of that split, {options.rounds} times, the models in turns. Load average: {os.getloadavg()[0]:.1f}.",
        "",
        f"| | MB | AP | {' | '.join(STAGES)} | sum | share outside the model |",
        f"| {'--- | ' * (len(STAGES) + 5)}".strip(),
    ]
    for name, size, score, rows in zip(names, sizes, scores, times, strict=True):
        stages = [median(column) for column in zip(*rows, strict=True)]
        outside = 1 - stages[STAGES.index("model")] / sum(stages)
        shown = " | ".join(f"{value:.1f}" for value in (*stages, sum(stages)))
        lines.append(f"| {name} | {size} | {score} | {shown} | {outside:.0%} |")
    file_report([*lines, ""], options.out)


if __name__ == "__main__":
    main()
