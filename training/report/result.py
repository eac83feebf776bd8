"""The values of an evaluation that the report shows: classes, curves, confusion, errors.

Legend: K classes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.labels import Labels
from training.report.pictures import error_pictures
from utils.metrics import calibration_bins, class_rows, size_bins
from utils.metrics.confusion import CONFUSION_IOU
from utils.metrics.evaluation import Evaluation
from utils.metrics.records import SHOWN_CONFIDENCE
from utils.printable import counted

CURVE_POINTS = 101  # of a curve in the page: one for each hundredth


def result_values(evaluation: Evaluation, names: Sequence[str], of: str) -> dict[str, Any]:
    """Return what the report shows of an evaluation, at any time of a run: plain values.

    names: of the classes. of: a sentence that says what was evaluated.
    """
    return {
        "of": of,
        "images": evaluation.images,
        "instances": int(evaluation.coco.instances.sum()),
        "stats": evaluation.coco.stats,
        "precision": evaluation.precision,
        "recall": evaluation.recall,
        "confidence": evaluation.curves.best_confidence,
        "classes": class_rows(evaluation, names),
        "curves": curve_values(evaluation),
        "confusion": confusion_values(evaluation),
    }


def curve_values(evaluation: Evaluation) -> dict[str, Any]:
    """Return the curves of precision and recall, {} without ground truth.

    `pr` has a list of precisions for each class, None for one without ground truth; precision,
    recall and f1 are means over the classes.
    """
    curves = evaluation.curves
    if not curves.has_truth.any():
        return {}
    chosen = np.linspace(0, len(curves.confidence) - 1, CURVE_POINTS).round().astype(int)

    def mean(rows: NDArray[np.float64]) -> list[float]:
        return rounded(curves.mean(rows)[chosen])

    by_class = [
        rounded(row) if known else None
        for row, known in zip(curves.pr_precision, curves.has_truth.tolist(), strict=True)
    ]
    return {
        "confidence": rounded(curves.confidence[chosen]),
        "precision": mean(curves.precision),
        "recall": mean(curves.recall),
        "f1": mean(curves.f1),
        "pr_recall": rounded(curves.pr_recall),
        "pr": by_class,
        "pr_mean": rounded(curves.mean(curves.pr_precision)),
    }


def confusion_values(evaluation: Evaluation) -> dict[str, Any]:
    """Return the cells of the confusion matrix that are not 0.

    Each is [index of the predicted class, index of the true class, count]; index K is background.
    """
    counts = evaluation.confusion()
    predicted, true = np.nonzero(counts)
    cells = np.stack([predicted, true, counts[predicted, true]], 1)
    return {
        "confidence": SHOWN_CONFIDENCE,
        "iou": CONFUSION_IOU,
        "cells": cells.tolist(),
    }


def error_values(evaluation: Evaluation, labels: Labels, names: Sequence[str]) -> dict[str, Any]:
    """Return errors by kind, their worst pictures, calibration, and AP against box size.

    They take seconds, so they are for the end of a run.

    labels: of the whole images that were evaluated.
    """
    truth = evaluation.truth
    detections = evaluation.detections
    image_ids = labels.image_ids
    class_ids = evaluation.curves.class_ids
    errors = evaluation.error_kinds
    sizes = size_bins(truth, detections, image_ids=image_ids, class_ids=class_ids)
    bins = calibration_bins(truth, detections, image_ids=image_ids, class_ids=class_ids)
    return {
        "errors": errors.as_dict(),
        "pictures": error_pictures(errors, truth, detections, labels, names),
        "calibration": bins.as_dict(),
        "sizes": [size.as_dict() for size in sizes],
    }


def images_figure(evaluation: Evaluation) -> tuple[str, str, str]:
    """Return label, value and meaning of the number of images, for the head of the report."""
    objects = int(evaluation.coco.instances.sum())
    return (
        "Images",
        f"{evaluation.images:,}",
        f"evaluated, with {counted(objects, 'labeled object')}",
    )


def speed_figure(evaluation: Evaluation) -> tuple[str, str, str]:
    """Return label, value and meaning of the time per image."""
    parts = evaluation.milliseconds
    words = ", ".join(f"{name} {milliseconds:.1f}" for name, milliseconds in parts.items())
    return "Time per image", f"{sum(parts.values()):.1f} ms", words


def rounded(values: NDArray[np.float64]) -> list[float]:
    """Return shares in [0, 1] with four decimals."""
    return np.round(values, 4).tolist()
