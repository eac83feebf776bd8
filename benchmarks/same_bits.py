"""Whether this tree trains to the same bits as an older commit, for changes that must not change
results.

Claim: a run of the old commit and a run of this tree, with the same flags on the same data, end
with the same bits in the weights, the averaged weights, the optimizer's and all other state, and in
results.csv (except times).

    python benchmarks/same_bits.py OLD_COMMIT [--runs one adamw two killed ...] [--epochs 3]

one          one process, float32, every augmentation, multi-scale, image weights
adamw        AdamW, no augmentation, cosine learning rate
muon         Muon, no augmentation
anchor-free  yolo11n, every augmentation
yolox        yolox_nano, every augmentation
two          two processes (gloo) with --sync-bn
killed       this tree's run is killed with SIGKILL in the middle of an epoch and resumed

The old commit is checked out into a temporary worktree. Runs are started as users start them. A run
that the old commit refuses (exit code 2), because it lacks a flag or a model table, is "not in
OLD_COMMIT", with the commit's sentence. Entries of a checkpoint that have another name since then
are compared under the new one (RENAMED). The exit code is 1 if a run differs, or none is compared.

Vector instructions: torch computes exp, log or sigmoid of most elements of an array in vectors, and
of the rest one by one, with another last bit. So a commit that computes the same numbers in other
arrays (the losses of all levels at once, say) trains to other bits although its arithmetic is the
same. With ATEN_CPU_CAPABILITY=default the last bit does not depend on the place in the array, and
such commits can be compared; a changed order of additions still shows:

    ATEN_CPU_CAPABILITY=default python benchmarks/same_bits.py OLD_COMMIT
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.trainings.bits import rows_without_time, same, train_command
from tests.support.launching import Job, launched

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = (
    "--cfg yolov5n.yaml --img 96 --batch 16 --device cpu --amp fp32 --workers 1 "
    "--noplots --optimizer SGD"
)
HYP = """\
# The default hyper-parameters with every augmentation turned on.
hsv_h: 0.02
hsv_s: 0.6
hsv_v: 0.4
degrees: 10.0
translate: 0.1
scale: 0.5
shear: 3.0
perspective: 0.0005
flipud: 0.3
fliplr: 0.5
mosaic: 0.8
mixup: 0.3
copy_paste: 0.4
lr0: 0.01
fl_gamma: 0.5
warmup_epochs: 1.0
"""
TIMEOUT_S = 1800.0  # for a run
KILLED_AFTER_S = 1.5  # after its first checkpoint: it has done steps that no checkpoint holds
REFUSED = 2  # exit code for the user's input

# Entries of last.pt that are compared, by their names in this tree.
PROGRESS = ("epoch", "batch", "losses", "results", "pending")
STATE = ("model", "ema", "ema_updates", "optimizer", "scaler", "guard", "statistics", "random")
# Names of entries in older commits, and in this tree.
RENAMED = {"open": "pending", "rows": "results", "steps": "guard"}


@dataclass(frozen=True)
class Run:
    """A training that is compared. flags: those that follow SETTINGS, of which the last counts."""

    flags: str
    processes: int = 1
    is_killed: bool = False


RUNS = {
    "one": Run(
        "--hyp {hyp} --multi-scale --image-weights --label-smoothing 0.05 --patience 50",
    ),
    "adamw": Run("--optimizer AdamW --hyp hyp.no-augmentation.yaml --cos-lr"),
    "muon": Run("--optimizer Muon --hyp hyp.no-augmentation.yaml"),
    "anchor-free": Run("--cfg yolo11n.yaml --hyp {hyp}"),
    "yolox": Run("--cfg yolox_nano.yaml --hyp {hyp}"),
    "two": Run("--hyp {hyp} --sync-bn", processes=2),
    "killed": Run("--hyp {hyp} --save-minutes 0.01", is_killed=True),
}


class RefusedError(Exception):
    """A tree does not accept the flags or the model table of a run."""


@dataclass(frozen=True)
class Scene:
    """What the runs share: both trees, and the folder for data, caches, run folders and output."""

    old: Path
    new: Path
    folder: Path
    epochs: int

    def run_folder(self, tree: Path, name: str) -> Path:
        return self.folder / f"runs-{tree.name}" / name

    def command(self, tree: Path, name: str) -> list[str]:
        """The command that starts one of RUNS with a tree."""
        flags = RUNS[name].flags.format(hyp=self.folder / "hyp.yaml")
        return train_command(
            tree / "train.py",
            self.run_folder(tree, name),
            data=self.folder / "set" / "shapes.yaml",
            cache=self.folder / "cache" / tree.name,
            processes=RUNS[name].processes,
            flags=f"{SETTINGS} {flags} --epochs {self.epochs}".split(),
        )

    def finish(self, command: Sequence[str]) -> None:
        """Run a command to its end.

        Raises RefusedError if it refuses its flags, RuntimeError if it fails otherwise.
        """
        with launched(command, self.folder / "output") as job:
            code = job.end(TIMEOUT_S)
            if code == 0:
                return

            output = job.out + job.err
            is_refusal = code == REFUSED or re.search(rf"exitcode\s*: {REFUSED}\b", output)
            if is_refusal:
                raise RefusedError(error_line(output))
            raise RuntimeError(f"{' '.join(command)}\nended with {code}:\n{output[-4000:]}")

    def kill(self, command: Sequence[str], last: Path) -> None:
        """Run a command, and kill it soon after it has written its checkpoint `last`."""
        with launched(command, self.folder / "output") as job:
            wait_for(last, job)
            time.sleep(KILLED_AFTER_S)
            if job.process.poll() is not None:
                raise RuntimeError("the run that is to be killed has ended: give more --epochs")
            os.killpg(job.process.pid, signal.SIGKILL)
            job.end(TIMEOUT_S)


def wait_for(file: Path, job: Job) -> None:
    """Wait until a job has written a file, or has ended."""
    while not file.exists() and job.process.poll() is None:
        time.sleep(0.02)


def error_line(output: str) -> str:
    """The sentence with which a run refuses its input; "" if it printed none."""
    found = re.search(r"^.*\berror: (.*)$", output, re.MULTILINE)
    return found.group(1) if found else ""


# ---------------------------------------------------------------------- comparison


def compare(name: str, scene: Scene) -> str:
    """Train one of RUNS with both trees; return the result as one line."""
    started = time.monotonic()
    try:
        scene.finish(scene.command(scene.old, name))
    except RefusedError as error:
        return f"{name:11} not in OLD_COMMIT ({error})"

    where = ""
    if RUNS[name].is_killed:
        where = f", killed after {kill_and_resume(name, scene)}"
    else:
        scene.finish(scene.command(scene.new, name))

    differing = differences(scene.run_folder(scene.old, name), scene.run_folder(scene.new, name))
    verdict = f"DIFFERS in {', '.join(differing)}" if differing else "equal to the bit"
    return f"{name:11} {verdict} ({time.monotonic() - started:.0f} s{where})"


def kill_and_resume(name: str, scene: Scene) -> str:
    """Kill a run of this tree and resume it; return the epoch and batch that it resumed from."""
    last = scene.run_folder(scene.new, name) / "weights" / "last.pt"
    scene.kill(scene.command(scene.new, name), last)
    saved = read_checkpoint(last)

    script = str(scene.new / "train.py")
    scene.finish([sys.executable, script, "--resume", str(last), "--device", "cpu"])
    return f"epoch {saved['epoch']}, batch {saved['batch']}"


def differences(old: Path, new: Path) -> list[str]:
    """The parts of two run folders that are not equal to the bit."""
    differing = []
    for file, entries in (("last.pt", (*PROGRESS, *STATE)), ("best.pt", ("model",))):
        one = read_checkpoint(old / "weights" / file)
        other = read_checkpoint(new / "weights" / file)
        for entry in entries:
            in_both = entry in one and entry in other
            if not in_both or not same(one[entry], other[entry]):
                differing.append(f"{file} {entry}")

    if rows_without_time(old) != rows_without_time(new):
        differing.append("results.csv")
    return differing


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The entries of a checkpoint of either tree, by their names in this tree."""
    saved = torch.load(path, weights_only=True)
    return {RENAMED.get(name, name): value for name, value in saved.items()}


