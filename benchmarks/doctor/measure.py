r"""The data doctor on planted faults: precision and recall of each check, and of its rankings.

Claim: with the faults of plant.py in bccd, chess_pieces and coco128, each ranking of training.check
has at least the precision at k of cleanlab's object_detection scores on the same detections
(benchmarks/results/).

    python benchmarks/doctor/plant.py --data bccd/dataset.yaml --out planted/bccd
    python benchmarks/doctor/plant.py --data bccd/dataset.yaml --out planted/bccd_files --files
    python train.py --data planted/bccd/data.yaml --weights yolox_nano.pth --img 320 --epochs 20
    python benchmarks/doctor/measure.py --files planted/bccd_files \
        --boxes planted/bccd=runs/train/exp/weights/best.pt --img 320 \
        --cleanlab PEER/bin/python

k is 10, a quarter, a half and all of the number of planted faults; for images 10, 20, 40 and 80. A
fault that the data had before counts as a wrong place, so that precisions are lower bounds; both
rankings suffer from it alike. cleanlab gets the detections from a score of 0.1 on, and runs with
its own probability thresholds and with lower ones, of which the best result of each kind counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.report import add_report_flags, file_report, processor, table, versions
from data.check import __main__ as data_check
from data.check.findings import Diagnosis
from data.check.reading import read_data_set
from data.layouts import Choices
from data.splits import open_dataset
from models.loading import load_backend
from training.check import ranking
from training.check.known_classes import match_known_classes
from training.check.predictions import detect
from training.check.ranking import Boxes
from utils.distributed.world import World
from utils.metrics.matching import box_iou

SCORES = Path(__file__).with_name("cleanlab_scores.py")
THRESHOLDS = (None, (0.3, 0.5), (0.2, 0.3))  # of cleanlab: low, high; None: its own
LEAST_SCORE = 0.1  # of detections that cleanlab gets
SAME_PLACE = 0.5  # IoU of a found box with the dropped one
SAME_BOX = 0.97  # IoU of a label with the planted one, which was rounded
IMAGE_KS = (10, 20, 40, 80)
KINDS = ("dropped", "swapped", "shifted")

# The finding that each planted fault of files belongs to.
CHECK_OF = {
    "damaged image": "images-unreadable",
    "missing label file": "images-without-label-file",
    "emptied label file": "images-unlabeled",
    "duplicate box": "boxes-twice",
    "box outside": "rows-dropped",
    "tiny box": "boxes-tiny",
    "extreme shape": "boxes-extreme",
    "copied": "copies-across-splits",
}


# -------------------------------------------------------------------------- checks without a model


def check(planted: Path, folder: str) -> Diagnosis:
    """Return what data.check says of a data set."""
    return data_check.main([str(planted / "data.yaml"), "--cache-dir", folder, "--shown", "0"])


def rows_of_checks(planted: Path, diagnosis: Diagnosis) -> Iterable[Sequence[object]]:
    """Yield a row for each kind of planted fault: planted, found, right, precision and recall."""
    faults = json.loads((planted / "faults.json").read_text())
    places_of = {}
    for finding in diagnosis.findings:
        places_of[finding.check] = [
            os.path.splitext(os.path.basename(example.path or example.where.split(" line")[0]))[0]
            for example in finding.examples
        ]
    for kind in CHECK_OF:
        wanted = [Path(fault["image"]).stem for fault in faults if fault["kind"] == kind]
        if not wanted:
            continue
        found = places_of.get(CHECK_OF[kind], [])
        right = len(set(wanted) & set(found))
        if kind == "emptied label file":
            # an image whose label file is missing is empty, too
            others = {Path(f["image"]).stem for f in faults if f["kind"] == "missing label file"}
            found = [place for place in found if place not in others]
        precision = f"{right / len(found):.2f}" if found else "-"
        recall = f"{right / len(wanted):.2f}"
        yield planted.name, kind, len(wanted), len(found), right, precision, recall


# --------------------------------------------------------------------------- rankings with a model


class Planted(NamedTuple):
    """Labels and detections of all splits together, and which of them are planted faults."""

    labels: Boxes
    detections: Boxes
    images: int
    classes: int
    dropped_of: np.ndarray  # of each detection the dropped box that it finds, or -1
    swapped: np.ndarray  # numbers of labels
    shifted: np.ndarray
    counts: dict[str, int]
    faults_of_image: np.ndarray


def read(planted: Path, weights: str, image_size: int, folder: str) -> Planted:
    """Return the labels of a planted data set beside a model's detections."""
    world = World(torch.device("cpu"))
    dataset = open_dataset(
        [str(planted / "data.yaml")],
        (),
        world,
        download=False,
        single_class=False,
        cache_dir=folder,
        choices=Choices(0.0),
    )
    model = load_backend(Path(weights), world.device)
    backend, known_classes = match_known_classes(weights, model, dataset)
    examined = read_data_set(dataset, image_size)
    compared = detect(
        backend,
        examined,
        dataset,
        world,
        known_classes=known_classes,
        image_size=image_size,
        canvas=None,
        batch_size=16,
        workers=0,
        iou=0.6,
    )

    paths = examined.paths()
    sizes = np.concatenate([split.labels.sizes for split in examined.splits])
    first = np.cumsum([0, *(len(split.labels) for split in examined.splits)])
    labels = joined([part.labels for part in compared], first)
    detections = joined([part.detections for part in compared], first)

    number_of = {os.path.relpath(path, planted): number for number, path in enumerate(paths)}
    dropped_of = np.full(len(detections), -1)
    found: dict[str, list[int]] = {"swapped": [], "shifted": []}
    counts = dict.fromkeys(KINDS, 0)
    faults_of_image = np.zeros(len(paths), int)
    for fault in json.loads((planted / "faults.json").read_text()):
        kind = fault["kind"]
        if kind not in KINDS:
            continue
        image = number_of[fault["image"]]
        counts[kind] += 1
        faults_of_image[image] += 1
        box = np.array(fault["box"]) * np.tile(sizes[image], 2)
        box[2:] -= box[:2]
        if kind == "dropped":
            dropped_of[overlapping(detections, image, box, SAME_PLACE)] = counts[kind]
        else:
            same = overlapping(labels, image, box, SAME_BOX)
            found[kind] += same[labels.classes[same] == int(fault["label"])][:1].tolist()
    return Planted(
        labels,
        detections,
        len(paths),
        len(dataset.names),
        dropped_of,
        np.array(found["swapped"]),
        np.array(found["shifted"]),
        counts,
        faults_of_image,
    )


