"""Optimizer steps that are not finite: skipped by all processes alike, and counted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.distributed.host_copies import AsyncHostCopy
from utils.printable import printable

MOST_IN_A_ROW = 10
MOST_NAMED = 16  # files in an error's text
SCALE_SEARCH = 16  # halvings by which float16's scaler may come down from 2**16, each of them a skipped step


def nan_if_nonfinite(loss: Tensor) -> Tensor:
    """What the backward pass of a loss begins with: 1, or nan if the loss is not finite.

    Then no gradient is finite, nor, once they are exchanged, is any process's: all know of it, at no cost.

    >>> nan_if_nonfinite(torch.tensor(3.0)), nan_if_nonfinite(torch.tensor(float("-inf")))
    (tensor(1.), tensor(nan))
    """
    return torch.where(loss.detach().isfinite(), 1.0, torch.nan).to(loss.dtype)


class NonFiniteGuard:
    """Takes an optimizer's steps, but leaves out those whose gradients are not finite; a fused one never waits for it.

    A forward pass that was not finite has spoilt BatchNorm's running statistics before anybody knew: with the step
    they are set back too. statistics: those tensors, changed in place by each forward pass. searching: float16's scaler
    looks for its scale with steps that are not finite.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        statistics: list[Tensor],
        device: torch.device,
        *,
        searching: bool = False,
    ) -> None:
        self.optimizer, self.statistics = optimizer, statistics
        self.skipped = self.in_a_row = 0
        self.most_in_a_row = MOST_IN_A_ROW + (SCALE_SEARCH if searching else 0)
        self._later = AsyncHostCopy(device)
        self._kept = self._joined()

    def snapshot_statistics(self) -> None:
        """Take the statistics as they are now: something else than a forward pass may have changed them."""
        self._kept = self._joined()

    def step(self, norm: Tensor) -> None:
        """norm: of all gradients together, the same on all processes."""
        bad = ~norm.isfinite()
        if self.optimizer.defaults.get("fused"):
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # heeded on the device
            self.optimizer.step()
        elif not bad:
            self.optimizer.step()
        if self.statistics:
            now = self._joined()  # may be infinite by itself, where a batch's variance is and its gradients are not
            self._kept = torch.where(bad | ~now.isfinite(), self._kept, now)
            torch._foreach_copy_(self.statistics, self._parts())
        self._count(self._later.push(bad))

    @property
    def stuck(self) -> bool:
        """Whether too many steps were skipped in a row. All processes say the same."""
        return self.in_a_row >= self.most_in_a_row

    def state_dict(self) -> dict[str, Any]:
        self._count(self._later.drain())
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.skipped, self.in_a_row = saved["skipped"], saved["in_a_row"]
        self.snapshot_statistics()

    def _count(self, flags: list[Tensor]) -> None:
        for flag in flags:
            bad = bool(flag)
            self.skipped += bad
            self.in_a_row = self.in_a_row + 1 if bad else 0

    def _joined(self) -> Tensor:
        """All statistics as one tensor, since what a copy on a GPU costs is its start."""
        return torch.cat([part.flatten() for part in self.statistics]) if self.statistics else torch.zeros(0)

    def _parts(self) -> list[Tensor]:
        pieces = self._kept.split([part.numel() for part in self.statistics])
        return [piece.view_as(part) for piece, part in zip(pieces, self.statistics, strict=True)]


def describe_stuck(
    guard: NonFiniteGuard, where: str, last: Path, images: Sequence[int], path_of: Callable[[int], str]
) -> str:
    """What to say where training cannot continue. images: of the last batch, of all processes; path_of: their files."""
    files = ", ".join(printable(path_of(index)) for index in images[:MOST_NAMED])
    more = f" and {len(images) - MOST_NAMED} more" if len(images) > MOST_NAMED else ""
    return (
        f"loss or gradient was not finite in {guard.in_a_row} optimizer steps in a row, up to {where}; nothing of them "
        f"is in the weights or in last.pt. Begin another run with --weights {last}, a lower lr0 in --hyp, or --amp "
        f"fp32. The last batch: images {images} ({files}{more})"
    )
