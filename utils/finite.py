"""Optimizer steps that are not finite: skipped by all processes alike, and counted."""

from typing import Any

import torch
from torch import Tensor

from utils.devices import Later

MOST_IN_A_ROW = 10
SCALE_SEARCH = 16  # halvings by which float16's scaler may come down from 2**16, each of them a skipped step


def spreading(loss: Tensor) -> Tensor:
    """What the backward pass of a loss begins with: 1, or nan if the loss is not finite.

    Then no gradient is finite, nor, once they are exchanged, is any process's: all know of it, at no cost.

    >>> spreading(torch.tensor(3.0)), spreading(torch.tensor(float("-inf")))
    (tensor(1.), tensor(nan))
    """
    return torch.where(loss.detach().isfinite(), 1.0, torch.nan).to(loss.dtype)


class FiniteSteps:
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
        self._later = Later(device)
        self._kept = self._joined()

    def begin(self) -> None:
        """Take the statistics as they are for good: something else than a forward pass may have changed them."""
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
        self._count(self._later.pass_on(bad))

    @property
    def stuck(self) -> bool:
        """Whether too many steps were skipped in a row. All processes say the same."""
        return self.in_a_row >= self.most_in_a_row

    def state_dict(self) -> dict[str, Any]:
        self._count(self._later.rest())
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.skipped, self.in_a_row = saved["skipped"], saved["in_a_row"]
        self.begin()

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
