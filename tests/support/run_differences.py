"""How much two training runs differ: their weights, optimizer state and losses.

Metrics are not compared here. Those of a model that has learned nothing are decided by ties and by
rounding, which another processor, number of threads or version of torch changes.
"""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from utils.files import checkpoint_file

NEGLIGIBLE = 1e-6


def last_checkpoint(run: Path) -> dict[str, Any]:
    """The content of last.pt in a run folder."""
    return checkpoint_file.load(run / "weights" / "last.pt")


def difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return the largest |first - second| / |first| of all tensors (Euclidean norm); integer
    tensors must be equal.

    |first| counts as at least NEGLIGIBLE of that of the largest tensor: the gradient of the bias of
    self-attention's keys is 0 but for rounding, so its momentum is about 1e-20.
    """
    assert first.keys() == second.keys()
    floats = {key for key, value in first.items() if value.is_floating_point()}
    assert all(first[key].equal(second[key]) for key in first.keys() - floats)

    norms = {key: first[key].norm().item() for key in floats}
    least = NEGLIGIBLE * max(norms.values(), default=0.0)
    differing = [
        key for key in floats if not first[key].equal(second[key])
    ]  # a momentum may be all zeros in both
    shares = [
        (first[key] - second[key]).norm().item() / max(norms[key], least) for key in differing
    ]
    assert all(math.isfinite(share) for share in shares)
    return max(shares, default=0.0)


def state_differences(first: Path, second: Path) -> dict[str, float]:
    """Return the differences between the final weights, averages and each kind of optimizer state
    of two runs.
    """
    one, other = last_checkpoint(first), last_checkpoint(second)
    assert one["ema_updates"] == other["ema_updates"]

    found = {part: difference(one[part], other[part]) for part in ("model", "ema")}
    for name in {name for entry in one["optimizer"]["state"].values() for name in entry}:
        found[name] = difference(*(state_entries(saved, name) for saved in (one, other)))
    return found


def state_entries(saved: dict[str, Any], name: str) -> dict[str, Tensor]:
    """Return the optimizer's state entries of this name by the number of their parameter."""
    state = saved["optimizer"]["state"]
    return {
        str(number): torch.as_tensor(entry[name])
        for number, entry in state.items()
        if name in entry
    }


def results(run: Path) -> list[dict[str, float]]:
    """The rows of results.csv without the times."""
    with open(run / "results.csv") as file:
        return [
            {k: float(v) for k, v in row.items() if k != "time"} for row in csv.DictReader(file)
        ]


def assert_losses_agree(run: Path, other: Path, *, relative: float) -> None:
    """Every loss and learning rate in results.csv of the two runs agrees; each run has at least one
    epoch.
    """
    rows, expected_rows = results(run), results(other)
    assert len(rows) == len(expected_rows) > 0
    for row, expected in zip(rows, expected_rows, strict=True):
        assert row.keys() == expected.keys()
        compared = {column for column in row if not column.startswith("metrics/")}
        assert {"train/box_loss", "val/box_loss", "lr"} <= compared
        for column in compared:
            assert row[column] == pytest.approx(expected[column], rel=relative, nan_ok=True), column
