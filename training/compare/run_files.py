"""What the files of a run folder say: settings, epochs, metrics. They are data of any origin."""

import csv
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, SequenceNode

from training.early_stopping import EarlyStopping
from training.results import COLUMN_OF, METRICS_FILE
from utils.files.yaml_tree import pairs, read_tree
from utils.metrics.fitness import DEFAULT, Fitness, parse_fitness
from utils.printable import one_line

SETTINGS = "args.yaml"
HYP = "hyp.yaml"
RESULTS = "results.csv"
DATA = "data_report.json"
PREEMPTED = "preempted.json"
MARKS = (SETTINGS, RESULTS, METRICS_FILE)  # a folder without any of these is no run folder

MAX_BYTES = {SETTINGS: 2**20, HYP: 2**16, RESULTS: 2**26, METRICS_FILE: 2**26, DATA: 2**26}
MOST_EPOCHS = 10**9  # a higher number of an epoch is damage
MOST_COUNTED = 10**15  # so is a higher number of images or boxes
NUMBERS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "precision", "recall")


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run folder. What a file does not say is left out.

    columns: of results.csv, nan for what is no number. best: COCO's numbers of best.pt, or of
    val.py. best_epoch: of best.pt, nan if it is not known. classes: their AP by name. data: images
    and boxes of the val split. digest: of them, "" if it is not known. fitness: decides which epoch
    is the best. problems: a sentence for each file that could not be read, and for what is missing.
    """

    folder: Path
    status: str
    settings: dict[str, str]
    hyp: dict[str, str]
    columns: dict[str, list[float]]
    best: dict[str, float]
    classes: dict[str, float]
    data: tuple[float, float] | None
    digest: str
    fitness: Fitness
    best_epoch: float = math.nan
    problems: list[str] = field(default_factory=list)

    @property
    def epochs(self) -> list[float]:
        """Return the numbers of the epochs that are trained."""
        return self.columns.get("epoch", [])

    @property
    def best_row(self) -> int | None:
        """Return the position of the best epoch; None if none was validated.

        It is that of best.pt if metrics.json says it, else the one that the training took.
        """
        if self.best_epoch in self.epochs:
            return self.epochs.index(self.best_epoch)

        stopping = EarlyStopping(patience=0)
        for row in range(len(self.epochs)):
            metrics = {name: self.columns[column][row] for name, column in COLUMN_OF.items()}
            if all(map(math.isfinite, metrics.values())):
                stopping.update(row, self.fitness.of(metrics))
        return stopping.best_epoch


def is_run(folder: Path) -> bool:
    """Return whether a folder has a file of a run."""
    return any((folder / name).is_file() for name in MARKS)


def read_run(folder: Path) -> RunFiles:
    """Return what a run folder says. A file that is damaged is reported and left out."""
    reader = _Reader(folder)
    metrics = reader.json(METRICS_FILE)
    columns = reader.columns()
    best = metrics.get("best", metrics)  # val.py writes one evaluation
    best = best if isinstance(best, dict) else {}
    per_class = best.get("per_class", {})
    val = reader.json(DATA).get("val")
    val = val if isinstance(val, dict) else {}
    settings = reader.yaml(SETTINGS)
    best_epoch = _numbers(best, ("epoch",), math.inf).get("epoch", math.nan)
    fitness, is_known = _fitness(settings)
    if not is_known and best_epoch not in columns.get("epoch", []) and columns:
        reader.problems.append(
            f"{RESULTS} does not have what --fitness needs: the best epoch is that of {DEFAULT}"
        )

    run = RunFiles(
        folder=folder,
        status=_status(folder, metrics, columns),
        settings=settings,
        hyp=reader.yaml(HYP),
        columns=columns,
        best=_numbers(best, NUMBERS),
        classes=_class_aps(per_class if isinstance(per_class, dict) else {}),
        data=_counts(val),
        digest=str(val.get("digest", "")),
        fitness=fitness,
        best_epoch=best_epoch,
        problems=reader.problems,
    )
    reason = metrics.get("reason")
    if isinstance(reason, str):  # why it did not finish
        reader.problems.append(f"{run.status}: {one_line(reason)}")
    if not run.best and run.best_row is not None:
        row = run.best_row
        for name, column in COLUMN_OF.items():
            run.best[name] = run.columns[column][row]
        reader.problems.append(
            f"no result in {METRICS_FILE}: the numbers are those of the best row of {RESULTS}"
        )
    return run


class _Reader:
    """Reads the files of a folder; what goes wrong is a sentence in `problems`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def yaml(self, name: str) -> dict[str, str]:
        """Return a YAML file of keys and values as text; {} if it is missing or damaged."""
        file = self.folder / name
        if not file.is_file():
            return {}
        try:
            tree = read_tree(file, name, "file of settings", MAX_BYTES[name])
            if not isinstance(tree, MappingNode):
                raise ValueError(f"{name}: not a list of keys and values")
            return {key: _as_text(value) for key, value in pairs(tree, name, "the settings")}
        except ValueError as error:
            self.problems.append(one_line(error))
            return {}

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON file that holds an object; {} if it is missing or damaged."""
        text = self._text(name)
        if text is None:
            return {}
        try:
            content = json.loads(text)
            if not isinstance(content, dict):
                raise ValueError("not an object")
            return content
        except (ValueError, RecursionError) as error:
            self.problems.append(f"{name} cannot be used: {one_line(error)}")
            return {}

    def columns(self) -> dict[str, list[float]]:
        """Return the columns of results.csv; {} if it is missing, damaged or has no rows."""
        text = self._text(RESULTS)
        if text is None:
            return {}
        try:
            header, *rows = [row for row in csv.reader(text.splitlines()) if row] or [[]]
        except csv.Error as error:
            self.problems.append(f"{RESULTS} cannot be used: {one_line(error)}")
            return {}

        names = [name.strip() for name in header]
        missing = {"epoch", *COLUMN_OF.values()} - {*names}
        if rows and missing:
            self.problems.append(f"{RESULTS} cannot be used: no column {sorted(missing)[0]}")
            return {}
        if not rows:
            return {}
        epoch = names.index("epoch")
        whole = [row for row in rows if len(row) == len(names) and _is_epoch(row[epoch])]
        if len(whole) < len(rows):
            left_out = len(rows) - len(whole)
            self.problems.append(
                f"{RESULTS}: rows without {len(names)} values or the number of an epoch: {left_out}"
            )
        columns = {name: [_as_number(row[i]) for row in whole] for i, name in enumerate(names)}
        for name in COLUMN_OF.values():
            columns[name] = [value if 0 <= value <= 1 else math.nan for value in columns[name]]
        return columns

    def _text(self, name: str) -> str | None:
        """Return a file's text; None if it is missing, too large or unreadable."""
        file = self.folder / name
        if not file.is_file():
            return None
        try:
            if file.stat().st_size > MAX_BYTES[name]:
                raise ValueError(f"larger than {MAX_BYTES[name]:,} bytes")
            return file.read_text(encoding="utf-8-sig")  # spreadsheets write a mark
        except (OSError, ValueError) as error:
            self.problems.append(f"{name} cannot be read: {one_line(error)}")
            return None


