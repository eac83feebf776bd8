"""Whether this tree trains to the same bits as an older commit, for changes that must not change
results.

Claim: a run of the old commit and a run of this tree, with the same flags on the same data, end
with the same bits in the weights, the averaged weights, the optimizer state and results.csv (except
times), and this tree can resume the old commit's last.pt.

    python benchmarks/same_bits.py OLD_COMMIT [--runs one adamw two killed carried] [--epochs 3]

one      one process, float32, every augmentation, multi-scale, image weights
adamw    one process, float32, AdamW, no mosaic, cosine learning rate
two      two processes (gloo) with --sync-bn
killed   one process; this tree's run is killed with SIGKILL in the middle of an epoch and resumed
carried  one process; the old commit starts the run and is killed, this tree resumes it

The old commit is checked out into a temporary worktree. Runs are started as users start them.
"""

import argparse
import csv
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (
    "--cfg yolov5n.yaml --img 96 --batch 16 --device cpu --amp fp32 --workers 1 "
    "--noplots --optimizer SGD"
)
HYP = {  # the default hyper-parameters with every augmentation switched on
    **{
        "hsv_h": 0.02,
        "hsv_s": 0.6,
        "hsv_v": 0.4,
        "degrees": 10.0,
        "translate": 0.1,
        "scale": 0.5,
        "shear": 3.0,
    },
    **{
        "perspective": 0.0005,
        "flipud": 0.3,
        "fliplr": 0.5,
        "mosaic": 0.8,
        "mixup": 0.3,
        "copy_paste": 0.4,
    },
    **{"lr0": 0.01, "fl_gamma": 0.5, "warmup_epochs": 1.0},
}
RUNS = {  # {name: (flags, number of processes)}
    "one": ("--hyp {hyp} --multi-scale --image-weights --label-smoothing 0.05 --patience 50", 1),
    "adamw": ("--optimizer AdamW --hyp hyp.no-augmentation.yaml --cos-lr", 1),
    "two": ("--hyp {hyp} --sync-bn", 2),
    "killed": ("--hyp {hyp} --save-minutes 0.01", 1),
    "carried": ("--hyp {hyp} --save-minutes 0.01", 1),
}


def command(tree: Path, folder: Path, name: str, flags: str, processes: int) -> list[str]:
    """The command of a run of a tree, as a user starts it."""
    launcher = (
        ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)] if processes > 1 else []
    )
    paths = [
        "--data",
        str(folder / "set" / "shapes.yaml"),
        "--project",
        str(folder / f"runs-{tree.name}"),
        "--name",
        name,
    ]
    words = [
        *SETTINGS.split(),
        *flags.split(),
        *paths,
        "--exist-ok",
        "--cache-dir",
        str(folder / "cache" / tree.name),
    ]
    return [sys.executable, *launcher, str(tree / "train.py"), *words]


def live(words: list[str], log: Path, *, kill_when: Path | None = None) -> None:
    """Run a command to its end, or kill it soon after `kill_when` exists. Raises RuntimeError if it
    fails by itself.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with open(log, "ab") as output:
        process = subprocess.Popen(
            words,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
        while kill_when is not None and process.poll() is None:
            if kill_when.exists():
                time.sleep(1.5)  # so that it has done steps that no checkpoint holds yet
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return
            time.sleep(0.02)
    if process.wait():
        raise RuntimeError(
            f"{' '.join(words)}\nended with {process.returncode}:\n{log.read_text()[-4000:]}"
        )


def same(first: Any, second: Any) -> bool:
    """Whether nested values are equal to the bit; nan equals nan."""
    if isinstance(first, torch.Tensor):
        comparable = (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and first.shape == second.shape
        )
        return comparable and torch.equal(
            first.flatten().view(torch.uint8), second.flatten().view(torch.uint8)
        )
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(same(first[k], second[k]) for k in first)
        )
    if isinstance(first, list):
        return (
            isinstance(second, list) and len(first) == len(second) and all(map(same, first, second))
        )
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    return first == second


def rows(run: Path) -> list[dict[str, str]]:
    """The rows of results.csv without their times."""
    with open(run / "results.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "time"} for row in csv.DictReader(file)]


def differences(old: Path, new: Path) -> list[str]:
    """The parts of two run folders that are not equal to the bit."""
    found = []
    for file, parts in (
        ("last.pt", ("model", "ema", "ema_updates", "optimizer", "epoch")),
        ("best.pt", ("model",)),
    ):
        one, other = (torch.load(run / "weights" / file, weights_only=True) for run in (old, new))
        found += [f"{file} {part}" for part in parts if not same(one[part], other[part])]
    return found + (["results.csv"] if rows(old) != rows(new) else [])


def compare(name: str, old: Path, new: Path, folder: Path, epochs: int) -> str:
    """Train one of RUNS with both trees; return the result as one line."""
    flags, processes = RUNS[name]
    flags = flags.format(hyp=folder / "hyp.yaml") + f" --epochs {epochs}"
    log, started, where = folder / f"{name}.log", time.monotonic(), ""
    live(command(old, folder, name, flags, processes), log)
    runs = {tree: folder / f"runs-{tree.name}" / name for tree in (old, new)}
    if name in ("killed", "carried"):
        first = old if name == "carried" else new
        run = runs[new]
        last = run / "weights" / "last.pt"
        words = command(first, folder, name, flags, processes)
        words[words.index("--project") + 1] = str(run.parent)
        live(words, log, kill_when=last)
        checkpoint = torch.load(last, weights_only=True)
        where = f", killed after epoch {checkpoint['epoch']}, batch {checkpoint['batch']}"
        live([sys.executable, str(new / "train.py"), "--resume", str(last), "--device", "cpu"], log)
    else:
        live(command(new, folder, name, flags, processes), log)
    differing = differences(runs[old], runs[new])
    verdict = f"DIFFERS in {', '.join(differing)}" if differing else "equal to the bit"
    return f"{name:8} {verdict} ({time.monotonic() - started:.0f} s{where})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old_commit", help="a commit, as git names it")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--images", type=int, default=96, help="training images; half as many for validation"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, old = Path(temporary), Path(temporary) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run(
            [*git, "add", "--quiet", "--detach", str(old), options.old_commit], check=True
        )
        try:
            shapes = [
                sys.executable,
                "-m",
                "data.shapes",
                "--root",
                str(folder / "set"),
                "--size",
                "96",
            ]
            counts = ["--train", str(options.images), "--val", str(options.images // 2)]
            subprocess.run([*shapes, *counts], cwd=old, check=True, stdout=subprocess.DEVNULL)
            (folder / "hyp.yaml").write_text(
                "".join(f"{key}: {value}\n" for key, value in HYP.items())
            )
            lines = []
            for name in options.runs:
                lines.append(compare(name, old, ROOT, folder, options.epochs))
                print(lines[-1], flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    return int(any("DIFFERS" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
