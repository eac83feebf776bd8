"""A run's checkpoint files: last.pt to resume from, best.pt to use, epochN.pt to keep."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from training.checkpoints.contents import Description
from training.checkpoints.preemption import InterruptedRunError, PreemptedExit, SaveTrigger
from training.checkpoints.usable_weights import largest_weight, newest_usable
from training.nonfinite import advise
from training.state import TrainState
from utils.background import BackgroundTask
from utils.files import checkpoint_file
from utils.files.fingerprint import ABSENT, file_state
from utils.files.writers import write_json
from utils.terminal import FaultError, print_lines

PREEMPTED = "preempted.json"


class CheckpointManager:
    """Saves a run after each epoch, and within an epoch at a time interval and on a signal.

    As a context manager it receives the signals. All processes must make the same calls. folder: of
    the run. description: the part of the checkpoint that is not in the state. final_only: save only
    on a signal and at the end of the run, with the last epoch as the best one. period: keep the
    checkpoint of every so many epochs; 0 or less: of none. minutes: between saves within an epoch;
    0: only on a signal.
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
        self.final_only, self.period, self.world, self.progress = (
            final_only,
            period,
            state.world,
            state.progress,
        )
        self.last, self.best = folder / "weights" / "last.pt", folder / "weights" / "best.pt"
        # last.pt is of this run: resumed, or written since
        self._saved = self.progress.epoch + self.progress.batch > 0
        self._state_before = file_state(self.last)  # an earlier run may have left a last.pt here
        # of the epoch whose validation is pending
        self._pending_ema: dict[str, Tensor] | None = None

    def __enter__(self) -> "CheckpointManager":
        self.trigger.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *traceback: object
    ) -> None:
        """After Ctrl-C, print how to continue. Raises FaultError with the sentence of another one
        and how to continue.

        If nothing is saved, or the sentence says how to continue itself, the error stays as it is.
        """
        self.trigger.__exit__(kind, error, *traceback)

        # Ctrl-C may come after last.pt was replaced, and before `_saved` was set.
        if file_state(self.last) not in (ABSENT, self._state_before):
            self._saved = True

        advice = f"continue with --resume {self.last}"
        if kind is KeyboardInterrupt and self.world.is_main:
            with suppress(OSError):  # Ctrl-C has ended the program that reads the output, too
                print_lines(
                    advice
                    if self._saved
                    else "nothing is saved yet: start the run again, without --resume"
                )
        can_continue = self._saved and self.last.exists()  # the run folder may be what is gone
        if isinstance(error, FaultError) and can_continue and not error.says_how_to_continue:
            raise FaultError(f"{error}; {advice}") from error

    def advise_after_nonfinite_steps(self) -> str:
        """What to do when loss or gradient was not finite in too many steps. A collective, with the
        same result.
        """
        weights = self.state.replica.state_dict()
        names = [name for name, _ in self.state.ema.model.named_parameters()]
        advice = ""
        if self.world.is_main:
            usable = newest_usable(self.folder, names) if self._saved else None
            advice = advise(largest_weight(weights, names), self.state.schedule.lr0, usable)
        return str(self.world.broadcast_object(advice))

    def after_step(self, batch: int) -> None:
        """Save if it is due, and record the result of the background evaluation.

        batch: number of trained batches of the epoch; all their gradients are in the weights.

        Raises PreemptedExit, on all processes, after it has saved because of a signal.
        """
        save, all_idle = self.trigger.check()
        if save or all_idle:
            self.background.wait()
        if save:
            self.progress.batch = batch
            self.save_mid_epoch()

    def save_mid_epoch(self) -> None:
        """Save within an epoch. Raises PreemptedExit if the reason is a signal."""
        name, state = self.trigger.agreed_signal(), self._state()
        if self.world.is_main:
            checkpoint_file.save(self.last, state)
        self._saved = True
        self._continue_or_exit(name)

    @contextmanager
    def interruptible(self, *, saved: bool = False) -> Iterator[None]:
        """The block of a validation, which a signal may interrupt: then it saves the run and raises
        PreemptedExit.

        saved: last.pt is up to date, so there is nothing to save.
        """
        try:
            yield
        except InterruptedRunError:
            if saved:
                self._continue_or_exit(self.trigger.agreed_signal())
            self.save_mid_epoch()
            raise

    def after_epoch(self, *, done: bool) -> None:
        """Save, when `progress` is at the next epoch. done: there is no next epoch.

        best.pt is written after last.pt: if the run is killed between the two, last.pt has all that
        best.pt needs. If the validation is still pending, `write_pending` writes best.pt.
        """
        name = "" if done else self.trigger.agreed_signal()
        if done or name or not self.final_only:
            state = self._state()
            if self.world.is_main:
                if self.period > 0 and self.progress.epoch % self.period == 0:
                    checkpoint_file.save(
                        self.last.with_name(f"epoch{self.progress.epoch}.pt"), state
                    )
                checkpoint_file.save(self.last, state)
            self._saved = True  # before best.pt is written, since Ctrl-C may come in the meantime
            if self.world.is_main and (self._is_best() or (done and self.final_only)):
                self._save_best()
        if self.progress.pending and not self.final_only:
            self._pending_ema = {
                key: value.clone() for key, value in self.state.ema.state_dict().items()
            }
        self._continue_or_exit(name)

    def write_pending(self) -> None:
        """Write best.pt if the validation that was pending makes the last epoch the best one."""
        if self._pending_ema is not None and self._is_best() and self.world.is_main:
            self._save_best()
        self._pending_ema = None

    def restore_best(self, say: Callable[[str], None], *, done: bool) -> None:
        """Make best.pt agree with the resumed checkpoint, or log that this is impossible. done: no
        epoch will follow.

        In the run's folder best.pt may be missing, or be from a later epoch than the resumed
        checkpoint.
        """
        best = self.progress.early_stopping.best_epoch
        if self._is_best() or (done and self.final_only):
            if self.world.is_main:
                self._save_best()
            return
        if self.final_only or best is None:
            return
        if (
            self.world.broadcast_object(self._epoch_of_best() if self.world.is_main else 0)
            == best + 1
        ):
            return
        self.progress.early_stopping.reset()
        if self.world.is_main and self._is_best():
            self._save_best()
        say(
            f"{self.best} is not from epoch {best + 1}, the best so far: the search for the best "
            "epoch starts again"
        )

    def _epoch_of_best(self) -> int:
        """The epoch of best.pt, counted from 1; 0 if best.pt is missing or not a checkpoint."""
        with suppress(ValueError, OSError):
            return int(checkpoint_file.load(self.best).get("epoch", 0))
        return 0

    def _is_best(self) -> bool:
        """Whether the last epoch is the best so far, and its weights are still available."""
        progress = self.progress
        # steps of the next epoch change the weights
        available = progress.batch == 0 or self._pending_ema is not None
        known = progress.epoch > 0 and not progress.pending
        best = progress.early_stopping.best_epoch in (progress.epoch - 1, None)
        return available and known and not self.final_only and best

    def _save_best(self) -> None:
        result = {
            "epoch": self.progress.epoch,
            "metrics": self.progress.metrics,
            "results": self.progress.rows,
        }
        weights = self._pending_ema or self.state.ema.state_dict()
        checkpoint_file.save(self.best, vars(self.description) | result | {"model": weights})

    def _state(self) -> dict[str, Any]:
        return self.state.checkpoint(self.description).as_dict()

    def _continue_or_exit(self, name: str) -> None:
        """After a save: continue, or exit if a signal was received. name: of the signal, or ""."""
        if not name:
            self.trigger.mark_saved()
            return
        if self.world.is_main:
            epoch, batch = self.progress.epoch + 1, self.progress.batch
            about = {
                "signal": name,
                "epoch": epoch,
                "batch": batch,
                "checkpoint": str(self.last),
                "time": time.time(),
            }
            write_json(self.folder / PREEMPTED, about)
            print_lines(
                f"{name}: saved in epoch {epoch} after batch {batch}; continue with --resume "
                f"{self.last}"
            )
        self.trigger.barrier()  # a launcher terminates the others when one process exits
        raise PreemptedExit(128 + signal.Signals[name].value)
