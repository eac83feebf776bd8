"""An epoch's row in results.csv, and its line in the log."""

from collections.abc import Mapping

METRICS = ("precision", "recall", "mAP_0.5", "mAP_0.5:0.95")
SHORT = dict(zip(METRICS, ("P", "R", "mAP50", "mAP50-95"), strict=True))


def results_row(
    losses: Mapping[str, float], metrics: Mapping[str, float], val_losses: Mapping[str, float]
) -> dict[str, float]:
    """The columns of results.csv between time and lr; nan for the metrics of an epoch that was not
    validated.

    metrics, val_losses: empty if the epoch was not validated.

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
    """The log line of an epoch."""
    losses = " ".join(f"{k[6:-5]} {v:.4f}" for k, v in row.items() if k.startswith("train/"))
    metrics = " ".join(f"{SHORT[name]} {row['metrics/' + name]:.4f}" for name in METRICS)
    validated = row["metrics/mAP_0.5"] == row["metrics/mAP_0.5"]  # not nan
    return (
        f"{row['epoch']:>{len(str(epochs))}}/{epochs}  {losses}  "
        f"{metrics if validated else 'not validated'}"
    )
