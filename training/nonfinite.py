"""Skip optimizer steps whose gradients are not finite, on all processes together."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.checkpoints.usable_weights import HUGE
from utils.distributed.host_copies import AsyncHostCopy
from utils.printable import counted, printable
from utils.terminal import FaultError

MAX_IN_A_ROW = 10
MAX_NAMED = 16  # files in an error message
# Halvings of the float16 gradient scale from 2**16 to 1, each of them a skipped step.
SCALE_SEARCH = 16
SCALE_GROWTH = 2000  # finite steps in a row after which torch's GradScaler doubles the scale


class NonFiniteError(FaultError):
    """Too many optimizer steps were skipped."""

    says_how_to_continue = True


def nan_if_nonfinite(loss: Tensor) -> Tensor:
    """Return the gradient to start a loss's backward pass with: 1, or nan if it is not finite.

    With nan no gradient is finite, and after the all-reduce no gradient of any process is: all
    processes detect it without an extra collective.

    >>> nan_if_nonfinite(torch.tensor(3.0)), nan_if_nonfinite(torch.tensor(float("-inf")))
    (tensor(1.), tensor(nan))
    """
    return torch.where(loss.detach().isfinite(), 1.0, torch.nan).to(loss.dtype)


class NonFiniteGuard:
    """Runs an optimizer's steps, and skips those whose gradients are not finite.

    With a fused optimizer the host never waits for the device. A forward pass with values that are
    not finite has already changed BatchNorm's running statistics, so a skipped step restores them
    too.

    Args:
        optimizer: whose steps are run.
        statistics: BatchNorm's running statistics, which each forward pass changes in place.
        device: where the gradients are.
        searching: whether a float16 gradient scaler finds its scale by steps that are not finite.
            Then more of them in a row are allowed, and as many steps as the scale can be halved are
            counted as `searched`, not as `skipped`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        statistics: list[Tensor],
        device: torch.device,
        *,
        searching: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.statistics = statistics
        self.searching = searching

        # Counts of skipped steps.
        self.skipped = 0
        self.searched = 0
        self.in_a_row = 0

        # The search for the float16 scale.
        extra_steps = SCALE_SEARCH if searching else 0
        self.most_in_a_row = MAX_IN_A_ROW + extra_steps
        self._halvings = extra_steps  # that are left until the scale is 1
        self._finite = 0  # steps since the scale was last changed

        self._flags = AsyncHostCopy(device)  # whether each of the last steps was skipped
        self._saved = self._flat_statistics()

    def snapshot_statistics(self) -> None:
        """Save the statistics as the ones to restore.

        Call it when anything but a forward pass has changed them.
        """
        self._saved = self._flat_statistics()

    def step(self, norm: Tensor) -> None:
        """Step, or skip the step if norm is not finite.

        norm: of all gradients, the same on all processes.
        """
        bad = ~norm.isfinite()
        if self.optimizer.defaults.get("fused"):
            # Read on the device, where a fused step with this flag changes nothing.
            self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not bad:
            self.optimizer.step()

        if self.statistics:
            # A batch's variance may be infinite although its gradients are finite.
            current = self._flat_statistics()
            keep_saved = bad | ~current.isfinite()
            self._saved = torch.where(keep_saved, self._saved, current)
            torch._foreach_copy_(self.statistics, self._saved_parts())

        arrived = self._flags.push(bad)
        self._count(arrived)

    @property
    def stuck(self) -> bool:
        """Whether too many steps were skipped in a row; the same on all processes."""
        return self.in_a_row >= self.most_in_a_row

    def wait_for_flags(self) -> None:
        """Wait for the flags that are still on their way, so that the counts are of all steps."""
        self._count(self._flags.drain())

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, of all steps so far, as plain values."""
        self.wait_for_flags()
        counts = {"skipped": self.skipped, "in_a_row": self.in_a_row}
        if not self.searching:
            return counts
        search = {"searched": self.searched, "halvings": self._halvings, "finite": self._finite}
        return counts | search

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the counts, and save the present statistics as the ones to restore."""
        self.skipped = saved["skipped"]
        self.in_a_row = saved["in_a_row"]
        if self.searching:
            self.searched = saved.get("searched", 0)
            self._halvings = saved.get("halvings", SCALE_SEARCH)
            self._finite = saved.get("finite", 0)
        self.snapshot_statistics()

    def _count(self, flags: list[Tensor]) -> None:
        """Count steps, of which each flag says whether it was skipped."""
        for flag in flags:
            bad = bool(flag)
            self.in_a_row = self.in_a_row + 1 if bad else 0
            self._follow_growth(bad)

            # The first ones halve the scale.
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

    def _flat_statistics(self) -> Tensor:
        """Return all statistics as one tensor [S]: on a GPU, the launch makes a copy expensive."""
        if not self.statistics:
            return torch.zeros(0)
        return torch.cat([part.flatten() for part in self.statistics])

    def _saved_parts(self) -> list[Tensor]:
        """Return the saved statistics, in the shapes of `statistics`."""
        pieces = self._saved.split([part.numel() for part in self.statistics])
        return [piece.view_as(part) for piece, part in zip(pieces, self.statistics, strict=True)]


