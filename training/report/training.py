"""The report of a training: a sink of the run's events."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from data import Dataset
from training.report.advice import curve_advice
from training.report.facts import Rows, data_facts, environment_facts, setting_rows
from training.report.page import Figure, ReportPage, State, report_or_say
from training.report.result import error_values, images_figure, result_values
from training.settings.config import TrainConfig
from training.settings.hyperparameters import Hyp
from utils.distributed.world import World
from utils.log import (
    FINISHED,
    EpochEnded,
    EvaluationEnded,
    Event,
    LogClosed,
    Row,
    RunEnded,
    RunStarted,
    Say,
    say_nothing,
)
from utils.printable import counted

MAX_SHARE = 0.01  # of the time that a run may spend on its report, before its end


class TrainingReport:
    """Writes report.html into the run folder: at the start, after epochs, and at the end.

    After an epoch it is written only if that takes at most MAX_SHARE of the time since it was last
    written, so a run of short epochs writes it less often. The errors and their pictures take
    seconds: they are there at the end. A run that is resumed has its earlier epochs again.

    What goes wrong, such as a full disk, is said once and does not end the run.

    Args:
        data: with the labels of both splits.
        world: of the processes.
        model: what the report says of the model and of how it is trained.
        say: shows a sentence to the user.
        active: False to write nothing.
    """

    def __init__(self, data: Dataset, world: World, model: Rows, say: Say, *, active: bool) -> None:
        self.data = data
        self.active = active
        self._say = say

        self._facts: list[tuple[str, Rows]] = []
        if active:
            self._facts = [
                ("Data", data_facts(data)),
                ("Model and training", model),
                ("Environment", environment_facts(world)),
            ]

        self._run: RunStarted | None = None
        self._began = ""  # when this process started or resumed the run
        self._rows: Sequence[Row] = []
        self._validated: EpochEnded | None = None  # the last validation, if not in `_result` yet
        self._result: dict[str, Any] | None = None
        self._figures: list[Figure] = []  # of the final evaluation
        self._reason: Rows = []  # why the run did not finish

        self._written = 0.0  # when the report was last written after an epoch
        self._cost = 0.0  # seconds that it took

    def handle(self, event: Event) -> None:
        """Take what the event says into the report."""
        if self.active:
            # A run that has failed ends with the sentence of its own error.
            say = say_nothing if isinstance(event, LogClosed) else self._say_once
            with report_or_say(say):
                self._take(event)

    def _say_once(self, sentence: str) -> None:
        """Show the first sentence only: what goes wrong after each epoch is said once."""
        self._say(sentence)
        self._say = say_nothing

    def _take(self, event: Event) -> None:
        """Do what `handle` does; raise what goes wrong."""
        if isinstance(event, RunStarted):
            self._run = event
            self._began = time.strftime("%Y-%m-%d %H:%M:%S")
            self._rows = event.rows
            self._write("running")
        elif isinstance(event, EpochEnded):
            self._rows = event.rows
            if event.evaluation is not None:
                self._validated = event
            if time.monotonic() - self._written >= self._cost / MAX_SHARE:
                self._after_epoch()
        elif isinstance(event, EvaluationEnded):
            self._after_evaluation(event)
        elif isinstance(event, RunEnded):
            self._write(FINISHED)
        elif isinstance(event, LogClosed) and event.status != FINISHED:
            self._take_validation()
            if event.reason:
                self._reason = [(event.status, event.reason)]
            self._write(event.status)

    def _take_validation(self) -> None:
        """Take the last validation of an epoch into the report."""
        if self._validated is None or self._validated.evaluation is None:
            return
        epoch = self._validated.row["epoch"]
        of = f"The averaged weights after epoch {epoch:.0f}, on the val split."
        self._result = result_values(self._validated.evaluation, self.data.names, of)
        self._validated = None

    def _after_epoch(self) -> None:
        """Write the report of a run that goes on."""
        begin = time.monotonic()
        try:
            self._take_validation()
            self._write("running")
        finally:  # if it fails, it is not tried again at once
            self._written = time.monotonic()
            self._cost = self._written - begin

    def _after_evaluation(self, event: EvaluationEnded) -> None:
        """Keep the final evaluation; the report is written when the run ends."""
        self._validated = None
        evaluation = event.evaluation
        labels = self.data.labels["val"].whole
        of = f"best.pt, the averaged weights of epoch {event.epoch}, on the val split."
        self._result = result_values(evaluation, event.names, of)
        self._result |= error_values(evaluation, labels, event.names)
        trained = len(self._rows)
        self._figures = [
            ("Best epoch", f"{event.epoch}", f"of {trained} that were trained"),
            images_figure(evaluation),
        ]

    def _write(self, state: State) -> None:
        """Write the report, if the run has started."""
        run = self._run
        if run is None:
            return
        page = ReportPage(
            script="train.py",
            state=state,
            status=run_status_text(state, len(self._rows), run.config["epochs"]),
            figures=self._figures,
            facts=[*self._facts, ("Time", [*self._times(), *self._reason])],
            settings=setting_rows(run.config, TrainConfig().as_dict()),
            hyp=setting_rows(run.hyp, Hyp().as_dict()),
            unit=self.data.unit,
            epochs=self._columns(),
            advice=curve_advice(self._rows, self._images("train"), self._images("val")),
            evaluation=self._result,
        )
        page.write(run.folder)

    def _images(self, split: str) -> int:
        """Return how many images a split has, or tiles."""
        return len(self.data.labels[split])

    def _columns(self) -> dict[str, list[float]]:
        """Return the columns of results.csv and the speed, by name."""
        rows = self._rows
        run = self._run
        if run is None or not rows:
            return {}
        columns = {name: [row.get(name, float("nan")) for row in rows] for name in rows[0]}
        columns["per_second"] = [run.images / max(row["time"], 1e-3) for row in rows]
        return columns

    def _times(self) -> Rows:
        """Return when the run started, and how long its epochs took."""
        times: Rows = [("started or resumed", self._began)]
        seconds = [row["time"] for row in self._rows]
        if seconds:
            times += [
                ("epochs", f"{len(seconds):,}"),
                ("training", duration_text(sum(seconds))),
                ("an epoch (median)", duration_text(statistics.median(seconds))),
            ]
        return times


def run_status_text(state: State, trained: int, epochs: int) -> str:
    """Return how far a run is, as text.

    >>> run_status_text("running", 3, 10), run_status_text("finished", 10, 10)
    ('running: 3 of 10 epochs', 'finished: 10 epochs')
    >>> run_status_text("finished", 7, 10)
    'finished: stopped early, 7 of 10 epochs'
    """
    wanted = counted(epochs, "epoch")
    if state != "finished":
        return f"{state}: {trained:,} of {wanted}"
    if trained < epochs:
        return f"finished: stopped early, {trained:,} of {wanted}"
    return f"finished: {wanted}"


def duration_text(seconds: float) -> str:
    """Return a time as text.

    >>> [duration_text(seconds) for seconds in (4.25, 100, 7380)]
    ['4.2 s', '1 min 40 s', '2 h 3 min']
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
