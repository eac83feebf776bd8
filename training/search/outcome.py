"""What the run folder of a search's training says about it."""

import json
from dataclasses import dataclass
from pathlib import Path

from training.checkpoints.resume import SETTINGS
from training.nonfinite import NonFiniteError
from training.results import COLUMN_OF, METRICS_FILE
from training.settings.hyperparameters import read_hyp
from utils.printable import one_line, printable

KEPT_METRICS = tuple(COLUMN_OF)


@dataclass(frozen=True)
class RunSettings:
    """With what a training was done: values that its command line may have left open."""

    optimizer: str
    batch_size: int
    hyp: dict[str, float]


def read_settings(run: Path) -> RunSettings:
    """Return the settings in hyp.yaml and args.yaml of a run folder."""
    optimizer, hyp = read_hyp(run / "hyp.yaml")
    return RunSettings(optimizer, _batch_size(run / SETTINGS), hyp.as_dict())


def read_best_metrics(run: Path) -> dict[str, float]:
    """Return fitness and KEPT_METRICS of best.pt from metrics.json, with six significant digits."""
    best = json.loads((run / METRICS_FILE).read_text(encoding="utf-8"))["best"]
    return {name: float(f"{best[name]:.6g}") for name in ("fitness", *KEPT_METRICS)}


def failure_of(error: NonFiniteError) -> str:
    """Return the part of the error that does not advise a person."""
    return one_line(str(error).partition(";")[0])


def _batch_size(settings: Path) -> int:
    """Return the batch size in the args.yaml of a run. Raises ValueError if it has none."""
    for line in settings.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(": ")
        if key == "batch_size" and value.isdecimal():
            return int(value)
    raise ValueError(f"{printable(settings)}: has no batch_size")
