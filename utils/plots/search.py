"""evolve.png: fitness against each hyper-parameter, a point per training."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.plots.canvas import BLUE, INK, draw_no_data, picture

ACROSS = 5  # panels in a row
# In inches. Fixed, because matplotlib's search for a layout takes longer than all the drawing.
PANEL = (2.6, 2.3)  # width and height, with the space around it
LEFT, RIGHT, BOTTOM, TOP = 0.65, 0.15, 0.35, 0.3  # margins of the picture
BETWEEN = (0.25, 0.6)  # beside each other, and above each other
ORANGE = "#e8590c"  # of the best training


def plot_search(csv_path: str | Path, png_path: str | Path, keys: Sequence[str]) -> None:
    """Draw a panel for each key that has changed, and one of fitness over the trainings.

    Trainings that failed are left out. The best one is marked, and its value is in the title.

    csv_path: a file with the columns fitness, failure and the keys.
    """
    with Path(csv_path).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["failure"]]
    fitness = np.array([float(row["fitness"]) for row in rows])
    numbers = np.array([float(row["generation"]) for row in rows])
    best = int(fitness.argmax()) if len(rows) else 0

    panels = {"generation": numbers}
    for key in keys:
        values = np.array([float(row[key]) for row in rows])
        if len(set(values.tolist())) > 1:
            panels[key] = values

    down = math.ceil(len(panels) / ACROSS)
    across = min(ACROSS, len(panels))
    with picture(png_path, PANEL[0] * across, PANEL[1] * down, layout=None) as figure:
        _place_panels(figure, down, across)
        _draw_panels(figure, panels, fitness, best, (down, across))


def _place_panels(figure: Figure, down: int, across: int) -> None:
    """Give all panels one size, with room for the titles and the numbers at the axes."""
    width, height = figure.get_size_inches()
    panel_width = (width - LEFT - RIGHT - BETWEEN[0] * (across - 1)) / across
    panel_height = (height - BOTTOM - TOP - BETWEEN[1] * (down - 1)) / down
    figure.subplots_adjust(
        left=LEFT / width,
        right=1 - RIGHT / width,
        bottom=BOTTOM / height,
        top=1 - TOP / height,
        wspace=BETWEEN[0] / panel_width,
        hspace=BETWEEN[1] / panel_height,
    )


def _draw_panels(
    figure: Figure,
    panels: dict[str, np.ndarray],
    fitness: np.ndarray,
    best: int,
    shape: tuple[int, int],
) -> None:
    grid = figure.subplots(*shape, squeeze=False, sharey=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("fitness", fontsize=8)
    grid = grid.ravel()
    for axes, (key, values) in zip(grid, panels.items(), strict=False):
        _draw_panel(axes, key, values, fitness, best)
        if key == "generation":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
    for axes in grid[len(panels) :]:
        axes.set_axis_off()


def _draw_panel(axes: Axes, key: str, values: np.ndarray, fitness: np.ndarray, best: int) -> None:
    """Draw fitness against one key, later trainings darker."""
    if not len(values):
        draw_no_data(axes)
        return

    axes.set_title(f"{key} {values[best]:.4g}", fontsize=9)
    axes.grid(True)
    axes.tick_params(labelsize=7)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))

    shades = np.tile(to_rgba(BLUE), (len(values), 1))
    shades[:, 3] = np.linspace(0.25, 1, len(values))
    axes.scatter(values, fitness, s=14, color=shades, linewidths=0)

    mark: dict[str, Any] = {
        "s": 60,
        "marker": "*",
        "color": ORANGE,
        "edgecolors": INK,
        "linewidths": 0.4,
    }
    axes.scatter(values[best], fitness[best], **mark)