def _as_text(node: Node) -> str:
    """Return a YAML value as text; a list with commas."""
    if isinstance(node, SequenceNode):
        return ", ".join(map(_as_text, node.value))
    if isinstance(node, MappingNode):
        return ", ".join(f"{_as_text(key)}: {_as_text(value)}" for key, value in node.value)
    return str(node.value)


def _as_number(text: str) -> float:
    """Return the number in a cell; nan if there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_epoch(text: str) -> bool:
    """Return whether a cell has the number of an epoch, which is a whole one from 1 on."""
    value = _as_number(text)
    return value.is_integer() and 1 <= value <= MOST_EPOCHS


def _numbers(
    values: Mapping[str, Any], names: tuple[str, ...], highest: float = 1.0
) -> dict[str, float]:
    """Return the numbers of these names from 0 to `highest`: -1 is an unknown one."""
    found = {}
    for name in names:
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if 0 <= value <= highest:
            found[name] = float(value)
    return found


def _class_aps(per_class: Mapping[str, Any]) -> dict[str, float]:
    """Return the AP of each class that has one."""
    aps = {}
    for name, row in per_class.items():
        ap = _numbers(row if isinstance(row, dict) else {}, ("AP",))
        aps[name] = ap.get("AP", math.nan)
    return aps


def _counts(split: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the numbers of images and of boxes of a split, None if they are not known."""
    counts = _numbers(split, ("images", "instances"), MOST_COUNTED)
    return (counts["images"], counts["instances"]) if len(counts) == 2 else None


def _fitness(settings: Mapping[str, str]) -> tuple[Fitness, bool]:
    """Return the expression of --fitness, and True; the default if the columns are not enough."""
    with suppress(ValueError):  # the file may be damaged
        fitness = parse_fitness(settings.get("fitness", ""))
        if fitness.needs_only(COLUMN_OF):
            return fitness, True
    return parse_fitness(DEFAULT), False


def _status(folder: Path, metrics: Mapping[str, Any], columns: Mapping[str, list[float]]) -> str:
    """Return how the run ended, as one word or two."""
    status = metrics.get("status")
    if isinstance(status, str):
        return one_line(status, 40)
    if "best" in metrics:
        return "finished"
    if "AP" in metrics:
        return "validation"
    if (folder / PREEMPTED).is_file():
        return "interrupted"
    return "unfinished" if columns else "no epoch"
