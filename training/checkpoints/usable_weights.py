"""Find weights to start again from, after a run that became stuck.

Its loss or gradient was not finite in many steps in a row.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from utils.files import checkpoint_file
from utils.files.folders import newest_first

# The largest weights of two trained yolov5n (BCCD, generated shapes) are 6.1 and 6.2.
HUGE = 1000.0


def largest_weight(state: Mapping[str, Tensor], parameters: Collection[str]) -> float:
    """Return the largest absolute value of these entries of a model's state.

    inf if one is not finite, 0 without entries.
    """
    largest = 0.0
    for name in parameters:
        weights = state[name].detach()
        if not weights.isfinite().all():
            return float("inf")
        if weights.numel():
            largest = max(largest, weights.abs().max().item())
    return largest


def newest_usable(folder: Path, parameters: Collection[str]) -> Path | None:
    """Return the newest checkpoint in a run's folder none of whose weights is huge, or None.

    parameters: the names of the weights in a model's state.
    """
    for file in newest_first(folder / "weights", "*.pt"):
        with suppress(ValueError, KeyError):  # damaged, or of another model
            saved = checkpoint_file.load(file)
            states = [saved[part] for part in ("model", "ema") if part in saved]
            if all(largest_weight(state, parameters) < HUGE for state in states):
                return file
    return None