# ---------------------------------------------------------------------- the command


@contextmanager
def checked_out(commit: str, tree: Path) -> Iterator[None]:
    """A commit in a worktree of its own, which is removed at the end of the block."""
    worktree = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*worktree, "add", "--quiet", "--detach", str(tree), commit], check=True)
    try:
        yield
    finally:
        subprocess.run([*worktree, "remove", "--force", str(tree)], check=True)


def draw_data(tree: Path, folder: Path, images: int) -> None:
    """Draw generated shapes with a tree: `images` for training, half as many for validation."""
    command = [sys.executable, "-m", "data.shapes", "--root", str(folder), "--size", "96"]
    command += ["--train", str(images), "--val", str(images // 2)]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)


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

    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scene = Scene(folder / "old-commit", ROOT, folder, options.epochs)
        with checked_out(options.old_commit, scene.old):
            draw_data(scene.old, folder / "set", options.images)
            (folder / "hyp.yaml").write_text(HYP)

            for name in options.runs:
                lines.append(compare(name, scene))
                print(lines[-1], flush=True)

    differs = any("DIFFERS" in line for line in lines)
    compared = [line for line in lines if "not in OLD_COMMIT" not in line]
    return int(differs or not compared)


if __name__ == "__main__":
    sys.exit(main())
