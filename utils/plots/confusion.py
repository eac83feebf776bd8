"""confusion_matrix.png: how often each class was predicted as each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from utils.plots.canvas import (
    FAINT,
    INK,
    MAX_DRAWN_CLASSES,
    draw_no_data,
    name_ticks,
    picture,
    short_name,
)

MAX_COUNTED_CLASSES = 25  # classes whose confusion matrix shows numbers
RIGHT_COLORS = ["#ffffff", "#7ea6f4", "#1e40af"]
WRONG_COLORS = ["#ffffff", "#fdba74", "#c2410c"]


def plot_confusion(matrix: np.ndarray, names: Sequence[str], path: str | Path) -> None:
    """Draw a confusion matrix: correct predictions blue, wrong ones orange.

    Args:
        matrix: int [K + 1, K + 1], rows predicted, columns true; the last ones are background: its
            row has the missed objects, its column the false positives.
        names: of the classes.
        path: of the picture.

    Cells of a larger share are darker. The shares in a column are fractions of the objects of that
    class. Background has no objects, so the shares in its column are fractions of the boxes
    predicted for each class. Of more than 25 classes, those that occur are drawn, and of these the
    1000 with the most boxes.
    """
    matrix = np.asarray(matrix)
    classes = max(len(matrix) - 1, 0)  # also the index of background

    # The classes to draw, and background.
    shown = _shown_classes(matrix, MAX_COUNTED_CLASSES, MAX_DRAWN_CLASSES)
    count = len(shown)
    names = [short_name(names, k) for k in shown]
    rows = np.append(shown, classes) if len(matrix) else shown
    drawn = np.asarray(matrix, np.float64)[np.ix_(rows, rows)]

    title = "Confusion matrix"
    if count < classes:
        title += f" of {count:,} of {classes:,} classes"
    with picture(path, *_confusion_size(count)) as figure:
        axes = figure.subplots()
        axes.set_title(title)
        if count < 1 or not drawn.any():
            draw_no_data(axes)
            return

        axes.imshow(_confusion_colors(drawn), interpolation="nearest", aspect="equal")
        name_ticks(axes, names, count, "x", last="background\n(false positive)")
        name_ticks(axes, names, count, "y", last="background\n(missed)")
        axes.set(xlabel="true class", ylabel="predicted class")
        axes.axhline(count - 0.5, color=INK, linewidth=0.8)
        axes.axvline(count - 0.5, color=INK, linewidth=0.8)
        if count <= MAX_COUNTED_CLASSES:
            _write_counts(axes, drawn)

        legend = (
            "Blue: correct. Orange: wrong. Darker: larger share of the true class (last column: "
            "predicted class)."
        )
        figure.supxlabel(legend, fontsize=8, color=FAINT)


def _shown_classes(matrix: np.ndarray, few: int, most: int) -> np.ndarray:
    """Return the classes to draw, ascending.

    They are all classes if there are at most `few`; else those that have boxes, and of these the
    `most` with the most boxes.

    >>> _shown_classes(np.array([[0, 0, 1], [0, 5, 0], [0, 2, 0]]), few=1, most=1)
    array([1])
    """
    classes = max(len(matrix) - 1, 0)
    if classes <= few:
        return np.arange(classes)

    predicted = matrix[:-1].sum(1)
    true = matrix[:, :-1].sum(0)
    boxes = predicted + true  # [K]
    limit = min(most, np.count_nonzero(boxes))
    most_first = np.argsort(-boxes, kind="stable")
    return np.sort(most_first[:limit])


def _confusion_size(count: int) -> tuple[float, float]:
    """Return the width and height of the figure in inches."""
    side = float(np.clip(3.5 + 0.42 * count, 5.5, 13))
    return side + 0.6, side


def _confusion_shares(matrix: np.ndarray) -> np.ndarray:
    """Return each count as a fraction of its true class, in the last column of its predicted class.

    The fraction is 0 if that class is empty.

    >>> _confusion_shares(np.array([[3, 1], [1, 0]]))
    array([[0.75, 0.25], [0.25, 0.  ]])
    """
    true = matrix.sum(0)
    predicted = matrix.sum(1)
    shares = matrix / np.maximum(true, 1)
    shares[:, -1] = matrix[:, -1] / np.maximum(predicted, 1)
    shares[-1, -1] = 0
    return shares


def _confusion_colors(matrix: np.ndarray) -> np.ndarray:
    """Return the color of each cell, [K + 1, K + 1, 3] in [0, 1]."""
    right_map = LinearSegmentedColormap.from_list("right", RIGHT_COLORS)
    wrong_map = LinearSegmentedColormap.from_list("wrong", WRONG_COLORS)

    shares = _confusion_shares(matrix)
    right = right_map(shares)[..., :3]
    wrong = wrong_map(shares**0.7)[..., :3]  # the power shows small shares

    # The diagonal is right, the rest wrong.
    colors = wrong
    diagonal = np.arange(len(matrix) - 1)
    colors[diagonal, diagonal] = right[diagonal, diagonal]
    colors[-1, -1] = 0.93  # background predicted as background is never counted
    return colors


def _write_counts(axes: Axes, matrix: np.ndarray) -> None:
    """Write the count in each cell that is not empty, in thousands from 10,000 on."""
    shares = _confusion_shares(matrix)
    size = float(np.clip(90 / len(matrix), 6, 10))
    centered: dict[str, Any] = {"ha": "center", "va": "center"}
    for row, column in np.argwhere(matrix > 0):
        count = int(matrix[row, column])
        text = f"{count}" if count < 10_000 else f"{count / 1000:.0f}k"

        is_dark = shares[row, column] > 0.55
        color = "white" if is_dark else INK
        axes.text(column, row, text, fontsize=size, color=color, **centered)
