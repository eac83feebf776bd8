"""A run's checkpoint files: last.pt to go on from, best.pt to use, epochN.pt to keep."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from utils import checkpoint
from utils.log import write_json
from utils.run_state import FORMAT, Course, Learner
from utils.save_points import InterruptedRunError, PreemptedExit, SavePoints
from utils.terminal import show

PREEMPTED = "preempted.json"


class Keeper:
    """Saves a run at the points that `points` names and at the end of each epoch. All processes call it alike.

    folder: the run's. about: what a checkpoint says beside the state: names, table, settings. sparing: write at the
    end of the run only, the last epoch as the best one, and where a signal asks for it. period: keep the state of every
    so many epochs; 0 or less: of none.
    """

    def __init__(
        self,
        folder: Path,
        learner: Learner[Any],
        course: Course,
        points: SavePoints,
        about: dict[str, Any],
        *,
        sparing: bool,
        period: int,
    ) -> None:
        self.folder, self.learner, self.course, self.points, self.about = folder, learner, course, points, about
        self.sparing, self.period, self.world = sparing, period, points.world
        self.last, self.best = folder / "weights" / "last.pt", folder / "weights" / "best.pt"
        self._at_end: dict[str, Tensor] | None = None  # the averages at the end of an epoch whose validation is open

    def between_steps(self, batch: int) -> None:
        """Save if it is time to, and settle what was done aside.

        batch: those of the epoch that are trained; no gradient of theirs is left over.

        Raises PreemptedExit, on all processes, when it has saved because of a signal.
        """
        save, nobody_busy = self.points.reached()
        if save or nobody_busy:
            self.points.aside.settle()
        if save:
            self.course.batch = batch
            self.pause()

    def pause(self) -> None:
        """Save in the midst of an epoch. Raises PreemptedExit if a signal asked for it."""
        name, state = self.points.signal(), self._state()
        if self.world.is_main:
            checkpoint.save(self.last, state)
        self._go_on_or_leave(name)

    @contextmanager
    def interruptible(self, *, saved: bool = False) -> Iterator[None]:
        """A validation, which a signal may cut short. Raises PreemptedExit, when it has saved, if one does.

        saved: there is nothing that last.pt does not hold.
        """
        try:
            yield
        except InterruptedRunError:
            if saved:
                self._go_on_or_leave(self.points.signal())
            self.pause()
            raise

    def end_of_epoch(self, *, done: bool) -> None:
        """Save, when the course has come to the next epoch. done: there is none.

        best.pt follows last.pt: a run that was killed between the two finds in last.pt what best.pt is to hold. Where
        the validation is not settled yet, `settled` writes it.
        """
        name = "" if done else self.points.signal()
        if done or name or not self.sparing:
            state = self._state()
            if self.world.is_main:
                if self.period > 0 and self.course.epoch % self.period == 0:
                    checkpoint.save(self.last.with_name(f"epoch{self.course.epoch}.pt"), state)
                checkpoint.save(self.last, state)
                if self._is_best() or (done and self.sparing):
                    self._keep_best()
        if self.course.open and not self.sparing:
            self._at_end = {key: value.clone() for key, value in self.learner.ema.state_dict().items()}
        self._go_on_or_leave(name)

    def settled(self) -> None:
        """Write best.pt, if the last epoch is the best one as its validation says that was open when it was saved."""
        if self._at_end is not None and self._is_best() and self.world.is_main:
            self._keep_best()
        self._at_end = None

    def go_on(self, *, done: bool) -> str:
        """Have best.pt be what a resumed course says of it; a sentence if that cannot be. done: no epoch will follow.

        A run's folder may have lost it, or have one of a later epoch than the checkpoint that was named.
        """
        at, best = self.course, self.course.plateau.best_epoch
        if self._is_best() or (done and self.sparing):
            if self.world.is_main:
                self._keep_best()
            return ""
        if self.sparing or best is None:
            return ""
        if self.world.share(self._epoch_of_best() if self.world.is_main else 0) == best + 1:
            return ""
        at.plateau.forget()
        if self.world.is_main and self._is_best():
            self._keep_best()
        return f"{self.best} is not of epoch {best + 1}, the best so far: the best is sought anew from here"

    def _epoch_of_best(self) -> int:
        """Counted from 1; 0 if best.pt is lost, or holds something else."""
        with suppress(ValueError, OSError):
            return int(checkpoint.load(self.best).get("epoch", 0))
        return 0

    def _is_best(self) -> bool:
        """Whether the last epoch is the best so far, and its weights are still there."""
        at = self.course
        there = at.batch == 0 or self._at_end is not None  # the next epoch's steps change them
        known = at.epoch > 0 and not at.open
        return there and known and not self.sparing and at.plateau.best_epoch in (at.epoch - 1, None)

    def _keep_best(self) -> None:
        found = {"epoch": self.course.epoch, "metrics": self.course.metrics, "results": self.course.rows}
        checkpoint.save(self.best, self.about | found | {"model": self._at_end or self.learner.ema.state_dict()})

    def _state(self) -> dict[str, Any]:
        return {"format": FORMAT} | self.about | self.course.state_dict() | self.learner.state_dict()

    def _go_on_or_leave(self, name: str) -> None:
        """name: of a signal, or ""."""
        if not name:
            self.points.passed()
            return
        if self.world.is_main:
            epoch, batch = self.course.epoch + 1, self.course.batch
            told = {"signal": name, "epoch": epoch, "batch": batch, "checkpoint": str(self.last), "time": time.time()}
            write_json(self.folder / PREEMPTED, told)
            show(f"{name}: saved in epoch {epoch} after batch {batch}; go on with --resume {self.last}")
        self.points.meet()  # a launcher that sees one process leave ends the others
        raise PreemptedExit(128 + signal.Signals[name].value)
