"""Real trainings, as a user starts them: with decoded images in RAM, and in the GPU's memory."""

import csv
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import train
from benchmarks.on_gpu.commands import Done, run_command
from benchmarks.on_gpu.stage import Finding, Scope
from data.shapes.generate import generate
from data.shapes.plan import NAMES

LONG = 5  # epochs
SAID = (
    "memory",
    "cache",
    "recipe",
    "batch",
    "best.pt",
)  # words of the lines of a training's log that are reported


# ---------------------------------------------------------------------- data


def draw_data(scope: Scope) -> Iterator[Finding]:
    """The generated shapes, drawn by several processes: each draws a part with a seed of its
    own.
    """
    if scope.given_data:
        yield Finding(f"data: {scope.given_data}")
        return
    sizes = scope.sizes
    parts = max(1, min(os.cpu_count() or 1, sizes.val_images // 4))
    drawn = [
        (
            scope.folder / f"shapes{seed}",
            share(sizes.train_images, parts),
            share(sizes.val_images, parts),
            seed,
        )
        for seed in range(parts)
    ]
    with ProcessPoolExecutor(parts, mp_context=get_context("fork")) as pool:
        list(pool.map(draw_part, drawn, [max(sizes.img, 64)] * parts))

    lines = [f"path: {scope.folder}"]
    for split in ("train", "val"):
        folders = [f"{folder.name}/images/{split}" for folder, *_ in drawn]
        lines.append(f"{split}: [{', '.join(folders)}]")
    Path(scope.data).write_text("\n".join([*lines, f"names: [{', '.join(NAMES)}]", ""]))
    yield Finding(
        f"data: {parts * drawn[0][1]} train and {parts * drawn[0][2]} val images of generated "
        "shapes"
    )


def share(images: int, parts: int) -> int:
    """Images of each part, rounded up."""
    return math.ceil(images / parts)


def draw_part(part: tuple[Path, int, int, int], size: int) -> None:
    """Draw a part: its folder, the numbers of images of both splits, and its seed."""
    folder, train_images, val_images, seed = part
    generate(folder, train=train_images, val=val_images, size=size, seed=seed)


# ---------------------------------------------------------------------- trainings


def train_from_ram(scope: Scope) -> Iterator[Finding]:
    """A training with `--cache ram`."""
    yield from one_training(scope, "ram", "--cache", "ram", learns=is_long(scope))


def train_from_device(scope: Scope) -> Iterator[Finding]:
    """A training with `--cache device`: the GPU holds the decoded images and draws the augmented
    ones.
    """
    yield from one_training(scope, "device", "--cache", "device", learns=is_long(scope))


def find_batch_size(scope: Scope) -> Iterator[Finding]:
    """`--batch-size -1`: the search for the largest batch, and an epoch with it."""
    words = [
        "--cfg",
        scope.sizes.autobatch_model,
        "--batch-size",
        "-1",
        "--epochs",
        "1",
        "--cache",
        "ram",
    ]
    yield from one_training(scope, "autobatch", *words, learns=False)


def is_long(scope: Scope) -> bool:
    """Whether the trainings are long enough for their losses to fall."""
    return scope.sizes.epochs >= LONG


def one_training(scope: Scope, name: str, *flags: str, learns: bool) -> Iterator[Finding]:
    """Train, and report the exit code, the speed and the losses. flags: after the common ones,
    which they override.

    learns: whether the losses are expected to fall.
    """
    done = run_command(
        train.run, training_words(scope, name, *flags), scope.folder / "output" / f"{name}.txt"
    )
    yield from done.findings(f"train.py {' '.join(flags)}", said(done))
    if done.code == 0:
        yield from learned(scope.folder / "runs" / name / "results.csv", learns)


def training_words(scope: Scope, name: str, *flags: str) -> list[str]:
    """The arguments of a training whose run folder is runs/NAME in the scope's folder."""
    sizes = scope.sizes
    words = ["--cfg", sizes.model, "--img", str(sizes.img), "--batch", str(sizes.batch)]
    words += [
        "--epochs",
        str(sizes.epochs),
        "--workers",
        str(sizes.workers),
        "--device",
        scope.device,
    ]
    words += ["--data", scope.data, "--cache-dir", str(scope.cache), "--noplots"]
    return [*words, "--project", str(scope.folder / "runs"), "--name", name, "--exist-ok", *flags]


def said(done: Done) -> list[str]:
    """What a training's log says about memory, caches, the recipe and speed."""
    epochs = [line for line in done.lines if re.match(r"\d+/\d+ .* img/s", line)]
    notes = [
        line for line in done.lines if any(word in line for word in SAID) and line not in epochs
    ]
    return [*notes, *epochs[-2:]]


def learned(file: Path, learns: bool) -> Iterator[Finding]:
    """The first and the last row of results.csv: all numbers finite, and the training loss lower in
    the end.
    """
    with open(file) as opened:
        rows = [
            {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(opened)
        ]
    numbers = [value for row in rows for value in row.values()]
    yield Finding(
        f"results.csv: {len(rows)} rows, all numbers finite", all(map(math.isfinite, numbers))
    )

    totals = [
        sum(value for name, value in row.items() if re.match(r"train/.*_loss", name))
        for row in rows
    ]
    text = f"training loss {totals[0]:.4f} in the first epoch, {totals[-1]:.4f} in the last"
    yield Finding(text, totals[-1] < totals[0] if learns else None)
    best = max(row.get("metrics/mAP_0.5:0.95", 0.0) for row in rows)
    yield Finding(f"best mAP50-95: {best:.4f}", values={"map": best})
