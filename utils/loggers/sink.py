"""The sink that turns a run's events into records, and has them sent to the loggers."""

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from utils.log import (
    INTERRUPTED,
    EpochEnded,
    EvaluationEnded,
    Event,
    ImageWritten,
    LogClosed,
    RunEnded,
    RunLog,
    RunStarted,
    Say,
    StepsEnded,
    say_nothing,
)
from utils.loggers.base import (
    EPOCH,
    EVALUATION,
    PICTURE,
    STEPS,
    ClassResult,
    LoggedRun,
    Logger,
    Record,
    encodable,
)
from utils.loggers.follower import Follower
from utils.loggers.journal import Journal, JournalReader, clear_journal, keep_records
from utils.loggers.registry import LOGGERS
from utils.metrics.evaluation import DEFAULT_FITNESS, Evaluation
from utils.printable import one_line

FOLDER = "loggers"  # in the run folder
CURVE_POINTS = 101  # confidences of a class's curves

LEFT_OUT = "it is left out from here on; the run goes on without it"

# The longest times that a logger may take: for a call during the training, which goes on
# meanwhile; at the end of a run for the rest of its records, and again to close; and to close after
# a signal, when the process is killed soon.
HANGS_S = 300.0
END_S = 30.0
END_VARIABLE = "KESTREL_LOGGER_WAIT"  # changes END_S
INTERRUPTED_END_S = 10.0
QUIET_S = 2.0  # without a line that says so


