r"""How far apart right ports and ports with a planted fault are in tests/test_families.py.

Claim: for each family, seed and instruction set the median IoU of ten drawn shapes is above
tests.test_families.LEARNED, and with each planted fault it is below. What is not noticed, of the
faults here: a port without a class term whose features happen to tell the colors apart.

    python benchmarks/trainings/narrow_families.py --seeds 20 --faults
    ATEN_CPU_CAPABILITY=default python benchmarks/trainings/narrow_families.py --seeds 5 \
        --setting "ATEN_CPU_CAPABILITY=default"
    python benchmarks/trainings/narrow_families.py --report --out narrow.md

Each training is stored in --work and is not trained again. --setting names what the environment
sets; the report has a column for each. Faults of detection are planted in the models of seed 0,
faults of training in a training of their own.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import add_report_flags, command_line, file_report, table, versions
from models.detector import Detector
from tests.support import overfitting
from tests.support.overfitting import (
    FAMILIES,
    FEW,
    IMAGES,
    NAMES,
    Trained,
    few_steps,
    new_model,
    overfit_family,
    shape_ious,
    write_narrow_table,
)
from tests.test_families import KEPT, LEARNED
from utils.files.writers import write_json
from utils.printable import did_you_mean, printable
from utils.terminal import run_and_exit

Fault = Callable[[], Any]  # a context manager in which the fault is there
Change = Callable[[Detector, Tensor, Tensor], tuple[Tensor, Tensor]]


@contextmanager
def detecting(
    change: Callable[[Detector, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> Iterator[None]:
    """A fault of detection: boxes_xyxy [B, N, 4] and scores [B, N, C] are changed."""
    decode = Detector.decode

    def changed(self: Detector, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        boxes_xyxy, scores = decode(self, *arguments, **options)
        return change(self, boxes_xyxy, scores)

    with mock.patch.object(Detector, "decode", changed):
        yield


@contextmanager
def channels_swapped() -> Iterator[None]:
    """A fault of detection: the images are BGR."""
    forward = Detector.forward

    def changed(self: Detector, images: Tensor) -> Any:
        return forward(self, images.flip(1))

    with mock.patch.object(Detector, "forward", changed):
        yield


@contextmanager
def targets_changed(change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """A fault of training: targets [T, 6], before they are padded, are changed."""
    pad_targets = overfitting.pad_targets

    def changed(targets: Tensor) -> Tensor:
        return pad_targets(change(targets.clone()))

    with mock.patch.object(overfitting, "pad_targets", changed):
        yield


@contextmanager
def gains_changed(**gains: float) -> Iterator[None]:
    """A fault of training: these gains of the loss are others."""
    loss_gains = overfitting.loss_gains

    def changed(*arguments: Any, **options: Any) -> Any:
        return replace(loss_gains(*arguments, **options), **gains)

    with mock.patch.object(overfitting, "loss_gains", changed):
        yield


def half_a_cell_off(detector: Detector, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return boxes + min(detector.strides) / 2, scores


def one_fifth_larger(_: Detector, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    low, high = boxes.split(2, -1)
    growth = (high - low) * 0.1
    return torch.cat([low - growth, high + growth], -1), scores


def classes_rolled(_: Detector, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return boxes, scores.roll(1, -1)


def scores_reversed(_: Detector, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    return boxes, 1 - scores


def moved_4_px(targets: Tensor) -> Tensor:
    targets[:, 2:] += 4
    return targets


def sides_swapped(targets: Tensor) -> Tensor:
    targets[:, 2:] = targets[:, [3, 2, 5, 4]]
    return targets


def of_next_image(targets: Tensor) -> Tensor:
    targets[:, 0] = (targets[:, 0] + 1) % IMAGES
    return targets


DETECTION_FAULTS: dict[str, Fault] = {
    "boxes half a cell off": lambda: detecting(half_a_cell_off),
    "boxes a fifth larger": lambda: detecting(one_fifth_larger),
    "classes in another order": lambda: detecting(classes_rolled),
    "scores reversed": lambda: detecting(scores_reversed),
    "BGR for RGB": channels_swapped,
}
TRAINING_FAULTS: dict[str, Fault] = {
    "targets 4 px off": lambda: targets_changed(moved_4_px),
    "targets of the next image": lambda: targets_changed(of_next_image),
    "x and y swapped in the targets": lambda: targets_changed(sides_swapped),
    "no box term": lambda: gains_changed(box=0.0),
    "no class term": lambda: gains_changed(cls=0.0),
}


def learned(detector: Detector) -> dict[str, float]:
    """Return the median IoU of a detector."""
    return {"iou": median(shape_ious(detector))}


def right_port(folder: Path, *, family: str, seed: int, faults: bool) -> dict[str, Any]:
    """Train a family from scratch; return what is measured.

    faults: also with each fault of detection.
    """
    trained = overfit_family(folder, family, seed)
    values: dict[str, Any] = learned(trained.detector)
    for name, fault in DETECTION_FAULTS.items() if faults else ():
        with fault():
            values[name] = learned(trained.detector)
    return values | losses_after_few_steps(folder, trained, family, seed)


def losses_after_few_steps(
    folder: Path, trained: Trained, family: str, seed: int
) -> dict[str, float]:
    """Return the losses after a few steps from trained and from random weights.

    They are shares of the first loss of random weights.
    """
    first = trained.losses[0]
    random = new_model(str(write_narrow_table(folder, family)), "", NAMES, seed)
    trained.detector.requires_grad_(True)
    return {
        "kept": few_steps(trained.detector, NAMES, family).losses[-1] / first,
        "random": few_steps(random, NAMES, family).losses[-1] / first,
    }


def faulty_port(folder: Path, *, family: str, fault: Fault) -> dict[str, float]:
    """Train a family with a fault; return what is measured."""
    with fault():
        return learned(overfit_family(folder, family).detector)


def measure(options: argparse.Namespace) -> None:
    """Train what is asked for and is not stored yet."""
    for family in options.families:
        for seed in range(options.seeds):
            # faults of detection are planted once
            planted = options.faults and seed == 0
            kind = "right with faults" if planted else "right"
            port = partial(right_port, family=family, seed=seed, faults=planted)
            store(options, {"family": family, "kind": kind, "seed": seed}, port)

        for name, fault in TRAINING_FAULTS.items() if options.faults else ():
            port = partial(faulty_port, family=family, fault=fault)
            store(options, {"family": family, "kind": name, "seed": 0}, port)


def store(
    options: argparse.Namespace, what: dict[str, Any], run: Callable[[Path], dict[str, Any]]
) -> None:
    """Write what `run` measures into --work, unless it is there. what: names the training."""
    what = what | {"setting": options.setting}
    name = "_".join(str(value) for value in what.values()).replace(" ", "-").replace("/", "-")
    file = options.work / f"{name}.json"
    if file.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        values = run(Path(folder))
    print(f"{name}: {values['iou']:.3f}", flush=True)
    write_json(file, what | {"values": values})


def report(options: argparse.Namespace) -> list[str]:
    """Return the lines of the report, of all that is stored in --work."""
    stored = [json.loads(file.read_text()) for file in sorted(options.work.glob("*.json"))]
    right = [one for one in stored if one["kind"].startswith("right")]
    lowest = min(one["values"]["iou"] for one in right)
    kept = max(one["values"]["kept"] for one in right)
    random = min(one["values"]["random"] for one in right)
    return [
        "# Narrow families on eight drawn images: right ports and planted faults",
        "",
        f"{options.about}, {versions()}, {date.today()}. What tests/test_families.py asks: a "
        f"median IoU of ten shapes above {LEARNED}.",
        "",
        command_line(),
        "",
        f"Right ports, {len(right)} trainings: a median IoU of {lowest:.3f} or more.",
        "",
        f"Loss after {FEW} steps, as a share of a random model's first: at most {kept:.3f} from "
        f"the checkpoint, at least {random:.3f} from random weights; the test asks for {KEPT}.",
        "",
        "Right ports, the least of each family:",
        "",
        right_ports_table(right),
        "",
        "Planted faults, the greatest of all families:",
        "",
        faults_table(stored),
    ]


def right_ports_table(right: Sequence[dict[str, Any]]) -> str:
    """Return the least median IoU of each family and setting."""
    settings = sorted({one["setting"] for one in right})
    rows = []
    for family in sorted({one["family"] for one in right}):
        cells = [f"`{family}`"]
        for setting in settings:
            same = [one for one in right if (one["family"], one["setting"]) == (family, setting)]
            values = [one["values"] for one in same]
            least = "-"
            if values:
                iou = min(each["iou"] for each in values)
                seeds = {one["seed"] for one in same}
                least = f"{iou:.3f} ({len(seeds)} seeds)"
            cells.append(least)
        rows.append(cells)
    return table(["family", *settings], rows)


def faults_table(stored: Sequence[dict[str, Any]]) -> str:
    """Return the greatest median IoU with each planted fault."""
    planted: dict[str, list[dict[str, float]]] = defaultdict(list)
    for one in stored:
        if one["kind"] in TRAINING_FAULTS:
            planted[one["kind"]].append(one["values"])
        for name in DETECTION_FAULTS:
            if name in one["values"]:
                planted[name].append(one["values"][name])

    rows = []
    for name, values in planted.items():
        iou = max(each["iou"] for each in values)
        missed = sum(each["iou"] > LEARNED for each in values)
        rows.append([name, len(values), f"{iou:.3f}", missed])
    return table(["fault", "families", "median IoU", "not noticed"], rows)


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--families", nargs="+", default=FAMILIES, help="tables in models/ (default: all tested)")
    add("--seeds", type=int, default=1, help="trainings of each right port (default: 1)")
    add("--faults", action="store_true", help="also plant faults")
    add("--setting", default="own", help="what the environment sets, as text (default: own)")
    add("--threads", type=int, default=1, help="of torch (default: 1)")
    add("--report", action="store_true", help="train nothing, report what is stored")
    work = Path("runs", "narrow_families")
    add("--work", type=Path, default=work, help=f"folder of the trainings (default: {work})")
    add_report_flags(parser)
    options = parser.parse_args(arguments)
    for family in options.families:
        if family not in FAMILIES:
            hint = did_you_mean(family, FAMILIES)
            raise ValueError(f"--families {printable(family)}: not one of the test{hint}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments)
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(options.threads)
    if not options.report:
        measure(options)
    file_report(report(options), options.out)


if __name__ == "__main__":
    run_and_exit(main)
