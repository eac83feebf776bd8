"""Precision, recall and F1 against confidence, and precision against recall. K classes, P
confidences, R recalls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from utils.plots.canvas import BLUE, FAINT, INK, draw_no_data, hex_colour, picture, short_name

MAX_NAMED_LINES = 20  # classes in the legend of a curve


# PR_curve.png, F1_curve.png, P_curve.png, R_curve.png
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
    """Draw precision over recall, and F1, precision and recall over confidence, into four files;
    return the files.

    Args:
        confidence: [P] in [0, 1], ascending.
        precision, recall, f1: [K, P] at IoU 0.5; a row with NaN (a class without ground truth) is
            left out.
        pr_recall, pr_precision: [R] and [K, R]; R evenly spaced points (COCO's 101), so that a
            row's mean is its AP50.
        best_confidence: where the mean F1 is highest.
    """
    folder = Path(folder)
    pr_precision = np.asarray(pr_precision, np.float64)
    average = pr_precision.mean(1) if pr_precision.size else np.zeros(0)
    files = [folder / "PR_curve.png"]
    _plot_curve(files[0], pr_recall, pr_precision, names, ("recall", "precision"), average, "AP")
    for title, rows in (("F1", f1), ("precision", precision), ("recall", recall)):
        rows = np.asarray(rows, np.float64)
        values = np.array([np.interp(best_confidence, confidence, row) for row in rows if len(row)])
        legend = f"{title} at confidence {best_confidence:.3f}"
        files.append(folder / f"{'F1' if title == 'F1' else title[0].upper()}_curve.png")
        _plot_curve(
            files[-1],
            confidence,
            rows,
            names,
            ("confidence", title),
            values,
            legend,
            mark=best_confidence,
        )
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
    """Draw a thin line per class, labelled with its name and value if there are few, and a thick
    line for the mean.
    """
    x = np.asarray(x, np.float64).reshape(-1)
    shown = np.flatnonzero(np.isfinite(rows).all(1)) if rows.size else np.zeros(0, int)
    with picture(path, 9, 6) as figure:
        axes = figure.subplots()
        axes.set_title(f"{axis_names[1]} over {axis_names[0]}, at IoU 0.5")
        if not len(shown) or not len(x):
            draw_no_data(axes)
            return
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=axis_names[0], ylabel=axis_names[1])
        axes.grid(True)
        lines, labels = _draw_class_lines(axes, x, rows, shown, names, values)
        lines += axes.plot(x, rows[shown].mean(0), color=INK, linewidth=3)
        labels.append(f"all classes  {values[shown].mean():.3f}")
        if mark is not None and math.isfinite(mark):
            axes.axvline(mark, color=FAINT, linewidth=1, linestyle=(0, (3, 3)))
        figure.legend(
            lines[::-1],
            labels[::-1],
            title=legend,
            loc="outside right upper",
            fontsize=8,
            alignment="left",
        )


def _draw_class_lines(
    axes: Axes,
    x: np.ndarray,
    rows: np.ndarray,
    shown: np.ndarray,
    names: Sequence[str],
    values: np.ndarray,
) -> tuple[list, list[str]]:
    """Draw a line per class. Returns the lines for the legend and their labels, the best class
    last.
    """
    if len(shown) > MAX_NAMED_LINES:
        step = max(1, len(x) // 200)
        lines = [np.stack([x[::step], rows[k, ::step]], 1) for k in shown]
        alpha = float(np.clip(20 / len(shown), 0.04, 0.5))
        axes.add_collection(LineCollection(lines, colors=BLUE, linewidths=0.8, alpha=alpha))
        return axes.plot([], [], color=BLUE, linewidth=0.8, alpha=0.5), [
            f"each of {len(shown)} classes"
        ]
    order = shown[np.argsort(values[shown], kind="stable")]
    handles = [
        axes.plot(x, rows[k], color=hex_colour(int(k)), linewidth=1.2, alpha=0.8)[0] for k in order
    ]
    labels = [f"{short_name(names, int(k))}  {values[k]:.3f}" for k in order]
    # matplotlib before 3.10 leaves labels that begin with an underscore out of the legend
    return handles, [" " + label if label.startswith("_") else label for label in labels]