class Loggers:
    """Records a run's events and feeds its loggers. Without loggers it does nothing.

    Args:
        loggers: by name; `prepare` of each is called.
        say: shows a sentence to the user.
        warn: shows a warning, with --quiet too; None: `say`.
        account: of the loggers that have accounts.

    Raises ValueError if a logger's package is missing.
    """

    def __init__(
        self,
        loggers: Mapping[str, Callable[[], Logger]],
        say: Say,
        *,
        warn: Say | None = None,
        account: str = "",
    ) -> None:
        self._loggers = {name: logger() for name, logger in loggers.items()}
        self._say = say
        self._warn = warn or say
        self._account = account
        for logger in self._loggers.values():
            if sentence := logger.prepare():
                say(sentence)

        # Pictures are reported by other threads. Taken after the lock of RunLog, never before it.
        self._lock = threading.RLock()
        self._journal: Journal | None = None  # from RunStarted on
        self._followers: list[Follower] = []
        # For the user, until `handle` may show them.
        self._sentences: list[str] = []
        self._warnings: list[str] = []
        self._reported: set[Follower] = set()  # that failed

        # Of the run.
        self._pictures: set[tuple[str, str]] = set()  # file and digest
        self._evaluated: set[int] = set()  # after which epochs
        self._images = 0  # of an epoch
        self._step = 0
        self._step_offset = 0
        self._epoch = 0
        # A run that has no checkpoint yet cannot be resumed, so nothing is taken back.
        self._has_checkpoint = False

    def destinations(self, named_in: str) -> str:
        """Return a warning that says where the run is sent over the network; "" if it is not.

        named_in: the file that names the loggers or their account.
        """
        places = []
        for logger in self._loggers.values():
            if place := logger.destination(self._account):
                places.append(f"{logger.title} sends the run to {place}")
        if not places:
            return ""
        return (
            f"{' and '.join(places)}, because {named_in} says so; to stop it, give --loggers "
            "without a name"
        )

    # ---- for checkpoints

    def recorded(self, before: int) -> int:
        """Return the number of records, for a checkpoint to store.

        before: the number of the checkpoint before, which stays if no logger is on.
        """
        with self._lock:
            return before if self._journal is None else self._journal.count

    def checkpoint_written(self, recorded: int) -> None:
        """Send the records that a checkpoint covers to the loggers."""
        with self._lock:
            self._has_checkpoint = True
            if (journal := self._journal) is not None:
                self._guard(lambda: self._release(journal, recorded))

    # ---- events

    def handle(self, event: Event) -> None:
        if not self._loggers:
            return
        with self._lock:
            if isinstance(event, RunStarted):
                self._guard(lambda: self._start(event))
            elif (journal := self._journal) is not None:
                self._guard(lambda: self._record(journal, event))
            if isinstance(event, LogClosed):
                self._close(event.status)
            self._report()

    def _start(self, event: RunStarted) -> None:
        """Open the journal and start the loggers' threads."""
        folder = event.folder / FOLDER
        folder.mkdir(exist_ok=True)
        file = folder / "records.jsonl"
        self._has_checkpoint = event.recorded is not None
        if event.recorded is None:
            # A launcher has started the run again, if there was no checkpoint.
            kept = clear_journal(file)
            resumed = kept.restarts
        else:
            resumed = True
            kept = keep_records(file, event.recorded, epochs=len(event.rows))

        journal = Journal(file, kept.count)
        self._journal = journal
        self._images = event.images
        self._pictures = kept.pictures
        self._evaluated = kept.evaluated

        # Batches of another size are counted anew from the start, but no number comes twice.
        self._step = kept.last_step
        self._step_offset = max(self._step - event.step, 0)

        config = {flag: encodable(value) for flag, value in event.config.items()}
        for name, logger in self._loggers.items():
            run = LoggedRun(
                event.folder,
                config,
                event.hyp,
                self._account,
                resumed=resumed,
                restarts=kept.restarts,
                recorded=kept.count,
                notes=folder / f"{name}.json",
                say=self._sentences.append,
            )
            self._followers.append(Follower(logger, run, JournalReader(file)))

        # Epochs that were trained while no logger was on.
        for row in event.rows:
            self._epoch = int(row["epoch"])
            if self._epoch not in kept.epochs:
                self._record_epoch(journal, row)
        self._release(journal, journal.count)

    def _record(self, journal: Journal, event: Event) -> None:
        if isinstance(event, StepsEnded):
            self._step = event.step + self._step_offset
            losses = {f"step/{name}_loss": loss for name, loss in event.losses.items()}
            self._append(journal, STEPS, event.epoch, losses | {"step/lr": event.lr})
        elif isinstance(event, EpochEnded):
            self._epoch = int(event.row["epoch"])
            self._record_epoch(journal, event.row)
        elif isinstance(event, ImageWritten):
            self._record_picture(journal, event.path)
        elif isinstance(event, EvaluationEnded):
            self._record_evaluation(journal, event)
        elif isinstance(event, RunEnded):
            self._release(journal, journal.count)
            self._wait_until_sent()

    def _record_epoch(self, journal: Journal, row: Mapping[str, float]) -> None:
        values = {name: value for name, value in row.items() if name != "epoch"}
        if self._images and row.get("time"):
            values["images/s"] = self._images / row["time"]
        self._append(journal, EPOCH, self._epoch, values)

    def _record_picture(self, journal: Journal, path: Path) -> None:
        """Record a picture, unless it was there before, with the same content."""
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except FileNotFoundError:  # somebody has removed it already
            return
        if (path.name, digest) not in self._pictures:
            self._pictures.add((path.name, digest))
            self._append(journal, PICTURE, self._epoch, {}, file=path.name, digest=digest)

    def _record_evaluation(self, journal: Journal, event: EvaluationEnded) -> None:
        """Record an evaluation, unless a run that was interrupted later had recorded it."""
        if self._epoch in self._evaluated:
            return
        self._evaluated.add(self._epoch)
        numbers = event.evaluation.as_dict(event.names, event.fitness or DEFAULT_FITNESS)
        del numbers["per_class"]
        values = {f"evaluation/{name}": value for name, value in numbers.items() if value >= 0}
        if event.epoch:
            values["evaluation/epoch"] = event.epoch
        classes = class_results(event.evaluation, event.names)
        self._append(journal, EVALUATION, self._epoch, values, classes=classes)

    def _append(
        self, journal: Journal, kind: str, epoch: int, values: Mapping[str, float], **more: Any
    ) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        record = Record(journal.count, kind, time.time(), self._step, epoch, finite, **more)
        journal.append(record)
        if not self._has_checkpoint:
            self._send(journal.count)

    # ---- the loggers' threads

    def _release(self, journal: Journal, count: int) -> None:
        """Send the first `count` records, which are never taken back."""
        journal.mark_saved(count)
        self._send(count)

    def _send(self, count: int) -> None:
        for follower in self._followers:
            follower.send(count)

    def _active(self) -> list[Follower]:
        return [follower for follower in self._followers if not follower.failure]

    def _wait_until_sent(self) -> None:
        """Wait for the loggers to write all records; leave out those that are too slow."""
        self._wait(Follower.wait_until_sent, end_seconds(os.environ))

    def _close(self, status: str) -> None:
        """Let the loggers close their runs; leave out those that are too slow."""
        limit = end_seconds(os.environ)
        if status == INTERRUPTED:
            limit = min(limit, INTERRUPTED_END_S)
        for follower in self._active():
            follower.finish(status)
        self._wait(Follower.join, limit)

        if self._journal is not None:
            self._journal.close()
            self._journal = None
        for logger in self._loggers.values():
            logger.restore()

    def _wait(self, wait: Callable[[Follower, float], bool], limit: float) -> None:
        """Wait for all loggers, together for `limit` seconds; say so if it takes longer than one.

        wait: waits for one logger and returns whether it was in time.
        """
        began = time.monotonic()
        late = [f for f in self._active() if not wait(f, seconds_until(began + QUIET_S))]
        if late and limit > QUIET_S:
            titles = ", ".join(follower.logger.title for follower in late)
            self._say(f"waiting for {titles}: at most {limit:g} s")
        for follower in late:
            if not wait(follower, seconds_until(began + limit)):
                follower.leave_out(too_late(limit))

    # ---- failures

    def _guard(self, work: Callable[[], None]) -> None:
        """Call `work`, which writes records; leave all loggers out if it fails."""
        try:
            work()
        except Exception as error:
            self._journal = None
            for follower in self._active():
                follower.leave_out("gets no records")
            self._warnings.append(
                f"the records of the loggers cannot be written ({one_line(error)})"
            )

    def _report(self) -> None:
        """Say what loggers want to say, and which of them fail or hang: each once."""
        for follower in self._active():
            if follower.seconds_busy() > HANGS_S:
                follower.leave_out(f"has not answered for {HANGS_S:g} s")
        for follower in self._followers:
            if follower.failure and follower not in self._reported:
                self._reported.add(follower)
                self._warnings.append(f"{follower.logger.title}: {follower.failure}; {LEFT_OUT}")

        for sentences, show in ((self._sentences, self._say), (self._warnings, self._warn)):
            now = list(sentences)  # a logger's thread may add more
            del sentences[: len(now)]
            for sentence in now:
                show(sentence)