def joined(parts: Sequence[Boxes], first: np.ndarray) -> Boxes:
    """Return the boxes of all splits as those of one, given the first image of each."""
    return Boxes(
        np.concatenate([part.images + start for part, start in zip(parts, first, strict=False)]),
        np.concatenate([part.classes for part in parts]),
        np.concatenate([part.boxes_xywh for part in parts]),
        np.concatenate([part.scores for part in parts]),
    )


def overlapping(boxes: Boxes, image: int, box_xywh: np.ndarray, least: float) -> np.ndarray:
    """Return the boxes of an image that overlap a box."""
    own = np.flatnonzero(boxes.images == image)
    others = np.repeat(box_xywh[:, None], len(own), 1)
    return own[box_iou(boxes.boxes_xywh[own].T, others, np.zeros(len(own), bool)) >= least]


def our_rankings(planted: Planted) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return whether each place of our rankings is planted, by kind, and a score of each image."""
    found = ranking.overlaps(planted.labels, planted.detections)
    both = planted.labels, planted.detections, found
    missing = ranking.missing_labels(*both)
    swapped = ranking.swapped_classes(*both)
    shifted = ranking.badly_placed(*both)
    right = {
        "dropped": each_once(planted.dropped_of[missing.detections]),
        "swapped": np.isin(swapped.labels, planted.swapped),
        "shifted": np.isin(shifted.labels, planted.shifted),
    }
    return right, ranking.image_scores(*both[:2], [missing, swapped, shifted], planted.images)


def cleanlab_rankings(
    planted: Planted, python: str, thresholds: tuple[float, float] | None
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the same of cleanlab's scores: low ones first, without those that it does not give."""
    with tempfile.TemporaryDirectory() as name:
        boxes, scores = Path(name, "boxes.npz"), Path(name, "scores.npz")
        kept = planted.detections.scores >= LEAST_SCORE
        values: dict[str, Any] = {"counts": [planted.images, planted.classes]}
        for prefix, part, chosen in (
            ("label", planted.labels, slice(None)),
            ("detection", planted.detections, kept),
        ):
            values[f"{prefix}_images"] = part.images[chosen]
            values[f"{prefix}_classes"] = part.classes[chosen]
            xywh = part.boxes_xywh[chosen]
            values[f"{prefix}_boxes"] = np.concatenate([xywh[:, :2], xywh[:, :2] + xywh[:, 2:]], 1)
        values["detection_scores"] = planted.detections.scores[kept]
        np.savez(boxes, **values)
        flags = ["--thresholds", *map(str, thresholds)] if thresholds else []
        subprocess.run([python, str(SCORES), str(boxes), str(scores), *flags], check=True)
        given = dict(np.load(scores))

    missing = lowest_first(given["missing"])
    right = {
        "dropped": each_once(planted.dropped_of[kept][missing]),
        "swapped": np.isin(lowest_first(given["swapped"]), planted.swapped),
        "shifted": np.isin(lowest_first(given["badly_placed"]), planted.shifted),
    }
    return right, 1 - given["images"]


