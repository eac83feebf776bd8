"""Several trainings as one table and as curves of mAP against time."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from benchmarks.report import spread, table
from benchmarks.trainings.run import ROOT, Outcome, Training, name_of
from utils.plots.canvas import draw_no_data, hex_color, picture

SHARES = (0.8, 0.9, 0.95)


def report(trainings: Sequence[Training], outcomes: Sequence[Outcome], title: str) -> list[str]:
    """A Markdown table of all programs and data sets: means over seeds, ± standard deviation."""
    groups: dict[tuple[str, str], list[Outcome]] = {}  # by data and program
    for training, outcome in zip(trainings, outcomes, strict=True):
        groups.setdefault((training.data, training.program), []).append(outcome)
    names = display_names([training.data for training in trainings])

    columns = ["data", "program", "seeds", "mAP50-95", "mAP50", "at equal time", "seconds"]
    columns += [f"s to {share:.0%}" for share in SHARES]
    columns.append("images/s")
    rows = []
    for (data, program), found in groups.items():
        shortest = first_end([own for (other, _), own in groups.items() if other == data])
        cells = [names[data], program, str(len(found))]
        rows.append([*cells, *figures(found, shortest)])

    lines = [f"# {title}", "", f"torch {torch.__version__}", "", table(columns, rows)]
    lines += ["", "`*`: by the program's own evaluator.", ""]
    commands = {training.program: shown(training.command) for training in trainings}
    return [*lines, *(f"- {program}: `{command}`" for program, command in commands.items())]


def first_end(programs: Sequence[Sequence[Outcome]]) -> float:
    """When the fastest program on the same data ends its last seed; NaN if unknown."""
    ends = [max(outcome.seconds for outcome in found) for found in programs]
    known = [end for end in ends if not math.isnan(end)]
    return min(known, default=float("nan"))


def figures(found: Sequence[Outcome], shortest: float) -> list[str]:
    """The cells of a program's outcomes on the same data. shortest: seconds of "at equal time"."""
    mark = "" if all(one.same_evaluator for one in found) else " *"
    cells = [spread([one.ap for one in found]) + mark]
    cells.append(figure(mean(one.ap50 for one in found), 3))
    cells.append(figure(mean(one.reached(shortest) for one in found), 3))
    cells.append(figure(mean(one.seconds for one in found), 0))
    for share in SHARES:
        cells.append(figure(mean(one.seconds_to(share) for one in found), 0))
    cells.append(figure(mean(one.images_per_second for one in found), 1))
    return cells


def shown(command: Sequence[str]) -> str:
    """A command without the folders of this machine's programs.

    >>> shown(["/usr/bin/yolo", "train", "data={data}"])
    "yolo train 'data={data}'"
    """
    first, *others = command
    name = "python" if first == sys.executable else Path(first).name
    words = [word.removeprefix(f"{ROOT}/") for word in others]
    return shlex.join([name, *words])


def display_names(data: Sequence[str]) -> dict[str, str]:
    """A short name of each data YAML, with its folders where two would have the same.

    >>> display_names(["sets/bccd/dataset.yaml", "a/few.yaml", "b/few.yaml"])
    {'sets/bccd/dataset.yaml': 'bccd', 'a/few.yaml': 'a/few.yaml', 'b/few.yaml': 'b/few.yaml'}
    """
    paths = dict.fromkeys(data)
    names = [name_of(path) for path in paths]

    shown = {}
    for path, name in zip(paths, names, strict=True):
        is_unique = names.count(name) == 1
        shown[path] = name if is_unique else path
    return shown


def figure(value: float, digits: int) -> str:
    """A number, or "-" for NaN.

    >>> figure(0.25, 3), figure(float("nan"), 3)
    ('0.250', '-')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def plot(trainings: Sequence[Training], outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw mAP50-95 against wall time: a panel for each data set, a color for each program."""
    names = display_names([training.data for training in trainings])
    programs = list(dict.fromkeys(training.program for training in trainings))
    legend: dict[str, Artist] = {}
    with picture(path, 5 * len(names) + 2, 4.2) as drawing:
        panels = drawing.subplots(1, len(names), squeeze=False)[0]
        for axes, (data, name) in zip(panels, names.items(), strict=True):
            axes.set(title=name, xlabel="minutes since the start of the program", ylabel="mAP50-95")
            axes.grid(True)

            # A line for each seed.
            for training, outcome in zip(trainings, outcomes, strict=True):
                if training.data == data and outcome.curve:
                    color = hex_color(programs.index(training.program))
                    legend[training.program] = draw_curve(axes, outcome, color)
            if not axes.lines:
                draw_no_data(axes)
        drawing.legend(list(legend.values()), list(legend), loc="outside right upper")


def draw_curve(axes: Axes, outcome: Outcome, color: str) -> Artist:
    """Draw the mAP50-95 of a training's epochs; return the line."""
    minutes = [seconds / 60 for seconds, _ in outcome.curve]
    values = [value for _, value in outcome.curve]
    marker = "o" if len(values) == 1 else None
    lines = axes.plot(minutes, values, color=color, linewidth=1.6, alpha=0.85, marker=marker)
    return lines[0]
