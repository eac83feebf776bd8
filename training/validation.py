"""Validation during training: when it is due, and how its result is recorded."""

import time
from collections.abc import Sequence
from datetime import timedelta

from data import Loader
from data.sampler import EvaluationSampler
from models.detector import Detector
from models.losses import Loss
from training.checkpoints.manager import CheckpointManager
from training.evaluation import SplitPredictions, predict_split
from training.results import epoch_line, results_row
from training.search.trial import NO_SEARCH, Trial
from training.state import TrainState
from utils.log import EpochEnded, RunLog
from utils.metrics.evaluation import Evaluation
from utils.metrics.fitness import Fitness
from utils.threads import BackgroundTask


class EpochValidation:
    """Validates the averaged weights after an epoch, in two halves.

    All processes detect at once, because the next epoch changes the weights. The metrics are then
    computed in the background, while the next epoch trains; until they are, the epoch is pending.

    Args:
        loader: of the validation split.
        background: computes the metrics; they are recorded when somebody waits for it.
        names: of the classes.
        unlabeled: as for `predict_split`.
        fitness: decides which epoch is the best.
        epochs: of the run; the last one is always validated.
        every: validate every so many epochs; 0: only the last one.
        next_epoch_needs_it: whether each epoch depends on the metrics of the one before.
        trial: what a search asks of this training.
    """

    def __init__(
        self,
        state: TrainState[Detector],
        loader: Loader[EvaluationSampler],
        criterion: Loss,
        checkpoints: CheckpointManager,
        background: BackgroundTask,
        log: RunLog,
        names: Sequence[str],
        *,
        unlabeled: int = 0,
        fitness: Fitness,
        epochs: int,
        every: int,
        next_epoch_needs_it: bool = False,
        trial: Trial = NO_SEARCH,
    ) -> None:
        self.state = state
        self.loader = loader
        self.criterion = criterion
        self.checkpoints = checkpoints
        self.background = background
        self.log = log
        self.names = names
        self.unlabeled = unlabeled
        self.fitness = fitness
        self.trial = trial
        self.epochs = epochs
        self.every = every
        self.next_epoch_needs_it = next_epoch_needs_it
        self.progress = state.progress
        self._started = time.perf_counter()
        self._first_epoch = self.progress.epoch

    def is_due(self, epoch: int) -> bool:
        """Return whether an epoch, counted from 0, is validated."""
        if epoch == self.epochs - 1:
            return True
        return self.every > 0 and (epoch + 1) % self.every == 0

    def decides(self, epoch: int) -> bool:
        """Return whether the result of an epoch's validation decides if the run continues."""
        if epoch == self.epochs - 1:
            return True
        return self.progress.early_stopping.stops_if_not_better(epoch)

    def finish_pending(self) -> None:
        """Validate the epoch whose validation a resumed run had not finished, if there is one."""
        if self.progress.pending:
            self._evaluate(self._detect())
            self.background.wait()

    def after_epoch(self, pace: str, lr: float) -> None:
        """End the epoch of `progress`, and validate it if it is due.

        It is complete when its metrics are recorded: while the next epoch trains, or at once if
        something depends on them.

        pace: the epoch's speed as text. lr: the learning rate of its last batch.

        Raises PreemptedExit, after it has saved the run, if a signal interrupts the detection.
        """
        self.background.wait()  # the epoch before is recorded first
        epoch = self.progress.epoch
        predictions = self._detect() if self.is_due(epoch) else None
        self.progress.end_epoch(pace, lr)
        self._evaluate(predictions)

        if predictions is None or self.next_epoch_needs_it or self.decides(epoch):
            self.background.wait()

    def _detect(self) -> SplitPredictions:
        with self.checkpoints.interruptible() as interrupted:
            predictions = predict_split(
                self.state.ema.model,
                self.loader,
                self.state.world,
                criterion=self.criterion,
                unlabeled=self.unlabeled,
                active=self.log.active,
                interrupted=interrupted,
            )
        self.loader.begin()  # for the next validation, or that of best.pt
        return predictions

    def _evaluate(self, predictions: SplitPredictions | None) -> None:
        """Start to compute the metrics of the pending epoch.

        predictions: of the validation split; None if the epoch is not validated.
        """

        def evaluate() -> Evaluation | None:
            return predictions.evaluate() if predictions else None

        self.background.start(evaluate, self._record)

    def _record(self, result: Evaluation | None) -> None:
        """Complete the pending epoch with its metrics; None if it was not validated.

        The next epoch may already be training.
        """
        metrics: dict[str, float] = {}
        val_losses: dict[str, float] = {}
        if result is not None:
            # rank 0's: on another machine the last bits may differ, and decisions with them
            measured = result.as_dict(self.names, self.fitness)
            agreed = self.state.world.broadcast_collective(measured)
            self.progress.metrics = agreed
            self.progress.early_stopping.update(self.progress.epoch - 1, agreed["fitness"])
            metrics = result.columns
            val_losses = result.losses

        def columns(train_losses: dict[str, float]) -> dict[str, float]:
            return results_row(train_losses, metrics, val_losses)

        pace, row = self.progress.complete_epoch(columns)
        text = f"{epoch_line(row, self.epochs)}  {pace}{self._remaining()}"
        rows = self.progress.results
        self.log.send(EpochEnded(self.checkpoints.folder, row, rows, text, result))
        self.checkpoints.write_pending()
        if result is not None:
            self.trial.validated(self.progress.epoch, self.progress.metrics["fitness"])

    def _remaining(self) -> str:
        """Return the time that is left as text; "" until this process has trained an epoch."""
        trained = self.progress.epoch - self._first_epoch
        if not trained:
            return ""
        seconds_each = (time.perf_counter() - self._started) / trained
        seconds_left = round(seconds_each * (self.epochs - self.progress.epoch))
        return f", {timedelta(seconds=seconds_left)} left"
