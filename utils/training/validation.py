"""Validation during training: when it is due, and what becomes of its result."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from utils.log import EpochEnded, RunLog
from utils.training.checkpoints.manager import CheckpointManager
from utils.training.results import epoch_line, results_row


class Evaluated(Protocol):
    """What is known of an epoch when its detections are evaluated."""

    @property
    def columns(self) -> Mapping[str, float]: ...

    @property
    def losses(self) -> Mapping[str, float]: ...

    def as_dict(self, names: Sequence[str]) -> dict[str, Any]: ...


class Predictions(Protocol):
    """What was detected in an epoch's validation."""

    def evaluate(self) -> Evaluated: ...


class EpochValidation:
    """Validates the averaged weights after an epoch: detects at once, and evaluates that while the next epoch trains.

    detector: called as detector(model, interrupted=...) on all processes. every: so many epochs, and the last one of
    `epochs`; 0: the last one alone.
    """

    def __init__(
        self,
        checkpoints: CheckpointManager,
        detector: Callable[..., Predictions],
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
        """Whether an epoch is validated; epochs count from 0."""
        return epoch == self.epochs - 1 or (self.every > 0 and (epoch + 1) % self.every == 0)

    def decides(self, epoch: int) -> bool:
        """Whether what is found of an epoch decides if the run goes on."""
        return epoch == self.epochs - 1 or self.checkpoints.progress.early_stopping.stops_unless_better(epoch)

    def start(self, found: Predictions | None) -> None:
        """Begin to evaluate what was found of the pending epoch; None: it was not validated."""
        self.checkpoints.background.start(found.evaluate if found else lambda: None, self.record)

    def wait(self) -> None:
        """Until the pending epoch is recorded, if there is one."""
        self.checkpoints.background.wait()

    def detect(self) -> Predictions:
        """What the averaged weights detect. Raises PreemptedExit, when it has saved, if a signal interrupts it."""
        model, interrupted = self.checkpoints.state.ema.model, self.checkpoints.trigger.signal_received
        with self.checkpoints.interruptible():
            return self.detector(model, interrupted=interrupted)

    def record(self, result: Evaluated | None) -> None:
        """Complete the pending epoch with what was found, None if it was not validated. The next one may have begun."""
        progress, world = self.checkpoints.progress, self.checkpoints.world
        if result:
            progress.metrics = world.broadcast_collective(result.as_dict(self.names))  # machines differ in last bits
            progress.early_stopping.update(progress.epoch - 1, progress.metrics["fitness"])
        metrics, losses = (result.columns, result.losses) if result else ({}, {})
        pace, row = progress.complete_epoch(lambda trained: results_row(trained, metrics, losses))
        left = ""  # not known after an epoch that an earlier process trained
        if trained := progress.epoch - self._first_epoch:
            each = (time.perf_counter() - self._started) / trained
            left = f", {timedelta(seconds=round(each * (self.epochs - progress.epoch)))} left"
        text = f"{epoch_line(row, self.epochs)}  {pace}{left}"
        self.log.send(EpochEnded(self.checkpoints.folder, row, progress.rows, text))
        self.checkpoints.write_pending()
