"""The share of the boxes that anchors reach: those of the tables, and fitted ones."""

import numpy as np
from numpy.typing import NDArray

from data.check.findings import Table
from data.check.reading import Examined
from utils.metrics.anchors import GOOD_RECALL, MIN_SIDE_PX, best_possible_recall, fit_anchors

# width, height in pixels: of models/yolov5.yaml and models/yolov3.yaml
DEFAULT_ANCHORS = np.array(
    [
        (10, 13),
        (16, 30),
        (33, 23),
        (30, 61),
        (62, 45),
        (59, 119),
        (116, 90),
        (156, 198),
        (373, 326),
    ],
    np.float64,
)
ANCHOR_T = 4.0  # an anchor reaches a box if their sides differ by a smaller factor
MOST_BOXES = 5000
GENERATIONS = 300


def anchor_table(examined: Examined) -> Table:
    """Return the best possible recall of anchors on the train split, or all if there is none."""
    splits = [split for split in examined.splits if split.name == "train"] or examined.splits
    sizes = np.concatenate([split.labels.box_sizes(examined.image_size) for split in splits])
    sizes = sizes[(sizes >= MIN_SIDE_PX).all(1)]
    sizes = sizes[:: max(1, -(-len(sizes) // MOST_BOXES))]

    rows = [_row("of yolov3 and yolov5", sizes, DEFAULT_ANCHORS)]
    note = "Only models with anchors need them: yolov3, yolov5, but for yolov5-u."
    if len(sizes) >= len(DEFAULT_ANCHORS):
        count = len(DEFAULT_ANCHORS)
        fitted = fit_anchors(sizes, count, ANCHOR_T, generations=GENERATIONS)
        rows.append(_row("fitted to these boxes", sizes, fitted))
    if best_possible_recall(sizes, DEFAULT_ANCHORS, ANCHOR_T) < GOOD_RECALL:
        note += f" train.py fits them by itself where they match less than {GOOD_RECALL:.0%}."
    title = f"Best possible recall of anchors at {examined.image_size} px"
    return Table(title, ("anchors", "recall", "sizes, px"), tuple(rows), note)


def _row(name: str, sizes: NDArray[np.float64], anchors: NDArray[np.float64]) -> tuple[str, ...]:
    recall = best_possible_recall(sizes, anchors, ANCHOR_T)
    shown = ", ".join(f"{width:.0f} x {height:.0f}" for width, height in anchors.tolist())
    return (name, f"{np.floor(recall * 1000) / 10:.1f}%", shown)
