"""Validation during training: when it is due, and how its result is recorded."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from training.checkpoints.manager import CheckpointManager
from training.results import epoch_line, results_row
from utils.log import EpochEnded, RunLog


class Evaluated(Protocol):
    """The metrics of a validation."""

    @property
    def columns(self) -> Mapping[str, float]: ...

    @property
    def losses(self) -> Mapping[str, float]: ...

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]: ...


class PendingEvaluation(Protocol):
    """The detections of a validation."""

    def evaluate(self) -> Evaluated: ...


class EpochValidation:
    """Validates the averaged weights after an epoch: detects at once, and evaluates while the next
    epoch trains.

    detector: called as detector(model, interrupted=...) on all processes. every: validate every so
    many epochs, and the last one of `epochs`; 0: only the last one.
    """

    def __init__(
        self,
        checkpoints: CheckpointManager,
        detector: Callable[..., PendingEvaluation],
        log: RunLog,
        names: Sequence[str],
        *,
        epochs: int,
        every: int,
    ) -> None:
        self.checkpoints, self.detector, self.log = checkpoints, detector, log
        self.names, self.epochs, self.every = names, epochs, every
        self._started, self._first_epoch = time.perf_counter(), checkpoints.progress.epoch

    def is_due(self, epoch: int) -> bool:
        """Whether an epoch, counted from 0, is validated."""
        return epoch == self.epochs - 1 or (self.every > 0 and (epoch + 1) % self.every == 0)

    def decides(self, epoch: int) -> bool:
        """Whether the result of an epoch's validation decides if the run continues."""
        return (
            epoch == self.epochs - 1
            or self.checkpoints.progress.early_stopping.stops_if_not_better(epoch)
        )

    def start(self, predictions: PendingEvaluation | None) -> None:
        """Start to evaluate the pending epoch's detections in the background; None if it was not
        validated.
        """
        self.checkpoints.background.start(
            predictions.evaluate if predictions else lambda: None, self.record
        )

    def wait(self) -> None:
        """Wait until the pending epoch is recorded, if there is one."""
        self.checkpoints.background.wait()

    def detect(self) -> PendingEvaluation:
        """The detections of the averaged weights. If a signal interrupts it, saves the run and
        raises PreemptedExit.
        """
        model, interrupted = (
            self.checkpoints.state.ema.model,
            self.checkpoints.trigger.signal_received,
        )
        with self.checkpoints.interruptible():
            return self.detector(model, interrupted=interrupted)

    def record(self, result: Evaluated | None) -> None:
        """Complete the pending epoch with its metrics, None if it was not validated. The next epoch
        may be training.
        """
        progress, world = self.checkpoints.progress, self.checkpoints.world
        if result:
            # last bits may differ by machine
            progress.metrics = world.broadcast_collective(result.as_dict(self.names))
            progress.early_stopping.update(progress.epoch - 1, progress.metrics["fitness"])
        metrics, losses = (result.columns, result.losses) if result else ({}, {})
        pace, row = progress.complete_epoch(lambda trained: results_row(trained, metrics, losses))
        remaining = ""  # unknown until this process has trained an epoch
        if trained := progress.epoch - self._first_epoch:
            each = (time.perf_counter() - self._started) / trained
            remaining = f", {timedelta(seconds=round(each * (self.epochs - progress.epoch)))} left"
        text = f"{epoch_line(row, self.epochs)}  {pace}{remaining}"
        self.log.send(EpochEnded(self.checkpoints.folder, row, progress.rows, text))
        self.checkpoints.write_pending()
