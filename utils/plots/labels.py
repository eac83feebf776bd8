"""labels.png: classes, positions and sizes of the boxes of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    hex_colour,
    name_ticks,
    picture,
    short_name,
)
from utils.printable import counted


def plot_labels(
    classes: np.ndarray, boxes_xywh_norm: np.ndarray, names: Sequence[str], png_path: str | Path
) -> None:
    """Draw the class counts, box positions and box sizes of a data set.

    Args:
        classes: int [N].
        boxes_xywh_norm: [N, 4] centre x, centre y, width, height in [0, 1].
    """
    classes = np.asarray(classes, np.int64).reshape(-1)
    boxes = np.asarray(boxes_xywh_norm, np.float64).reshape(-1, 4)
    with picture(png_path, 12, 8) as figure:
        if not len(classes):
            draw_no_data(figure.subplots())
            return
        grid = figure.add_gridspec(2, 3, height_ratios=[1, 1.1])
        _draw_class_counts(figure.add_subplot(grid[0, :]), classes, names)
        centres, sizes, overlay = (figure.add_subplot(grid[1, column]) for column in range(3))
        _draw_heat(centres, boxes[:, :2], "box positions", "x of the centre", "y of the centre")
        centres.invert_yaxis()
        _draw_heat(sizes, boxes[:, 2:], "box sizes", "width", "height")
        _draw_boxes(overlay, classes, boxes)


def _draw_class_counts(axes: Axes, classes: np.ndarray, names: Sequence[str]) -> None:
    counts = np.bincount(classes[classes >= 0], minlength=max(len(names), 1))
    order, title = np.arange(len(counts)), counted(len(counts), "class")
    if len(counts) > MAX_NAMED_TICKS:
        order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        title += f", {len(order):,} of them with boxes"
    counts, names = counts[order], [short_name(names, int(k)) for k in order]
    if len(counts) > MAX_NAMED_TICKS:
        axes.set_xlabel(f"classes, the most frequent first: {', '.join(names[:8])} …")
    if len(counts) > MAX_DRAWN_CLASSES:  # one outline instead of a bar and a colour for each
        axes.stairs(counts, np.arange(len(counts) + 1) - 0.5, fill=True, color=BLUE)
    else:
        axes.bar(
            np.arange(len(counts)), counts, width=0.8, color=[hex_colour(int(k)) for k in order]
        )
    axes.set_title(f"{counted(len(classes), 'box')}, {title}")
    axes.set_ylabel("boxes")
    axes.grid(True, axis="y")
    margin = max(0.7, 5 - len(counts) / 2)  # a single bar is not as wide as the picture
    axes.set_xlim(-margin, len(counts) - 1 + margin)
    if counts.size and counts.max() > 100 * max(1, np.median(counts)):
        axes.set_yscale("log")
        # the default is math text, which _style() turns off
        axes.yaxis.set_major_formatter("{x:,.0f}")
    name_ticks(axes, names, len(counts), "x")
    if len(counts) <= 25:
        for k, count in enumerate(counts):
            axes.text(k, count, f"{count:,}", ha="center", va="bottom", fontsize=8, color=INK)


def _draw_heat(axes: Axes, points: np.ndarray, title: str, x_label: str, y_label: str) -> None:
    """Draw a 2-D histogram of points [N, 2] in [0, 1], on a log scale that shows single points."""
    share, _, _ = np.histogram2d(points[:, 1], points[:, 0], bins=48, range=[[0, 1], [0, 1]])
    colours = LinearSegmentedColormap.from_list("heat", ["#f4f6f9", "#93b4f5", BLUE, "#14215c"])
    axes.imshow(
        np.log1p(share), cmap=colours, extent=(0, 1, 0, 1), origin="lower", interpolation="nearest"
    )
    axes.set(title=title, xlabel=f"{x_label} (share of the image)", ylabel=y_label)


def _draw_boxes(axes: Axes, classes: np.ndarray, boxes: np.ndarray, most: int = 400) -> None:
    """Draw at most `most` boxes around one centre, evenly sampled from all."""
    picked = np.unique(np.linspace(0, len(boxes) - 1, min(most, len(boxes))).astype(int))
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5], [-0.5, -0.5]])
    lines = 0.5 + boxes[picked, None, 2:] * corners  # [picked, 5, 2]
    colours = [hex_colour(int(k)) for k in classes[picked]]
    axes.add_collection(LineCollection(list(lines), colors=colours, linewidths=0.7, alpha=0.35))
    axes.set(
        title="boxes around one centre",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xticks=[],
        yticks=[],
    )
    axes.spines[:].set(visible=True, color=GRID)
