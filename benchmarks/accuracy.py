"""Accuracy of training from scratch on a real data set: mean and standard deviation over seeds, by pycocotools.

Claim: on BCCD (205 training and 87 validation images), yolov5n at 320 px, batch 16, 100 epochs, with the default
hyper-parameters, reaches at least the AP of YOLOv5 itself, 0.514 (one seed).

    python benchmarks/accuracy.py --data bccd/dataset.yaml --seeds 0 1 2 -- --img 320 --batch 16 --epochs 100

For each seed this runs train.py, then val.py --save-json on its best.pt, and scores val.py's files with pycocotools.
"""

import argparse
import contextlib
import io
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

ROOT = Path(__file__).parents[1]
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


def train_and_score(seed: int, data: str, flags: list[str], out: Path, threads: int) -> tuple[list[float], float]:
    """Train with one seed; return pycocotools' 12 numbers for best.pt, and the minutes that training took."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    started = time.monotonic()
    folder = ["--project", str(out), "--name", f"seed{seed}", "--exist-ok"]
    with open(out / f"seed{seed}.log", "w") as log:
        run = [sys.executable, str(ROOT / "train.py"), "--data", data, "--seed", str(seed), *folder, *flags]
        subprocess.run(run, check=True, stdout=log, stderr=log, env=environment)
        minutes = (time.monotonic() - started) / 60
        best = out / f"seed{seed}" / "weights" / "best.pt"
        folder = ["--project", str(out), "--name", f"val{seed}", "--exist-ok"]
        run = [sys.executable, str(ROOT / "val.py"), "--weights", str(best), "--save-json", *folder]
        subprocess.run(run, check=True, stdout=log, stderr=log, env=environment)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(out / f"val{seed}" / "ground_truth.json"))
        evaluator = COCOeval(truth, truth.loadRes(str(out / f"val{seed}" / "predictions.json")), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return [float(v) for v in evaluator.stats], minutes


def report(seeds: list[int], results: list[tuple[list[float], float]], data: str, flags: list[str]) -> str:
    """A Markdown table with a row per seed, then mean and standard deviation."""
    lines = [
        f"# Accuracy from scratch: {Path(data).parent.name}",
        "",
        f"`train.py {' '.join(flags)}`, best.pt by pycocotools on the val split.",
        f"{platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}.",
        "",
        f"| seed | {' | '.join(COLUMNS)} | minutes |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for seed, (stats, minutes) in zip(seeds, results, strict=True):
        lines.append(f"| {seed} | {' | '.join(f'{v:.4f}' for v in stats[: len(COLUMNS)])} | {minutes:.1f} |")
    columns = list(zip(*(stats for stats, _ in results), strict=True))[: len(COLUMNS)]
    lines.append(f"| mean | {' | '.join(f'{statistics.mean(c):.4f}' for c in columns)} | |")
    if len(seeds) > 1:
        lines.append(f"| st. dev. | {' | '.join(f'{statistics.stdev(c):.4f}' for c in columns)} | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained at the same time")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="CPU threads of each run")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "accuracy")
    parser.add_argument("flags", nargs="*", help="flags for train.py, after --")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [
            pool.submit(train_and_score, seed, options.data, options.flags, options.out, options.threads)
            for seed in options.seeds
        ]
        results = [future.result() for future in futures]
    text = report(options.seeds, results, options.data, options.flags)
    (options.out / "report.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
