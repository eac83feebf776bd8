"""What several runs have in common, and in what they differ."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from training.compare.run_files import NUMBERS, RunFiles
from utils import __version__
from utils.printable import printable

NOT_COMPARED = ("name", "project", "exist_ok", "resume")  # settings that say where a run is
NOT_ENDED = ("running", "unfinished", "no epoch")
DIGITS = 4  # of a metric in the table
TERMINAL_COLUMNS = ("AP", "AP50", "precision", "recall")


def labels_of(runs: Sequence[RunFiles]) -> list[str]:
    """Return a short name for each run, no two alike: as much of the path's end as that takes."""
    parts = [run.folder.absolute().parts for run in runs]
    most = max(map(len, parts), default=1)
    for length in range(1, most):
        labels = ["/".join(part[-length:]) for part in parts]
        if len({*labels}) == len(labels):
            return labels
    return [str(run.folder) for run in runs]


def comparison_values(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Return what the page shows: plain values."""
    labels = labels_of(runs)
    return {
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
        "runs": [run_values(run, label) for run, label in zip(runs, labels, strict=True)],
        "settings": differing([run.settings for run in runs]),
        "hyp": differing([run.hyp for run in runs]),
        "classes": class_aps(runs),
        "problems": problems_of(runs, labels),
    }


def run_values(run: RunFiles, label: str) -> dict[str, Any]:
    """Return a run's row in the table, and its curves."""
    best_row = run.best_row
    seconds = known(run.columns.get("time", []))
    return {
        "name": label,
        "folder": str(run.folder),
        "status": run.status,
        **{name: run.best.get(name) for name in NUMBERS},
        "epochs": len(run.epochs) or None,
        "best_epoch": None if best_row is None else run.epochs[best_row],
        "seconds": statistics.median(seconds) if seconds else None,
        "total": sum(seconds) if seconds else None,
        "columns": run.columns,
    }


def differing(tables: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str | None]]]:
    """Return name and values of the settings that are not alike in all runs that have any.

    None where a run does not have the setting.

    >>> differing([{"epochs": "3", "img": "64"}, {"epochs": "5", "img": "64"}, {}])
    [('epochs', ['3', '5', None])]
    """
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = []
    for name in names:
        values = [table.get(name) for table in tables]
        present = {value for value, table in zip(values, tables, strict=True) if table}
        if len(present) > 1 and name not in NOT_COMPARED:
            rows.append((name, values))
    return rows


def class_aps(runs: Sequence[RunFiles]) -> list[tuple[str, list[float | None]]]:
    """Return the AP of each class in each run; None where it is not known."""
    names = list(dict.fromkeys(name for run in runs for name in run.classes))
    return [(name, [run.classes.get(name) for run in runs]) for name in names]


def problems_of(runs: Sequence[RunFiles], labels: Sequence[str]) -> list[str]:
    """Return sentences about files that could not be used, and about runs that hardly compare."""
    sentences = []
    for run, label in zip(runs, labels, strict=True):
        sentences += [f"{label}: {problem}" for problem in run.problems]
        if run.status in NOT_ENDED:
            sentences.append(f"{label}: the run has not ended, or was ended by force")

    with_classes = [(label, {*run.classes}) for run, label in zip(runs, labels, strict=True)]
    with_classes = [(label, classes) for label, classes in with_classes if classes]
    others = [label for label, classes in with_classes if classes != with_classes[0][1]]
    if others:
        sentences.append(
            f"the classes of {', '.join(others)} differ from those of {with_classes[0][0]}: their "
            "mAP is not comparable"
        )

    with_data = [(label, run) for run, label in zip(runs, labels, strict=True) if run.data]
    others = [label for label, run in with_data if is_other_data(run, with_data[0][1])]
    if others:
        sentences.append(
            f"the val split of {', '.join(others)} has other images or boxes than that of "
            f"{with_data[0][0]}: their metrics are not comparable"
        )
    return sentences


def is_other_data(run: RunFiles, first: RunFiles) -> bool:
    """Return whether two runs have different val splits, as far as their files say."""
    digests = {run.digest, first.digest} - {""}
    return run.data != first.data or len(digests) > 1


def table_text(runs: Sequence[RunFiles]) -> str:
    """Return the runs as lines of text, the best value of a column marked with *."""
    labels = labels_of(runs)
    values = [run_values(run, label) for run, label in zip(runs, labels, strict=True)]
    titles = {"AP": "mAP50-95", "AP50": "mAP50", "precision": "P", "recall": "R"}
    columns: list[list[str]] = [
        ["run", *(printable(label) for label in labels)],
        ["epochs", *(_whole(row["epochs"]) for row in values)],
        ["best", *(_whole(row["best_epoch"]) for row in values)],
    ]
    for name in TERMINAL_COLUMNS:
        numbers = [row[name] for row in values]
        top = best_of(numbers)
        cells = [_share(number, number is not None and number == top) for number in numbers]
        columns.append([titles[name], *cells])
    columns.append(["s/epoch", *(_seconds(row["seconds"]) for row in values)])
    columns.append(["status", *(printable(row["status"]) for row in values)])

    widths = [max(map(len, column)) for column in columns]
    last = len(columns) - 1
    lines = []
    for row in zip(*columns, strict=True):
        cells = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.ljust(width) if i in (0, last) else cell.rjust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def known(values: Sequence[float | None]) -> list[float]:
    """Return the finite numbers.

    >>> known([1.0, None, float("nan")])
    [1.0]
    """
    return [value for value in values if value is not None and math.isfinite(value)]


def best_of(values: Sequence[float | None]) -> float | None:
    """Return the highest share, None unless there is a lower one, or if it is shown as 0.0000.

    >>> best_of([0.5, None, 0.25]), best_of([0.5, 0.5]), best_of([0.00001, 0])
    (0.5, None, None)
    """
    numbers = known(values)
    if len({*numbers}) < 2 or round(max(numbers), DIGITS) == 0:
        return None
    return max(numbers)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _share(value: float | None, best: bool) -> str:
    if value is None or not math.isfinite(value):
        return "- "
    return f"{value:.{DIGITS}f}{'*' if best else ' '}"


def _seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.1f}" if value < 1e6 else f"{value:.1e}"
