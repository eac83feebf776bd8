"""Optimizer steps with gradients that are not finite: skipped by all processes together, and counted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.distributed.host_copies import AsyncHostCopy
from utils.printable import printable

MAX_IN_A_ROW = 10
MAX_NAMED = 16  # files in an error message
SCALE_SEARCH = 16  # halvings of the float16 gradient scale from 2**16 to 1, each of them a skipped step
SCALE_GROWTH = 2000  # finite steps in a row after which torch's GradScaler doubles the scale


def nan_if_nonfinite(loss: Tensor) -> Tensor:
    """The gradient that the backward pass of a loss starts with: 1, or nan if the loss is not finite.

    With nan no gradient is finite, and after the all-reduce no gradient of any process is: all processes detect it
    without an extra collective.

    >>> nan_if_nonfinite(torch.tensor(3.0)), nan_if_nonfinite(torch.tensor(float("-inf")))
    (tensor(1.), tensor(nan))
    """
    return torch.where(loss.detach().isfinite(), 1.0, torch.nan).to(loss.dtype)


class NonFiniteGuard:
    """Runs an optimizer's steps, and skips those whose gradients are not finite.

    With a fused optimizer the host never waits for the device. A forward pass with values that are not finite has
    already changed BatchNorm's running statistics, so a skipped step restores them too. statistics: those tensors,
    which each forward pass changes in place. searching: the float16 gradient scaler finds its scale by steps that are
    not finite, so more of them in a row are allowed, and as many steps as the scale can be halved are counted as
    `searched`, not as `skipped`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        statistics: list[Tensor],
        device: torch.device,
        *,
        searching: bool = False,
    ) -> None:
        self.optimizer, self.statistics, self.searching = optimizer, statistics, searching
        self.skipped = self.searched = self.in_a_row = 0
        self._halvings = SCALE_SEARCH if searching else 0  # that are left until the scale is 1
        self._finite = 0  # steps since the scale was last changed
        self.most_in_a_row = MAX_IN_A_ROW + (SCALE_SEARCH if searching else 0)
        self._flags = AsyncHostCopy(device)
        self._saved = self._flattened()

    def snapshot_statistics(self) -> None:
        """Save the statistics as the ones to restore; call it when anything but a forward pass has changed them."""
        self._saved = self._flattened()

    def step(self, norm: Tensor) -> None:
        """Step, or skip the step if norm is not finite. norm: of all gradients, the same on all processes."""
        bad = ~norm.isfinite()
        if self.optimizer.defaults.get("fused"):
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]  # read on the device
            self.optimizer.step()
        elif not bad:
            self.optimizer.step()
        if self.statistics:
            current = self._flattened()  # a batch's variance may be infinite although its gradients are finite
            self._saved = torch.where(bad | ~current.isfinite(), self._saved, current)
            torch._foreach_copy_(self.statistics, self._saved_parts())
        self._count(self._flags.push(bad))

    @property
    def stuck(self) -> bool:
        """Whether too many steps were skipped in a row; the same on all processes."""
        return self.in_a_row >= self.most_in_a_row

    def state_dict(self) -> dict[str, Any]:
        self._count(self._flags.drain())
        search = {"searched": self.searched, "halvings": self._halvings, "finite": self._finite}
        counts = {"skipped": self.skipped, "in_a_row": self.in_a_row}
        return counts | search if self.searching else counts

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.skipped, self.in_a_row = saved["skipped"], saved["in_a_row"]
        if self.searching:
            self.searched = saved.get("searched", 0)
            self._halvings = saved.get("halvings", SCALE_SEARCH)
            self._finite = saved.get("finite", 0)
        self.snapshot_statistics()

    def _count(self, flags: list[Tensor]) -> None:
        for flag in flags:
            bad = bool(flag)
            self.in_a_row = self.in_a_row + 1 if bad else 0
            self._follow_growth(bad)
            if bad and self._halvings > 0:
                self._halvings -= 1
                self.searched += 1
            elif bad:
                self.skipped += 1

    def _follow_growth(self, bad: bool) -> None:
        """Follow the growth of the float16 scale, so that it may be halved once more."""
        self._finite = 0 if bad else self._finite + 1
        if self.searching and self._finite == SCALE_GROWTH:
            self._finite = 0
            self._halvings = min(self._halvings + 1, SCALE_SEARCH)

    def _flattened(self) -> Tensor:
        """All statistics as one flat tensor: on a GPU, the launch is what makes a copy expensive."""
        return torch.cat([part.flatten() for part in self.statistics]) if self.statistics else torch.zeros(0)

    def _saved_parts(self) -> list[Tensor]:
        pieces = self._saved.split([part.numel() for part in self.statistics])
        return [piece.view_as(part) for piece, part in zip(pieces, self.statistics, strict=True)]


def describe_stuck(
    guard: NonFiniteGuard, where: str, last: Path, images: Sequence[int], path_of: Callable[[int], str]
) -> str:
    """The error message when training cannot continue.

    images: indices of the last batch's images, of all processes. path_of: the file of an index.
    """
    files = ", ".join(printable(path_of(index)) for index in images[:MAX_NAMED])
    more = f" and {len(images) - MAX_NAMED} more" if len(images) > MAX_NAMED else ""
    return (
        f"loss or gradient was not finite in {guard.in_a_row} optimizer steps in a row, up to {where}; these steps "
        f"changed neither the weights nor last.pt. Start a new run with --weights {last}, a lower lr0 in --hyp, or "
        f"--amp fp32. The last batch: images {images} ({files}{more})"
    )
