"""A run's checkpoint files: last.pt to resume from, best.pt to use, epochN.pt to keep."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from models.heads.projections import is_projection, without_projections
from training.checkpoints.contents import Description
from training.checkpoints.preemption import InterruptedRunError, PreemptedExit, SaveTrigger
from training.checkpoints.usable_weights import largest_weight, newest_usable
from training.nonfinite import advise
from training.state import TrainState
from utils.files import checkpoint_file
from utils.files.fingerprint import ABSENT, file_state
from utils.files.writers import write_json
from utils.log import Say, say_nothing
from utils.loggers.sink import Loggers
from utils.terminal import FaultError, print_lines
from utils.threads import BackgroundTask

PREEMPTED = "preempted.json"


class CheckpointManager:
    """Saves a run after each epoch, and within an epoch at a time interval and on a signal.

    As a context manager it says how to continue after an error or Ctrl-C. All processes must make
    the same calls.

    Args:
        folder: of the run.
        description: the part of the checkpoint that is not in the state.
        trigger: decides when to save within an epoch.
        background: the evaluation of the epoch before, which may still be running.
        final_only: save only on a signal and at the end of the run, with the last epoch as the best
            one.
        period: keep the checkpoint of every so many epochs; 0 or less: of none.
        loggers: receive what a checkpoint covers, once it is written.
        continue_with: what to type to continue a search of which this run is a part, which then
            says it; "" for a run of its own.
    """

    def __init__(
        self,
        folder: Path,
        state: TrainState[Any],
        description: Description,
        trigger: SaveTrigger,
        background: BackgroundTask,
        *,
        final_only: bool,
        period: int,
        loggers: Loggers | None = None,
        continue_with: str = "",
    ) -> None:
        self.folder = folder
        self.state = state
        self.description = description
        self.trigger = trigger
        self.background = background
        self.final_only = final_only
        self.period = period
        self.loggers = loggers or Loggers({}, say_nothing)
        self.continue_with = continue_with
        self.world = state.world
        self.progress = state.progress
        self.last = folder / "weights" / "last.pt"
        self.best = folder / "weights" / "best.pt"

        # Whether last.pt is of this run: resumed, or written since.
        self._saved = self.progress.epoch + self.progress.batch > 0
        self._last_before = file_state(self.last)  # an earlier run may have left a last.pt here
        # The averaged weights of the epoch whose validation is pending.
        self._pending_ema: dict[str, Tensor] | None = None

    def __enter__(self) -> "CheckpointManager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *traceback: object
    ) -> None:
        """Print how to continue after Ctrl-C, and add it to the sentence of a FaultError.

        A FaultError stays as it is if nothing is saved, or if its sentence already says how to
        continue.
        """
        if self.continue_with:  # the search says it
            return

        # Ctrl-C may come after last.pt was replaced, and before `_saved` was set.
        if file_state(self.last) not in (ABSENT, self._last_before):
            self._saved = True

        advice = f"continue with --resume {self.last}"
        if kind is KeyboardInterrupt and self.world.is_main:
            sentence = "nothing is saved yet: start the run again, without --resume"
            if self._saved:
                sentence = advice
            with suppress(OSError):  # Ctrl-C has also ended the program that reads the output
                print_lines(sentence)

        # last.pt is gone if the error is that somebody has deleted the run folder.
        can_continue = self._saved and self.last.exists()
        if isinstance(error, FaultError) and can_continue and not error.says_how_to_continue:
            raise FaultError(f"{error}; {advice}") from error

    # ---- within an epoch

    def after_step(self, batch: int, before_save: Callable[[], None] | None = None) -> None:
        """Save if it is due, and record the result of the background evaluation if it is done.

        batch: number of trained batches of the epoch; all their gradients are in the weights.
        before_save: is called before a save, by all processes.

        Raises PreemptedExit, on all processes, after it has saved because of a signal.
        """
        save, all_idle = self.trigger.check()
        if save or all_idle:
            self.background.wait()
        if not save:
            return
        if before_save is not None:
            before_save()
        self.progress.batch = batch
        self.save_mid_epoch()

    def save_mid_epoch(self) -> None:
        """Save within an epoch. Raises PreemptedExit if the reason is a signal."""
        signal_name = self.trigger.agreed_signal()
        entries = self._entries()
        if self.world.is_main:
            self._save_last(entries)
        self._saved = True
        self._continue_or_exit(signal_name)

    @contextmanager
    def interruptible(self, *, saved: bool = False) -> Iterator[Callable[[], bool]]:
        """Run a validation in the block, which a signal may interrupt: then save and exit.

        Yields a function that returns whether this process received a signal. The validation calls
        it, and raises InterruptedRunError if any process did. saved: last.pt is up to date, so
        there is nothing to save.

        Raises PreemptedExit, after it has saved, in place of InterruptedRunError.
        """
        try:
            yield self.trigger.signal_received
        except InterruptedRunError:
            if saved:
                self._continue_or_exit(self.trigger.agreed_signal())
            self.save_mid_epoch()
            raise

    def advise_after_nonfinite_steps(self) -> str:
        """Return a sentence on what to do after too many steps with a loss or gradient not finite.

        A collective: all processes get the same sentence.
        """
        weights = self.state.replica.state_dict()
        parameters = [
            name
            for name, _ in self.state.ema.model.named_parameters()
            if not is_projection(name)  # best.pt has none
        ]
        advice = ""
        if self.world.is_main:
            usable = newest_usable(self.folder, parameters) if self._saved else None
            largest = largest_weight(weights, parameters)
            advice = advise(largest, self.state.schedule.lr0, usable)
        return str(self.world.broadcast_object(advice))

    # ---- between epochs

    def after_epoch(self, *, done: bool) -> None:
        """Save after an epoch, when `progress` has moved on to the next one.

        best.pt is written after last.pt: if the run is killed between the two, last.pt has all that
        best.pt needs. If the validation is still pending, `write_pending` writes best.pt.

        done: there is no next epoch.

        Raises PreemptedExit, on all processes, after it has saved because of a signal.
        """
        signal_name = "" if done else self.trigger.agreed_signal()
        if done or signal_name or not self.final_only:
            entries = self._entries()
            if self.world.is_main:
                if self.period > 0 and self.progress.epoch % self.period == 0:
                    kept = self.last.with_name(f"epoch{self.progress.epoch}.pt")
                    checkpoint_file.save(kept, entries)
                self._save_last(entries)
            self._saved = True  # before best.pt is written, since Ctrl-C may come in the meantime

            is_best = self._is_best() or (done and self.final_only)
            if is_best and self.world.is_main:
                self._save_best()

        if self.progress.pending and not self.final_only:
            # The next epoch changes the averaged weights before the validation is evaluated. They
            # are copied to the host now, so that writing them does not make the next epoch wait
            # for the device.
            averaged = self.state.ema.state_dict()
            self._pending_ema = {
                name: value.to("cpu", copy=True) for name, value in averaged.items()
            }
        self._continue_or_exit(signal_name)

    def write_pending(self) -> None:
        """Write best.pt if the validation that was pending makes the last epoch the best one."""
        if self._pending_ema is not None and self._is_best() and self.world.is_main:
            self._save_best()
        self._pending_ema = None

    def restore_best(self, say: Say, *, done: bool) -> None:
        """Make best.pt agree with the resumed checkpoint, or log that this is impossible.

        In the run's folder best.pt may be missing, or be from a later epoch than the resumed
        checkpoint. done: no epoch will follow.
        """
        if self._is_best() or (done and self.final_only):
            if self.world.is_main:
                self._save_best()
            return

        best_epoch = self.progress.early_stopping.best_epoch
        if self.final_only or best_epoch is None:
            return
        epoch_in_file = self._epoch_of_best() if self.world.is_main else 0
        if self.world.broadcast_object(epoch_in_file) == best_epoch + 1:
            return

        self.progress.early_stopping.reset()
        if self._is_best() and self.world.is_main:
            self._save_best()
        say(
            f"{self.best} is not from epoch {best_epoch + 1}, the best so far: the search for the "
            "best epoch starts again"
        )

    def _epoch_of_best(self) -> int:
        """Return the epoch of best.pt, counted from 1; 0 if it is missing or not a checkpoint."""
        with suppress(ValueError, OSError):
            return checkpoint_file.epoch_of(checkpoint_file.load(self.best))
        return 0

    def _is_best(self) -> bool:
        """Return whether the last epoch is the best so far, and its weights are still available."""
        progress = self.progress
        # Steps of the next epoch change the weights, unless a copy was kept.
        available = progress.batch == 0 or self._pending_ema is not None
        complete = progress.epoch > 0 and not progress.pending
        # None: no epoch was validated so far, and the last one is taken as the best.
        best = progress.early_stopping.best_epoch in (progress.epoch - 1, None)
        return available and complete and not self.final_only and best

    # ---- what is written

    def _save_best(self) -> None:
        """Write the last epoch's averaged weights to best.pt, without those of projections."""
        averaged = self._pending_ema or self.state.ema.state_dict()
        table, weights = without_projections(self.description.table, averaged)
        entries = {
            **vars(self.description),
            "table": table,
            "epoch": self.progress.epoch,
            "metrics": self.progress.metrics,
            "results": self.progress.results,
            "model": weights,
        }
        checkpoint_file.save(self.best, entries)

    def _save_last(self, entries: dict[str, Any]) -> None:
        checkpoint_file.save(self.last, entries)
        self.loggers.checkpoint_written(entries["recorded"])

    def _entries(self) -> dict[str, Any]:
        """Return the entries of last.pt. A collective."""
        self.progress.recorded = self.loggers.recorded(self.progress.recorded)
        return self.state.checkpoint(self.description).as_dict()

    def _continue_or_exit(self, signal_name: str) -> None:
        """Continue after a save, or exit if a signal was received. signal_name: "" for none."""
        if not signal_name:
            self.trigger.mark_saved()
            return

        if self.world.is_main:
            epoch = self.progress.epoch + 1
            batch = self.progress.batch
            report = {
                "signal": signal_name,
                "epoch": epoch,
                "batch": batch,
                "checkpoint": str(self.last),
                "time": time.time(),
            }
            write_json(self.folder / PREEMPTED, report)
            command = self.continue_with or f"--resume {self.last}"
            print_lines(
                f"{signal_name}: saved in epoch {epoch} after batch {batch}; continue with "
                f"{command}"
            )
        self.trigger.barrier()  # a launcher terminates the others when one process exits
        raise PreemptedExit(128 + signal.Signals[signal_name].value)
