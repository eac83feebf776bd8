"""Events of a run, and the log that sends them to sinks on rank 0: see utils/loggers/."""

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from utils.printable import one_line

if TYPE_CHECKING:
    from utils.metrics.evaluation import Evaluation
    from utils.metrics.fitness import Fitness

# How a run has ended.
FINISHED: Final = "finished"
INTERRUPTED: Final = "interrupted"  # by a signal; it may be resumed
FAILED: Final = "failed"

Row = dict[str, float]
Say = Callable[[str], None]  # prints one line for the user


def say_nothing(_: str) -> None:
    """Print nothing: a `Say` for those who want no lines."""


@dataclass(frozen=True)
class Message:
    """Text for the user.

    table: several formatted lines; else one line, in which control characters are escaped.
    warning: shown with --quiet, too.
    """

    text: str
    table: bool = False
    warning: bool = False


@dataclass(frozen=True)
class RunStarted:
    """Training is about to start or resume."""

    folder: Path
    config: dict[str, Any]
    hyp: dict[str, float]
    rows: Sequence[Row]  # of results.csv; in a resumed run those of the previous epochs
    step: int = 0  # batches that are trained
    images: int = 0  # of an epoch
    recorded: int | None = None  # RunProgress.recorded of a resumed run; None: a new one


@dataclass(frozen=True)
class StepsEnded:
    """Some more batches of an epoch are trained."""

    step: int  # trained batches of the run so far
    epoch: int  # the one that they are part of, counted from 1
    losses: dict[str, float]  # mean of each term over the epoch so far, estimated on this process
    lr: float  # learning rate of the last of these batches


@dataclass(frozen=True)
class EpochEnded:
    """An epoch of training, and its validation if one is due, has ended."""

    folder: Path
    row: Row  # its losses, metrics and learning rate, nan for missing values
    rows: Sequence[Row]  # of all epochs; this one is the last
    text: str  # the row as one line
    evaluation: "Evaluation | None" = None  # of its averaged weights; None if not validated


@dataclass(frozen=True)
class ImageWritten:
    """An image was written to the run folder. Sent from another thread during training."""

    path: Path


@dataclass(frozen=True)
class EvaluationEnded:
    """The final weights of a training, or those of val.py, were evaluated."""

    folder: Path
    evaluation: "Evaluation"
    names: Sequence[str]  # of the classes
    epoch: int = 0  # of the weights, counted from 1; 0 if it is not known
    fitness: "Fitness | None" = None  # that of the run; None: the default one


@dataclass(frozen=True)
class RunEnded:
    """Training and evaluation have ended; `metrics` is not written yet, and the run may fail."""

    folder: Path
    metrics: dict[str, Any]  # the content of metrics.json


@dataclass(frozen=True)
class LogClosed:
    """The last event, however the run has ended."""

    status: Literal["finished", "interrupted", "failed"]
    reason: str = ""  # name of the signal, or the error's message on one line


Event = (
    Message
    | RunStarted
    | StepsEnded
    | EpochEnded
    | ImageWritten
    | EvaluationEnded
    | RunEnded
    | LogClosed
)


class Sink(Protocol):
    """Interface of a logger: it receives all events of a run."""

    def handle(self, event: Event) -> None: ...


class RunLog:
    """Sends each event to all sinks in order, one event at a time.

    An exception in a sink ends the run, because its output would be incomplete. The report raises
    none, and loggers of other projects are behind a sink that raises none (utils/loggers/sink.py).

    As a context manager it sends LogClosed at the end of the block. The sinks get it in reverse, as
    nested blocks end: what the run itself writes is written before slow loggers are waited for.

    active: False to drop all events, on other ranks than 0. sinks: None for the terminal and
    results.csv.
    """

    def __init__(self, *, active: bool, sinks: Sequence[Sink] | None = None) -> None:
        self.active = active
        self.sinks: list[Sink] = _standard_sinks() if sinks is None else list(sinks)
        self._lock = threading.RLock()  # a sink may log, too

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, _: object, error: BaseException | None, *traceback: object) -> None:
        self.sinks.reverse()
        self.send(end_of_run(error))

    def attach(self, sink: Sink) -> None:
        """Send events to one more sink from now on."""
        self.sinks.append(sink)

    def send(self, event: Event) -> None:
        """Send an event to all sinks. Thread-safe."""
        if not self.active:
            return
        with self._lock:
            for sink in self.sinks:
                sink.handle(event)

    def say(self, *lines: str) -> None:
        """Print messages, each on one line.

        Control characters, such as newlines in a path, are escaped.
        """
        for line in lines:
            self.send(Message(line))

    def warn(self, line: str) -> None:
        """Print a warning on one line, with --quiet too."""
        self.send(Message(line, warning=True))

    def image_written(self, path: Path) -> None:
        """Report an image file that was written."""
        self.send(ImageWritten(path))

    def table(self, text: str) -> None:
        """Print text that is already formatted into lines."""
        self.send(Message(text, table=True))


def end_of_run(error: BaseException | None) -> LogClosed:
    """Return how and why a run has ended. error: that has ended it, if one has.

    >>> end_of_run(SystemExit(143))
    LogClosed(status='interrupted', reason='SIGTERM')
    >>> end_of_run(ValueError("no disk"))
    LogClosed(status='failed', reason='no disk')
    """
    if error is None:
        return LogClosed(FINISHED)
    message = one_line(error)
    if isinstance(error, KeyboardInterrupt):  # that of another signal than Ctrl-C names it
        return LogClosed(INTERRUPTED, message or signal.SIGINT.name)
    if isinstance(error, SystemExit):  # a signal came, and the run was saved
        return LogClosed(INTERRUPTED, _signal_of(error.code) or message)
    return LogClosed(FAILED, message or type(error).__name__)


def _signal_of(code: object) -> str:
    """Return the name of the signal of an exit code; "" if it is of none."""
    if not isinstance(code, int):
        return ""
    with suppress(ValueError):
        return signal.Signals(code - 128).name
    return ""


def _standard_sinks() -> list[Sink]:
    # Here, because these modules import the events.
    from utils.loggers.results_csv import CsvSink
    from utils.loggers.terminal_lines import TerminalSink

    return [TerminalSink(), CsvSink()]