def describe_stuck(
    guard: NonFiniteGuard,
    where: str,
    advice: str,
    images: Sequence[int],
    path_of: Callable[[int], str],
) -> str:
    """Return the error message when training cannot continue.

    Args:
        guard: that has skipped too many steps in a row.
        where: the last of them, as text.
        advice: a sentence on what to do, from `advise`.
        images: indices of the last batch's images, of all processes.
        path_of: the file of an index.
    """
    files = ", ".join(printable(path_of(index)) for index in images[:MAX_NAMED])
    if len(images) > MAX_NAMED:
        files += f" and {len(images) - MAX_NAMED} more"
    return (
        f"loss or gradient was not finite in {guard.in_a_row} optimizer steps in a row, up to "
        f"{where}; these steps were skipped. {advice}. "
        f"The last batch: images {images} ({files})"
    )


def advise(largest: float, lr: float, usable: Path | None) -> str:
    """Return a sentence on what to do when training cannot continue.

    largest: absolute value of the weights. lr: the run's learning rate. usable: the newest
    checkpoint whose weights are not huge; None if there is none.

    >>> advise(3.0, 0.01, Path("last.pt"))
    'Start a new run with --weights last.pt, and a learning rate (lr0 in --hyp) below 0.01
    or --amp fp32'
    >>> advise(3e8, 0.01, None)
    'The weights have grown to 3e+08: start from the beginning, with a learning rate
    (lr0 in --hyp) below 0.01'
    """
    start = "start from the beginning, with"
    if usable:
        start = f"start a new run with --weights {usable}, and"
    advice = f"{start} a learning rate (lr0 in --hyp) below {lr:g}"

    if largest >= HUGE:
        return f"The weights have grown to {largest:.2g}: {advice}"
    return f"{advice[0].upper()}{advice[1:]} or --amp fp32"


def describe_skipped(skipped: int, steps: int) -> str:
    """Return a sentence for the end of a run on its skipped steps; "" if there are none.

    >>> describe_skipped(1, 300)
    '1 of 300 optimizer steps was skipped, because its loss or gradient was not finite'
    """
    if not skipped:
        return ""
    were_skipped = "was skipped, because its" if skipped == 1 else "were skipped, because their"
    share = f"{skipped:,} of {counted(steps, 'optimizer step')}"
    return f"{share} {were_skipped} loss or gradient was not finite"


def describe_skipped_in_epoch(skipped: int, searched: int, steps: int) -> str:
    """Return what happened to an epoch's optimizer steps, to append to its line; "" if nothing did.

    skipped, searched: of `steps` steps, as NonFiniteGuard counts them.

    >>> describe_skipped_in_epoch(2, 0, 13)
    ', 2 of 13 optimizer steps skipped (not finite)'
    >>> describe_skipped_in_epoch(0, 1, 13)
    ", 1 of 13 optimizer steps set float16's gradient scale"
    """
    of_steps = f"of {counted(steps, 'optimizer step')}"
    text = ""
    if skipped:
        text += f", {skipped} {of_steps} skipped (not finite)"
    if searched:
        text += f", {searched} {of_steps} set float16's gradient scale"
    return text


def refuse_mostly_skipped(skipped: int, steps: int, lr: float) -> None:
    """Raise NonFiniteError if more than half of a run's optimizer steps were skipped."""
    if 2 * skipped > steps:
        raise NonFiniteError(
            f"{describe_skipped(skipped, steps)}: the model has learned from few images; "
            f"use a learning rate (lr0 in --hyp) below {lr:g}, or --amp fp32"
        )
