"""labels.png: classes, positions and sizes of the boxes of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap

from utils.plots.canvas import (
    BLUE,
    GRID,
    INK,
    MAX_DRAWN_CLASSES,
    MAX_NAMED_TICKS,
    draw_no_data,
    hex_color,
    name_ticks,
    picture,
    short_name,
)
from utils.printable import counted

HEAT_COLORS = ["#f4f6f9", "#93b4f5", BLUE, "#14215c"]
UNIT_OUTLINE = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])


def plot_labels(
    classes: np.ndarray, boxes_xywh_norm: np.ndarray, names: Sequence[str], png_path: str | Path
) -> None:
    """Draw the class counts, box positions and box sizes of a data set.

    Args:
        classes: int [N].
        boxes_xywh_norm: [N, 4] center x, center y, width, height in [0, 1].
        names: of the classes.
        png_path: of the picture.
    """
    classes = np.asarray(classes, np.int64).reshape(-1)
    boxes = np.asarray(boxes_xywh_norm, np.float64).reshape(-1, 4)
    with picture(png_path, 12, 8) as figure:
        if not len(classes):
            draw_no_data(figure.subplots())
            return

        # Class counts above; positions, sizes and boxes below.
        grid = figure.add_gridspec(2, 3, height_ratios=[1, 1.1])
        counts_axes = figure.add_subplot(grid[0, :])
        centers_axes = figure.add_subplot(grid[1, 0])
        sizes_axes = figure.add_subplot(grid[1, 1])
        boxes_axes = figure.add_subplot(grid[1, 2])

        _draw_class_counts(counts_axes, classes, names)
        centers = boxes[:, :2]
        _draw_heat(centers_axes, centers, "box positions", "x of the center", "y of the center")
        centers_axes.invert_yaxis()
        _draw_heat(sizes_axes, boxes[:, 2:], "box sizes", "width", "height")
        _draw_boxes(boxes_axes, classes, boxes)


def _draw_class_counts(axes: Axes, classes: np.ndarray, names: Sequence[str]) -> None:
    """Draw the number of boxes of each class; of many classes, the most frequent first."""
    counts = np.bincount(classes[classes >= 0], minlength=max(len(names), 1))
    title = f"{counted(len(classes), 'box')}, {counted(len(counts), 'class')}"

    # The classes to draw, and their counts and names.
    order = np.arange(len(counts))
    if len(counts) > MAX_NAMED_TICKS:
        most_first = np.argsort(-counts, kind="stable")
        order = most_first[: np.count_nonzero(counts)]
        title += f", {len(order):,} of them with boxes"
    counts = counts[order]
    names = [short_name(names, int(k)) for k in order]
    number = len(counts)

    # Title and labels.
    axes.set_title(title)
    axes.set_ylabel("boxes")
    axes.grid(True, axis="y")
    if number > MAX_NAMED_TICKS:
        axes.set_xlabel(f"classes, the most frequent first: {', '.join(names[:8])} …")

    # The bars.
    if number > MAX_DRAWN_CLASSES:  # one outline instead of a bar and a color for each
        axes.stairs(counts, np.arange(number + 1) - 0.5, fill=True, color=BLUE)
    else:
        colors = [hex_color(int(k)) for k in order]
        axes.bar(np.arange(number), counts, width=0.8, color=colors)

    # The axes.
    margin = max(0.7, 5 - number / 2)  # a single bar is not as wide as the picture
    axes.set_xlim(-margin, number - 1 + margin)
    if counts.size and counts.max() > 100 * max(1, np.median(counts)):
        axes.set_yscale("log")
        # the default is math text, which _style() turns off
        axes.yaxis.set_major_formatter("{x:,.0f}")
    name_ticks(axes, names, number, "x")

    # The counts above the bars.
    if number <= 25:
        for k, count in enumerate(counts):
            axes.text(k, count, f"{count:,}", ha="center", va="bottom", fontsize=8, color=INK)


def _draw_heat(axes: Axes, points: np.ndarray, title: str, x_label: str, y_label: str) -> None:
    """Draw a 2-D histogram of points, on a log scale that shows single points.

    Args:
        axes: to draw on.
        points: [N, 2] x and y in [0, 1].
        title: of the axes.
        x_label, y_label: what x and y are.
    """
    x = points[:, 0]
    y = points[:, 1]
    counts, _, _ = np.histogram2d(y, x, bins=48, range=[[0, 1], [0, 1]])

    heat = LinearSegmentedColormap.from_list("heat", HEAT_COLORS)
    placement: dict[str, Any] = {"extent": (0, 1, 0, 1), "origin": "lower"}
    axes.imshow(np.log1p(counts), cmap=heat, interpolation="nearest", **placement)
    axes.set(title=title, xlabel=f"{x_label} (share of the image)", ylabel=y_label)


def _draw_boxes(axes: Axes, classes: np.ndarray, boxes: np.ndarray, most: int = 400) -> None:
    """Draw at most `most` boxes around one center, evenly sampled from all."""
    number = min(most, len(boxes))
    evenly = np.linspace(0, len(boxes) - 1, number).astype(int)
    picked = np.unique(evenly)

    # The outline of each box, closed.  [picked, 5, 2]
    sizes = boxes[picked, None, 2:]
    outlines = 0.5 + sizes * UNIT_OUTLINE
    colors = [hex_color(int(k)) for k in classes[picked]]
    axes.add_collection(LineCollection(list(outlines), colors=colors, linewidths=0.7, alpha=0.35))

    axes.set(title="boxes around one center", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=GRID)
