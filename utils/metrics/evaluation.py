"""The result of an evaluation, in one dataclass, and as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from utils.metrics.coco import CocoResult
from utils.metrics.confusion import confusion_matrix
from utils.metrics.curves import OperatingCurves
from utils.metrics.errors import ErrorKinds, error_kinds
from utils.metrics.fitness import DEFAULT, Fitness, parse_fitness
from utils.metrics.records import Detections, GroundTruth
from utils.printable import printable

DEFAULT_FITNESS = parse_fitness(DEFAULT)
UNKNOWN = -1.0  # of a number that no object or detection decides, as in pycocotools


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation of `images` images."""

    images: int
    coco: CocoResult
    curves: OperatingCurves
    truth: GroundTruth
    detections: Detections
    losses: dict[str, float] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)  # per image

    @property
    def precision(self) -> float:
        """Return the mean over classes at the confidence of the best mean F1, IoU 0.5."""
        return float(self.curves.mean(self.curves.precision_at_best))

    @property
    def recall(self) -> float:
        """Return the mean over classes at the confidence of the best mean F1, IoU 0.5."""
        return float(self.curves.mean(self.curves.recall_at_best))

    def as_dict(self, names: Sequence[str], fitness: Fitness = DEFAULT_FITNESS) -> dict[str, Any]:
        """Return the content of metrics.json.

        COCO's 12 numbers, precision, recall and the confidence they are at, the number that decides
        which epoch is the best, and the numbers of each class by name.
        """
        rows = self.coco.per_class
        metrics = {
            **self.coco.stats,
            "precision": self.precision,
            "recall": self.recall,
            "confidence": self.curves.best_confidence,
            "fitness": 0.0,
            "per_class": {name: rows[k] for k, name in enumerate(names) if k in rows},
        }
        return metrics | {"fitness": fitness.of(metrics)}

    @property
    def columns(self) -> dict[str, float]:
        """Return the metrics that have a column in results.csv."""
        stats = self.coco.stats
        return {
            "precision": self.precision,
            "recall": self.recall,
            "AP50": stats["AP50"],
            "AP": stats["AP"],
        }

    def describe_times(self) -> str:
        """Return the milliseconds of each part, as text."""
        return ", ".join(f"{part} {value:.2f} ms" for part, value in self.milliseconds.items())

    @cached_property
    def error_kinds(self) -> ErrorKinds:
        """Return the errors by kind."""
        # An image without an object or a detection has no errors.
        image_ids = np.union1d(self.truth.image_ids, self.detections.image_ids)
        return error_kinds(
            self.truth, self.detections, image_ids=image_ids, class_ids=self.curves.class_ids
        )

    def confusion(self) -> np.ndarray:
        """Return the confusion matrix, int64 [K + 1, K + 1]."""
        return confusion_matrix(self.truth, self.detections, class_ids=self.curves.class_ids)


def class_rows(evaluation: Evaluation, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row of plain values for each class, in order of class id.

    Keys: class_id, name, images, instances, precision, recall, AP50, AP, APs, APm, APl. Precision
    and recall are at the confidence of the best mean F1. A number is -1 if no object decides it.

    names: of all classes, by class id; not escaped.
    """
    curves = evaluation.curves
    by_class = evaluation.coco.per_class
    rows = []
    for k, class_id in enumerate(curves.class_ids.tolist()):
        numbers = by_class[class_id]
        precision = UNKNOWN
        recall = UNKNOWN
        if curves.has_truth[k]:
            precision = float(curves.precision_at_best[k])
            recall = float(curves.recall_at_best[k])

        row: dict[str, Any] = {"class_id": class_id, "name": names[class_id]}
        row |= {"images": numbers["images"], "instances": numbers["instances"]}
        row |= {"precision": precision, "recall": recall}
        row |= {name: numbers[name] for name in ("AP50", "AP", "APs", "APm", "APl")}
        rows.append(row)
    return rows


def class_table(evaluation: Evaluation, names: Sequence[str], *, verbose: bool) -> str:
    """Return a line for all classes, and one for each if verbose.

    Columns: images, instances, P, R, mAP50, mAP50-95. The images of a class are those that contain
    it; the line for all classes also counts images without objects. The last line says at which
    confidence P and R are. A class without objects has none of the four.
    """
    names = [printable(name) for name in names]
    coco = evaluation.coco
    curves = evaluation.curves
    width = 12
    if verbose:
        width = max(width, *(len(name) for name in names))

    def line(name: str, images: int, instances: int, *values: float) -> str:
        cells = []
        for value in values:
            text = "-" if value < 0 else f"{value:.4f}"
            cells.append(f"{text:>8}")
        return f"{name:>{width}} {images:>8} {instances:>10} {' '.join(cells)}"

    header = (
        f"{'class':>{width}} {'images':>8} {'instances':>10} {'P':>8} {'R':>8} {'mAP50':>8} "
        f"{'mAP50-95':>9}"
    )
    total = int(coco.instances.sum())
    overall = evaluation.precision, evaluation.recall, coco.stats["AP50"], coco.stats["AP"]
    lines = [header, line("all", evaluation.images, total, *overall)]

    if verbose and len(names) > 1:
        for row in class_rows(evaluation, names):
            values = [row[key] for key in ("precision", "recall", "AP50", "AP")]
            lines.append(line(row["name"], row["images"], row["instances"], *values))
    lines.append(f"{'':>{width}} P and R at confidence {curves.best_confidence:.3f}")
    return "\n".join(lines)
