"""Precision, recall and F1 against confidence, and precision against recall.

K classes, P confidences, R recalls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from utils.plots.canvas import BLUE, FAINT, INK, draw_no_data, hex_color, picture, short_name

MAX_NAMED_LINES = 20  # classes in the legend of a curve


def plot_curves(
    confidence: np.ndarray,
    precision: np.ndarray,
    recall: np.ndarray,
    f1: np.ndarray,
    pr_recall: np.ndarray,
    pr_precision: np.ndarray,
    names: Sequence[str],
    folder: str | Path,
    best_confidence: float,
) -> list[Path]:
    """Draw precision over recall, and F1, precision and recall over confidence; return the files.

    They are PR_curve.png, F1_curve.png, P_curve.png and R_curve.png.

    Args:
        confidence: [P] in [0, 1], ascending.
        precision, recall, f1: [K, P] at IoU 0.5; a row with NaN (a class without ground truth) is
            left out.
        pr_recall, pr_precision: [R] and [K, R]; R evenly spaced points (COCO's 101), so that a
            row's mean is its AP50.
        names: of the classes.
        folder: of the pictures.
        best_confidence: where the mean F1 is highest.
    """
    folder = Path(folder)

    # Precision over recall, labeled with the AP50 of each class.
    pr_precision = np.asarray(pr_precision, np.float64)
    ap50 = pr_precision.mean(1) if pr_precision.size else np.zeros(0)
    pr_file = folder / "PR_curve.png"
    _plot_curve(pr_file, pr_recall, pr_precision, names, ("recall", "precision"), ap50, "AP")
    files = [pr_file]

    # The others over confidence, labeled with the value of each class at the best one.
    curves = (("F1", "F1", f1), ("P", "precision", precision), ("R", "recall", recall))
    for letter, title, curve in curves:
        rows = np.asarray(curve, np.float64)
        values = np.array([np.interp(best_confidence, confidence, row) for row in rows if len(row)])
        legend = f"{title} at confidence {best_confidence:.3f}"
        axis_names = ("confidence", title)
        file = folder / f"{letter}_curve.png"
        _plot_curve(file, confidence, rows, names, axis_names, values, legend, mark=best_confidence)
        files.append(file)
    return files


def _plot_curve(
    path: Path,
    x: np.ndarray,
    rows: np.ndarray,
    names: Sequence[str],
    axis_names: tuple[str, str],
    values: np.ndarray,
    legend: str,
    mark: float | None = None,
) -> None:
    """Draw a thin line per class, labeled if they are few, and a thick line for the mean.

    Args:
        path: of the picture.
        x: [P] in [0, 1].
        rows: [K, P]; one with NaN is left out.
        names: of the classes.
        axis_names: of x and of the rows.
        values: [K], one per class, for its label.
        legend: title of the labels.
        mark: of x; a vertical line is drawn there.
    """
    x = np.asarray(x, np.float64).reshape(-1)
    x_name, y_name = axis_names
    shown = np.zeros(0, int)
    if rows.size:
        has_truth = np.isfinite(rows).all(1)
        shown = np.flatnonzero(has_truth)

    with picture(path, 9, 6) as figure:
        axes = figure.subplots()
        axes.set_title(f"{y_name} over {x_name}, at IoU 0.5")
        if not len(shown) or not len(x):
            draw_no_data(axes)
            return

        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=x_name, ylabel=y_name)
        axes.grid(True)

        # The classes, then their mean.
        lines, labels = _draw_class_lines(axes, x, rows, shown, names, values)
        mean = rows[shown].mean(0)
        lines += axes.plot(x, mean, color=INK, linewidth=3)
        labels.append(f"all classes  {values[shown].mean():.3f}")

        if mark is not None and math.isfinite(mark):
            axes.axvline(mark, color=FAINT, linewidth=1, linestyle=(0, (3, 3)))

        # The best class first.
        place: dict[str, Any] = {"loc": "outside right upper", "alignment": "left"}
        figure.legend(lines[::-1], labels[::-1], title=legend, fontsize=8, **place)


def _draw_class_lines(
    axes: Axes,
    x: np.ndarray,
    rows: np.ndarray,
    shown: np.ndarray,
    names: Sequence[str],
    values: np.ndarray,
) -> tuple[list, list[str]]:
    """Draw a line per class; return the lines of the legend and their labels, the best class last.

    Many classes get one color and one label.

    Args:
        axes: to draw on.
        x: [P].
        rows: [K, P].
        shown: the classes to draw.
        names: of the classes.
        values: [K], one per class, for its label.
    """
    if len(shown) > MAX_NAMED_LINES:
        step = max(1, len(x) // 200)  # of more points only some are drawn
        few_x = x[::step]
        curves = [np.stack([few_x, rows[k, ::step]], 1) for k in shown]
        alpha = float(np.clip(20 / len(shown), 0.04, 0.5))
        axes.add_collection(LineCollection(curves, colors=BLUE, linewidths=0.8, alpha=alpha))

        lines = axes.plot([], [], color=BLUE, linewidth=0.8, alpha=0.5)
        return lines, [f"each of {len(shown)} classes"]

    lines = []
    labels = []
    best_last = np.argsort(values[shown], kind="stable")
    for k in shown[best_last].tolist():
        lines += axes.plot(x, rows[k], color=hex_color(k), linewidth=1.2, alpha=0.8)

        label = f"{short_name(names, k)}  {values[k]:.3f}"
        if label.startswith("_"):  # matplotlib before 3.10 leaves it out of the legend
            label = f" {label}"
        labels.append(label)
    return lines, labels