def open_loggers(
    names: Sequence[str], log: RunLog, *, account: str = "", named_in: str = ""
) -> Loggers:
    """Return the sink of these loggers, attached to the log; an idle one on other ranks than 0.

    Args:
        names: of the loggers.
        log: of the run.
        account: of the loggers that have accounts.
        named_in: the file that says so in place of the user, who may not know where data are sent:
            a warning says it, before anything is sent. "" for none.

    Raises ValueError if a logger's package is missing.
    """
    chosen = dict.fromkeys(names if log.active else ())
    makers = {name: LOGGERS[name] for name in chosen}
    loggers = Loggers(makers, log.say, warn=log.warn, account=account)
    if named_in and (sentence := loggers.destinations(named_in)):
        log.warn(sentence)
    log.attach(loggers)
    return loggers


def warn_of_destinations(names: Sequence[str], log: RunLog, *, account: str, named_in: str) -> None:
    """Warn as `open_loggers` does, of loggers that are opened later."""
    if log.active and named_in:
        makers = {name: LOGGERS[name] for name in names}
        loggers = Loggers(makers, say_nothing, account=account)
        if sentence := loggers.destinations(named_in):
            log.warn(sentence)


def end_seconds(environment: Mapping[str, str]) -> float:
    """Return how long loggers may take at the end of a run, in seconds.

    >>> end_seconds({}), end_seconds({"KESTREL_LOGGER_WAIT": "120"})
    (30.0, 120.0)
    """
    try:
        return max(float(environment[END_VARIABLE]), 0.0)
    except (KeyError, ValueError):
        return END_S


def seconds_until(deadline: float) -> float:
    """Return the seconds until a time of time.monotonic(), 0 after it."""
    return max(deadline - time.monotonic(), 0.0)


def too_late(limit: float) -> str:
    """Return why a logger is left out that was too slow at the end of a run."""
    return f"was not done {limit:g} s after the end ({END_VARIABLE} sets another limit)"


def class_results(evaluation: Evaluation, names: Sequence[str]) -> list[ClassResult]:
    """Return the numbers and curves of all classes with ground truth."""
    curves = evaluation.curves
    points = np.linspace(0, len(curves.confidence) - 1, CURVE_POINTS).round().astype(int)

    results = []
    for k, class_id in enumerate(curves.class_ids.tolist()):
        if not curves.has_truth[k]:
            continue

        row = evaluation.coco.per_class[class_id]
        values = {"precision": curves.precision_at_best[k], "recall": curves.recall_at_best[k]}
        values |= {name: row[name] for name in ("AP50", "AP")}
        numbers = {name: float(value) for name, value in values.items()}

        results.append(
            ClassResult(
                class_id,
                encodable(names[class_id]),
                int(row["instances"]),
                numbers,
                confidence=curves.confidence[points].round(4).tolist(),
                precision=curves.precision[k, points].round(5).tolist(),
                recall=curves.recall[k, points].round(5).tolist(),
            )
        )
    return results