def lowest_first(scores: np.ndarray) -> np.ndarray:
    """Return the places of scores below 1 in ascending order."""
    order = np.argsort(np.nan_to_num(scores, nan=1.0), kind="stable")
    return order[np.nan_to_num(scores[order], nan=1.0) < 1]


def each_once(dropped: np.ndarray) -> np.ndarray:
    """Return which places find a dropped box that no earlier place has found."""
    right = np.zeros(len(dropped), bool)
    _, first = np.unique(dropped, return_index=True)
    right[first] = True
    return right & (dropped >= 0)


def precision_at(right: np.ndarray, k: int) -> float:
    """Return the share of right ones among the first k places; missing places are wrong."""
    return float(right[:k].sum()) / k


def rows_of_rankings(name: str, planted: Planted, python: str) -> Iterable[Sequence[object]]:
    """Yield a row for each kind of fault: precisions at k of ours and of cleanlab's."""
    ours, our_images = our_rankings(planted)
    peers = []
    if python:
        peers = [cleanlab_rankings(planted, python, thresholds) for thresholds in THRESHOLDS]
    for kind in KINDS:
        count = planted.counts[kind]
        ks = (10, count // 4, count // 2, count)
        precisions = [precision_at(ours[kind], k) for k in ks]
        row = [name, kind, "/".join(map(str, ks)), shown(precisions)]
        results = [[precision_at(right[kind], k) for k in ks] for right, _ in peers]
        yield [*row, shown(results[0]), shown(np.max(results, 0))] if peers else row

    faulty = planted.faults_of_image > 0
    ks = IMAGE_KS
    precisions = [precision_at(faulty[np.argsort(-our_images, kind="stable")], k) for k in ks]
    row = [name, f"images ({faulty.mean():.0%} faulty)", "/".join(map(str, ks)), shown(precisions)]
    if peers:
        by_peer = faulty[np.argsort(-peers[0][1], kind="stable")]
        both = shown([precision_at(by_peer, k) for k in ks])
        row += [both, both]
    yield row


def shown(precisions: Iterable[float]) -> str:
    return " ".join(f"{value:.2f}" for value in precisions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--files", nargs="*", type=Path, default=[], help="data sets with faults of files")
    add("--boxes", nargs="*", default=[], help="data sets with faults of boxes, FOLDER=WEIGHTS")
    add("--img", nargs="+", type=int, default=[320], help="long side, for all or for each")
    add("--cleanlab", default="", help="a Python with cleanlab")
    add_report_flags(parser)
    options = parser.parse_args()

    pairs = [word.rpartition("=")[::2] for word in options.boxes]
    sizes = options.img * len(pairs) if len(options.img) == 1 else options.img
    checks: list[Sequence[object]] = []
    rankings: list[Sequence[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for planted in [*options.files, *(Path(name) for name, _ in pairs)]:
            checks += rows_of_checks(planted, check(planted, folder))
        for (name, weights), image_size in zip(pairs, sizes, strict=True):
            planted = read(Path(name), weights, image_size, folder)
            rankings += rows_of_rankings(Path(name).name, planted, options.cleanlab)

    peer = ["cleanlab", "cleanlab, best thresholds"] if options.cleanlab else []
    lines = [
        f"{options.about}, {processor()}, {versions()}",
        "",
        table(["data", "fault", "planted", "found", "right", "precision", "recall"], checks),
        "",
        table(["data", "fault", "k", "training.check", *peer], rankings),
    ]
    file_report(lines, options.out)


if __name__ == "__main__":
    main()
