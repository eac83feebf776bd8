"""Several trainings as one table and as curves of mAP against time."""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import torch
from matplotlib.artist import Artist

from benchmarks.trainings.run import ROOT, Outcome, Training, name_of
from utils.plots.canvas import draw_no_data, hex_color, picture

SHARES = (0.8, 0.9, 0.95)


def report(trainings: Sequence[Training], outcomes: Sequence[Outcome], title: str) -> list[str]:
    """Return a Markdown table with a row for each program and data set: means over the seeds, ±
    standard deviation.
    """
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for training, outcome in zip(trainings, outcomes, strict=True):
        groups.setdefault((training.data, training.program), []).append(outcome)
    names = display_names([training.data for training in trainings])
    to = " | ".join(f"s to {share:.0%}" for share in SHARES)
    lines = [f"# {title}", "", f"torch {torch.__version__}", ""]
    heading = (
        f"| data | program | seeds | mAP50-95 | mAP50 | at equal time | seconds | {to} | images/s |"
    )
    lines += [heading, "|---" * (heading.count("|") - 1) + "|"]
    for (data, program), found in groups.items():
        mark = "" if all(one.same_evaluator for one in found) else " *"
        ap, ap50 = ([getattr(one, name) for one in found] for name in ("ap", "ap50"))
        spread = f" ± {stdev(ap):.3f}" if len(ap) > 1 else ""
        ends = [
            max(one.seconds for one in own) for (other, _), own in groups.items() if other == data
        ]
        shortest = min((end for end in ends if end == end), default=float("nan"))
        cells = [
            names[data],
            program,
            str(len(found)),
            figure(mean(ap), 3) + spread + mark,
            figure(mean(ap50), 3),
        ]
        cells += [figure(mean(one.reached(shortest) for one in found), 3)]
        cells += [figure(mean(one.seconds for one in found), 0)]
        cells += [figure(mean(one.seconds_to(share) for one in found), 0) for share in SHARES]
        lines.append(
            f"| {' | '.join([*cells, figure(mean(one.images_per_second for one in found), 1)])} |"
        )
    commands = {training.program: shown(training.command) for training in trainings}
    lines += ["", "`*`: by the program's own evaluator.", ""]
    return [*lines, *(f"- {program}: `{command}`" for program, command in commands.items())]


def shown(command: Sequence[str]) -> str:
    """Return a command without the folders of this machine's programs.

    >>> shown(["/usr/bin/yolo", "train", "data={data}"])
    "yolo train 'data={data}'"
    """
    first, *others = command
    name = "python" if first == sys.executable else Path(first).name
    return shlex.join([name, *(word.removeprefix(f"{ROOT}/") for word in others)])


def display_names(data: Sequence[str]) -> dict[str, str]:
    """Return a short name of each data YAML, with its folders where two would have the same.

    >>> display_names(["sets/bccd/dataset.yaml", "a/few.yaml", "b/few.yaml"])
    {'sets/bccd/dataset.yaml': 'bccd', 'a/few.yaml': 'a/few.yaml', 'b/few.yaml': 'b/few.yaml'}
    """
    paths = dict.fromkeys(data)
    names = [name_of(path) for path in paths]
    return {
        path: name if names.count(name) == 1 else path
        for path, name in zip(paths, names, strict=True)
    }


def figure(value: float, digits: int) -> str:
    """Return a number, or "-" for NaN.

    >>> figure(0.25, 3), figure(float("nan"), 3)
    ('0.250', '-')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def plot(trainings: Sequence[Training], outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw mAP50-95 against wall time: a panel for each data set, a color for each program, a line
    for each seed.
    """
    names = display_names([training.data for training in trainings])
    programs = list(dict.fromkeys(training.program for training in trainings))
    legend: dict[str, Artist] = {}
    with picture(path, 5 * len(names) + 2, 4.2) as figure:
        for axes, (data, name) in zip(
            figure.subplots(1, len(names), squeeze=False)[0], names.items(), strict=True
        ):
            axes.set(title=name, xlabel="minutes since the start of the program", ylabel="mAP50-95")
            axes.grid(True)
            for training, outcome in zip(trainings, outcomes, strict=True):
                if training.data == data and outcome.curve:
                    number = programs.index(training.program)
                    minutes, values = zip(
                        *((at / 60, value) for at, value in outcome.curve), strict=True
                    )
                    marker = "o" if len(values) == 1 else None
                    style = {
                        "color": hex_color(number),
                        "linewidth": 1.6,
                        "alpha": 0.85,
                        "marker": marker,
                    }
                    legend[training.program] = axes.plot(minutes, values, **style)[0]
            if not axes.lines:
                draw_no_data(axes)
        figure.legend(list(legend.values()), list(legend), loc="outside right upper")
