"""An epoch's row in results.csv, its line in the log, and the last lines of a run."""

import math
import shlex
from collections.abc import Mapping
from pathlib import Path

METRICS_FILE = "metrics.json"
# Metrics, by their names in that file: their columns, and their names in the log.
COLUMN_OF = {
    "precision": "metrics/precision",
    "recall": "metrics/recall",
    "AP50": "metrics/mAP_0.5",
    "AP": "metrics/mAP_0.5:0.95",
}
SHORT = {"precision": "P", "recall": "R", "AP50": "mAP50", "AP": "mAP50-95"}


def results_row(
    losses: Mapping[str, float], metrics: Mapping[str, float], val_losses: Mapping[str, float]
) -> dict[str, float]:
    """Return the columns of results.csv between time and lr.

    metrics, val_losses: empty if the epoch was not validated; their columns are then nan. metrics:
    by their names in COLUMN_OF.

    >>> results_row({"box": 1.0}, {}, {})
    {'train/box_loss': 1.0, 'metrics/precision': nan, 'metrics/recall': nan,
    'metrics/mAP_0.5': nan, 'metrics/mAP_0.5:0.95': nan, 'val/box_loss': nan}
    """
    nan = float("nan")
    trained = {f"train/{name}_loss": value for name, value in losses.items()}
    measured = {column: metrics.get(name, nan) for name, column in COLUMN_OF.items()}
    validated = {f"val/{name}_loss": val_losses.get(name, nan) for name in losses}
    return {**trained, **measured, **validated}


def epoch_line(row: Mapping[str, float], epochs: int) -> str:
    """Return the log line of an epoch.

    row: of results.csv. epochs: of the run.
    """
    losses = []
    for column, value in row.items():
        if column.startswith("train/"):
            term = column.removeprefix("train/").removesuffix("_loss")
            losses.append(f"{term} {value:.4f}")

    metrics = ["not validated"]
    if not math.isnan(row[COLUMN_OF["AP50"]]):
        metrics = [f"{SHORT[name]} {row[column]:.4f}" for name, column in COLUMN_OF.items()]

    width = len(str(epochs))
    epoch = f"{row['epoch']:>{width}}/{epochs}"
    return f"{epoch}  {' '.join(losses)}  {' '.join(metrics)}"


def next_steps(folder: Path) -> list[str]:
    """Return the lines that say what to do after a run, with its paths filled in.

    >>> next_steps(Path("runs/train/my exp"))[1]
    "    python val.py --weights 'runs/train/my exp/weights/best.pt'"
    """
    best = shlex.quote(str(folder / "weights" / "best.pt"))
    report = folder / "report.html"
    see = f"look at {report}, or " if report.exists() else ""
    return [
        f"next: {see}validate, detect or export:",
        f"    python val.py --weights {best}",
        f"    python detect.py --weights {best} --source IMAGES",
        f"    python export.py --weights {best} --include onnx",
    ]
