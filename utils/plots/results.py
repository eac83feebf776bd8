"""results.png: losses and metrics over the epochs."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from utils.plots.canvas import draw_no_data, hex_color, picture


def plot_results(csv_path: str | Path, png_path: str | Path) -> None:
    """Draw every column of results.csv except epoch and time over the epochs.

    Related columns share a panel.
    """
    columns = _read_results(Path(csv_path))
    epochs = columns.pop("epoch", np.zeros(0))
    columns.pop("time", None)

    # The columns of each panel, by its title.
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name, values in columns.items():
        panels.setdefault(_panel_of(name), {})[name] = values

    across = min(3, max(1, len(panels)))
    down = max(1, math.ceil(len(panels) / across))
    with picture(png_path, 4.4 * across, 3.1 * down) as figure:
        grid = figure.subplots(down, across, squeeze=False).ravel()
        for axes, (title, own_columns) in zip(grid, panels.items(), strict=False):
            _draw_history(axes, title, epochs, own_columns)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        if not panels:
            draw_no_data(grid[0])


def _read_results(path: Path) -> dict[str, np.ndarray]:
    """Return each column of a CSV file as floats, NaN for cells that are not finite numbers."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows:
        return {}

    header, *body = rows
    columns = {}
    for index, cell in enumerate(header):
        name = cell.strip()
        if not name:
            continue
        values = np.full(len(body), math.nan)
        for number, row in enumerate(body):
            if index < len(row):
                values[number] = _number(row[index])
        columns[name] = values
    return columns


def _number(text: str) -> float:
    """Return the number in a cell, NaN if it is not finite or not a number."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _panel_of(column: str) -> str:
    """Return the title of the panel a column belongs to.

    >>> [_panel_of(name) for name in ("train/box_loss", "val/box_loss", "metrics/mAP_0.5")]
    ['box loss', 'box loss', 'mAP']
    >>> _panel_of("metrics/recall"), _panel_of("x/lr0")
    ('precision and recall', 'learning rate')
    """
    last = column.rsplit("/", 1)[-1]
    if last.lower().startswith("map"):
        return "mAP"
    if last in ("precision", "recall"):
        return "precision and recall"
    if last.startswith("lr"):
        return "learning rate"
    return last.replace("_", " ")


def _draw_history(
    axes: Axes, title: str, epochs: np.ndarray, columns: dict[str, np.ndarray]
) -> None:
    """Draw the columns of one panel, a line each."""
    axes.set_title(title)
    axes.grid(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.set_xlabel("epoch")
    if not any(np.isfinite(values).any() for values in columns.values()):
        draw_no_data(axes)
        return

    # The lines.
    lines = []
    for number, values in enumerate(columns.values()):
        x = epochs if len(epochs) == len(values) else np.arange(len(values))
        shown = np.isfinite(values)
        color = hex_color(number)
        marker = "o" if shown.sum() <= 25 else ""
        style: dict[str, Any] = {"marker": marker, "markersize": 3, "linewidth": 1.8}
        lines += axes.plot(x[shown], values[shown], color=color, **style)

    # The legend, and the ranges of the axes.
    if len(columns) > 1:
        line_names = [_line_name(name, values) for name, values in columns.items()]
        axes.legend(lines, line_names, loc="best", fontsize=8)
    if len(epochs) == 1:
        axes.set_xlim(epochs[0] - 0.5, epochs[0] + 0.5)
    if title in ("mAP", "precision and recall"):
        highest = max(np.nanmax(values, initial=0) for values in columns.values())
        # the legend is above low lines
        top = 1.02 if highest > 0.5 else 1.35 * highest
        axes.set_ylim(0, top or None)


def _line_name(column: str, values: np.ndarray) -> str:
    """Return the name of a column in the legend of its panel."""
    first, _, last = column.partition("/")
    if first in ("train", "val"):
        return first
    if not last.lower().startswith("map"):
        return last or first
    best = np.nanmax(values, initial=0.0)
    return f"{last}, best {best:.3f}"
