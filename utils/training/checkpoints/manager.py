"""A run's checkpoint files: last.pt to resume from, best.pt to use, epochN.pt to keep."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from utils.background import BackgroundTask
from utils.files import checkpoint_file
from utils.files.writers import write_json
from utils.terminal import print_lines
from utils.training.checkpoints.contents import Description
from utils.training.checkpoints.preemption import InterruptedRunError, PreemptedExit, SaveTrigger
from utils.training.state import TrainState

PREEMPTED = "preempted.json"


class CheckpointManager:
    """Saves a run at the end of each epoch and within it, by the clock and when a signal asks for it.

    As a context it hears signals. All processes call it alike. folder: the run's. description: what a checkpoint says
    beside the state. final_only: write at the end of the run only, the last epoch as the best one, and where a signal
    asks for it. period: keep the state of every so many epochs; 0 or less: of none. minutes: between two times that it
    saves within an epoch; 0: only for signals.
    """

    def __init__(
        self,
        folder: Path,
        state: TrainState[Any],
        description: Description,
        *,
        final_only: bool,
        period: int,
        minutes: float = 0.0,
    ) -> None:
        self.folder, self.state, self.description = folder, state, description
        self.background = BackgroundTask("evaluating detections")
        self.trigger = SaveTrigger(state.world, minutes, self.background)
        self.final_only, self.period, self.world, self.progress = final_only, period, state.world, state.progress
        self.last, self.best = folder / "weights" / "last.pt", folder / "weights" / "best.pt"
        self._pending_ema: dict[str, Tensor] | None = None  # at the end of the epoch whose validation is pending

    def __enter__(self) -> "CheckpointManager":
        self.trigger.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self.trigger.__exit__(*failure)

    def after_step(self, batch: int) -> None:
        """Save if it is time to, and take in what was computed in the background.

        batch: those of the epoch that are trained; no gradient of theirs is left over.

        Raises PreemptedExit, on all processes, when it has saved because of a signal.
        """
        save, nobody_busy = self.trigger.check()
        if save or nobody_busy:
            self.background.wait()
        if save:
            self.progress.batch = batch
            self.save_mid_epoch()

    def save_mid_epoch(self) -> None:
        """Save within an epoch. Raises PreemptedExit if a signal asked for it."""
        name, state = self.trigger.agreed_signal(), self._state()
        if self.world.is_main:
            checkpoint_file.save(self.last, state)
        self._continue_or_exit(name)

    @contextmanager
    def interruptible(self, *, saved: bool = False) -> Iterator[None]:
        """A validation, which a signal may interrupt. Raises PreemptedExit, when it has saved, if one does.

        saved: there is nothing that last.pt does not hold.
        """
        try:
            yield
        except InterruptedRunError:
            if saved:
                self._continue_or_exit(self.trigger.agreed_signal())
            self.save_mid_epoch()
            raise

    def after_epoch(self, *, done: bool) -> None:
        """Save, when the run has come to the next epoch. done: there is none.

        best.pt follows last.pt: a run that was killed between the two finds in last.pt what best.pt is to hold. Where
        the validation is still pending, `write_pending` writes it.
        """
        name = "" if done else self.trigger.agreed_signal()
        if done or name or not self.final_only:
            state = self._state()
            if self.world.is_main:
                if self.period > 0 and self.progress.epoch % self.period == 0:
                    checkpoint_file.save(self.last.with_name(f"epoch{self.progress.epoch}.pt"), state)
                checkpoint_file.save(self.last, state)
                if self._is_best() or (done and self.final_only):
                    self._save_best()
        if self.progress.pending and not self.final_only:
            self._pending_ema = {key: value.clone() for key, value in self.state.ema.state_dict().items()}
        self._continue_or_exit(name)

    def write_pending(self) -> None:
        """Write best.pt if the last epoch is the best one, by the validation that was pending when it was saved."""
        if self._pending_ema is not None and self._is_best() and self.world.is_main:
            self._save_best()
        self._pending_ema = None

    def restore_best(self, say: Callable[[str], None], *, done: bool) -> None:
        """Have best.pt be what a resumed run says of it; says so if that cannot be. done: no epoch will follow.

        A run's folder may have lost it, or have one of a later epoch than the checkpoint that was named.
        """
        best = self.progress.early_stopping.best_epoch
        if self._is_best() or (done and self.final_only):
            if self.world.is_main:
                self._save_best()
            return
        if self.final_only or best is None:
            return
        if self.world.broadcast_object(self._epoch_of_best() if self.world.is_main else 0) == best + 1:
            return
        self.progress.early_stopping.reset()
        if self.world.is_main and self._is_best():
            self._save_best()
        say(f"{self.best} is not of epoch {best + 1}, the best so far: the search for the best starts again here")

    def _epoch_of_best(self) -> int:
        """Counted from 1; 0 if best.pt is lost, or holds something else."""
        with suppress(ValueError, OSError):
            return int(checkpoint_file.load(self.best).get("epoch", 0))
        return 0

    def _is_best(self) -> bool:
        """Whether the last epoch is the best so far, and its weights are still there."""
        at = self.progress
        there = at.batch == 0 or self._pending_ema is not None  # the next epoch's steps change them
        known = at.epoch > 0 and not at.pending
        return there and known and not self.final_only and at.early_stopping.best_epoch in (at.epoch - 1, None)

    def _save_best(self) -> None:
        found = {"epoch": self.progress.epoch, "metrics": self.progress.metrics, "results": self.progress.rows}
        weights = self._pending_ema or self.state.ema.state_dict()
        checkpoint_file.save(self.best, vars(self.description) | found | {"model": weights})

    def _state(self) -> dict[str, Any]:
        return self.state.checkpoint(self.description).as_dict()

    def _continue_or_exit(self, name: str) -> None:
        """name: of a signal, or ""."""
        if not name:
            self.trigger.mark_saved()
            return
        if self.world.is_main:
            epoch, batch = self.progress.epoch + 1, self.progress.batch
            about = {"signal": name, "epoch": epoch, "batch": batch, "checkpoint": str(self.last), "time": time.time()}
            write_json(self.folder / PREEMPTED, about)
            print_lines(f"{name}: saved in epoch {epoch} after batch {batch}; continue with --resume {self.last}")
        self.trigger.barrier()  # a launcher that sees one process leave ends the others
        raise PreemptedExit(128 + signal.Signals[name].value)
