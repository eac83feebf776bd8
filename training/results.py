"""An epoch's row in results.csv, and its line in the log."""

import math
from collections.abc import Mapping

METRICS = ("precision", "recall", "mAP_0.5", "mAP_0.5:0.95")
SHORT = dict(zip(METRICS, ("P", "R", "mAP50", "mAP50-95"), strict=True))


def results_row(
    losses: Mapping[str, float], metrics: Mapping[str, float], val_losses: Mapping[str, float]
) -> dict[str, float]:
    """Return the columns of results.csv between time and lr.

    metrics, val_losses: empty if the epoch was not validated; their columns are then nan.

    >>> results_row({"box": 1.0}, {}, {})
    {'train/box_loss': 1.0, 'metrics/precision': nan, 'metrics/recall': nan,
    'metrics/mAP_0.5': nan, 'metrics/mAP_0.5:0.95': nan, 'val/box_loss': nan}
    """
    nan = float("nan")
    trained = {f"train/{name}_loss": value for name, value in losses.items()}
    measured = {f"metrics/{name}": metrics.get(name, nan) for name in METRICS}
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
    if not math.isnan(row["metrics/mAP_0.5"]):
        metrics = [f"{SHORT[name]} {row['metrics/' + name]:.4f}" for name in METRICS]

    width = len(str(epochs))
    epoch = f"{row['epoch']:>{width}}/{epochs}"
    return f"{epoch}  {' '.join(losses)}  {' '.join(metrics)}"
