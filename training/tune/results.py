"""What a study leaves in its folder: trials.csv, hyp_tune.yaml, and the best trial's weights."""

import csv
import io
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from training.settings.config import TrainConfig, flag
from training.settings.hyperparameters import OPTIMIZER
from training.tune.space import HYP_DEFAULTS, Value
from training.tune.study import Study, index_of
from utils.files.folders import lies_in
from utils.files.writers import write_text
from utils.printable import counted, printable

BEST_HYP = "hyp_tune.yaml"
HISTORY = "trials.csv"
# flags of a command that are not repeated in the one that trains with the best settings
NOT_REPEATED = ("project", "name", "exist_ok", "noplots", "hyp", OPTIMIZER, "batch_size")


def write_results(study: Study) -> None:
    """Write the files from all trials of the study, and remove weights that nobody needs."""
    with study.turn():
        trials = study.trials()
        best = study.best()
        names = [parameter.name for parameter in study.settings.space]
        write_text(study.folder / HISTORY, table(trials, names))
        if best is not None:
            done = sum(trial.state.name == "COMPLETE" for trial in trials)
            title = (
                f"# the best of {counted(done, 'complete trial')}: number {best.number}, "
                f"fitness {best.value:.5g}\n"
            )
            values = {OPTIMIZER: best.user_attrs[OPTIMIZER], **best.user_attrs["hyp"]}
            text = yaml.safe_dump(values, sort_keys=False)
            write_text(study.folder / BEST_HYP, title + text)
        _remove_weights(study.folder, trials, best)


def table(trials: Sequence[Any], names: Sequence[str]) -> str:
    """Return trials.csv: a row for each trial, in the order in which they were begun."""
    text = io.StringIO()
    columns = ["trial", "index", "state", "fitness", "epochs", *names, "failure"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for trial in trials:
        row = {
            "trial": trial.number,
            "index": index_of(trial),
            "state": trial.state.name.lower(),
            "fitness": "" if trial.value is None else f"{trial.value:.6g}",
            "epochs": trial.last_step or 0,
            "failure": printable(str(trial.user_attrs.get("failure", ""))),
        }
        values = {name: printable(str(trial.params.get(name, ""))) for name in names}
        writer.writerow(row | values)
    return text.getvalue()


def _remove_weights(folder: Path, trials: Sequence[Any], best: Any | None) -> None:
    """Remove the weights of all trials of this machine that have ended, but best.pt of the best."""
    for trial in trials:
        weights = folder / "trials" / str(trial.number) / "weights"
        if not trial.state.is_finished() or not lies_in(weights, folder):
            continue
        if best is not None and trial.number == best.number:
            (weights / "last.pt").unlink(missing_ok=True)
        else:
            shutil.rmtree(weights, ignore_errors=True)


def best_command(flags: TrainConfig, hyp_file: Path, trial: Any) -> str:
    """Return the command that trains with the settings of a trial.

    flags: of the command line of the study.
    """
    values = flags.as_dict()
    searched: Mapping[str, Value] = trial.params
    chosen = {name: value for name, value in searched.items() if name not in HYP_DEFAULTS}
    words = ["python", "train.py"]
    for name in values:
        if name in NOT_REPEATED:
            continue
        if name in chosen:
            words += typed(name, chosen[name])
        elif name in flags.given:
            words += typed(name, values[name])
    words += typed("hyp", str(hyp_file))
    words += typed("batch_size", trial.user_attrs["batch_size"])
    return shlex.join(words)


def typed(name: str, value: object) -> list[str]:
    """Return a flag and its value as words of a command line.

    >>> typed("imgsz", 64), typed("rect", True), typed("rect", False), typed("freeze", [0, 1])
    (['--imgsz', '64'], ['--rect'], [], ['--freeze', '0', '1'])
    >>> typed("fitness", "-AP")
    ['--fitness=-AP']
    """
    if isinstance(value, bool):
        return [flag(name)] if value else []
    if isinstance(value, list):
        return [flag(name), *map(str, value)]
    if str(value).startswith("-"):
        return [f"{flag(name)}={value}"]
    return [flag(name), str(value)]
