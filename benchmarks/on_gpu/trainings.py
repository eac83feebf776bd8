"""Real trainings, as a user starts them: with decoded images in RAM, and in the GPU's memory."""

import csv
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import train
from benchmarks.on_gpu.commands import Done, run_command
from benchmarks.on_gpu.stage import Finding, Scope
from data.shapes.generate import generate
from data.shapes.plan import NAMES

LONG = 5  # epochs
# Words of the lines of a training's log that are reported.
SAID = ("memory", "cache", "recipe", "batch", "best.pt")


# ---------------------------------------------------------------------- data


def draw_data(scope: Scope) -> Iterator[Finding]:
    """The generated shapes, drawn by several processes, each a part with a seed of its own."""
    if scope.given_data:
        yield Finding(f"data: {scope.given_data}")
        return

    sizes = scope.sizes
    parts = max(1, min(os.cpu_count() or 1, sizes.val_images // 4))
    draw_part = partial(
        generate,
        train=math.ceil(sizes.train_images / parts),
        val=math.ceil(sizes.val_images / parts),
        size=max(sizes.img, 64),
    )
    with ProcessPoolExecutor(parts, mp_context=get_context("fork")) as pool:
        drawn = [
            pool.submit(draw_part, scope.folder / f"shapes{seed}", seed=seed)
            for seed in range(parts)
        ]
        for part in drawn:
            part.result()

    lines = [f"path: {scope.folder}"]
    for split in ("train", "val"):
        folders = [f"shapes{seed}/images/{split}" for seed in range(parts)]
        lines.append(f"{split}: [{', '.join(folders)}]")
    lines.append(f"names: [{', '.join(NAMES)}]")
    Path(scope.data).write_text("\n".join([*lines, ""]))

    train_images = parts * draw_part.keywords["train"]
    val_images = parts * draw_part.keywords["val"]
    yield Finding(f"data: {train_images} train and {val_images} val images of generated shapes")


# ---------------------------------------------------------------------- trainings


def train_from_ram(scope: Scope) -> Iterator[Finding]:
    """A training with `--cache ram`."""
    yield from one_training(scope, "ram", "--cache", "ram", learns=is_long(scope))


def train_from_device(scope: Scope) -> Iterator[Finding]:
    """A training with `--cache device`: the GPU holds decoded images and draws augmented ones."""
    yield from one_training(scope, "device", "--cache", "device", learns=is_long(scope))


def find_batch_size(scope: Scope) -> Iterator[Finding]:
    """`--batch-size -1`: the search for the largest batch, and an epoch with it."""
    words = f"--cfg {scope.sizes.autobatch_model} --batch-size -1 --epochs 1 --cache ram"
    yield from one_training(scope, "autobatch", *words.split(), learns=False)


def is_long(scope: Scope) -> bool:
    """Whether the trainings are long enough for their losses to fall."""
    return scope.sizes.epochs >= LONG


def one_training(scope: Scope, name: str, *flags: str, learns: bool) -> Iterator[Finding]:
    """Train, and report the exit code, the speed and the losses.

    flags: after the common ones, which they override. learns: whether the losses are expected to
    fall.
    """
    words = training_words(scope, name, *flags)
    done = run_command(train.run_script, words, scope.folder / "output" / f"{name}.txt")
    yield from done.findings(f"train.py {' '.join(flags)}", said(done))
    if done.code == 0:
        yield from learned(scope.folder / "runs" / name / "results.csv", learns)


def training_words(scope: Scope, name: str, *flags: str) -> list[str]:
    """The arguments of a training whose run folder is runs/NAME in the scope's folder."""
    sizes = scope.sizes
    words = ["--cfg", sizes.model, "--img", str(sizes.img), "--batch", str(sizes.batch)]
    words += ["--epochs", str(sizes.epochs), "--workers", str(sizes.workers)]
    words += ["--device", scope.device, "--data", scope.data, "--cache-dir", str(scope.cache)]
    words += ["--project", str(scope.folder / "runs"), "--name", name, "--exist-ok", "--noplots"]
    return [*words, *flags]


def said(done: Done) -> list[str]:
    """What a training's log says about memory, caches, the recipe and speed."""
    epochs = [line for line in done.lines if re.match(r"\d+/\d+ .* img/s", line)]
    others = [line for line in done.lines if line not in epochs]
    notes = [line for line in others if any(word in line for word in SAID)]
    return [*notes, *epochs[-2:]]


def learned(file: Path, learns: bool) -> Iterator[Finding]:
    """results.csv: all numbers finite, and the training loss lower in the end."""
    with open(file) as opened:
        texts = list(csv.DictReader(opened))
    rows = [{name: float(text) for name, text in row.items() if text} for row in texts]

    numbers = [value for row in rows for value in row.values()]
    is_finite = all(map(math.isfinite, numbers))
    yield Finding(f"results.csv: {len(rows)} rows, all numbers finite", is_finite)

    first = training_loss(rows[0])
    last = training_loss(rows[-1])
    text = f"training loss {first:.4f} in the first epoch, {last:.4f} in the last"
    yield Finding(text, last < first if learns else None)

    best = max(row.get("metrics/mAP_0.5:0.95", 0.0) for row in rows)
    yield Finding(f"best mAP50-95: {best:.4f}", values={"map": best})


def training_loss(row: dict[str, float]) -> float:
    """The sum of the training's loss terms in a row of results.csv."""
    return sum(value for name, value in row.items() if re.match(r"train/.*_loss", name))
