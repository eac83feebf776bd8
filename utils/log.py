"""Events of a run, and the sinks that receive them: the terminal, results.csv, further loggers.

To add a logger, write a class with a method `handle(event)` and pass it to RunLog together with the
existing sinks. It receives events on rank 0 only.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from utils.files.writers import write_csv
from utils.printable import printable
from utils.terminal import print_lines

if TYPE_CHECKING:
    from utils.metrics.evaluation import Evaluation

Row = dict[str, float]
Say = Callable[[str], None]  # prints one line for the user


def say_nothing(_: str) -> None:
    """Print nothing: a `Say` for those who want no lines."""


@dataclass(frozen=True)
class Message:
    """Text for the user.

    table: several formatted lines; else one line, in which control characters are escaped.
    """

    text: str
    table: bool = False


@dataclass(frozen=True)
class RunStarted:
    """Training is about to start or resume."""

    folder: Path
    config: dict[str, Any]
    hyp: dict[str, float]
    rows: Sequence[Row]  # of results.csv; in a resumed run those of the previous epochs


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
    epoch: int  # of the weights, counted from 1; 0 if it is not known


@dataclass(frozen=True)
class RunEnded:
    """The run has finished."""

    folder: Path
    metrics: dict[str, Any]  # the content of metrics.json


Event = Message | RunStarted | StepsEnded | EpochEnded | ImageWritten | EvaluationEnded | RunEnded


class Sink(Protocol):
    """Interface of a logger: it receives all events of a run."""

    def handle(self, event: Event) -> None: ...


class TerminalSink:
    """Prints messages and one line per epoch."""

    def handle(self, event: Event) -> None:
        if isinstance(event, Message):
            text = event.text if event.table else printable(event.text)
            print_lines(text)
        elif isinstance(event, EpochEnded):
            text = printable(event.text)
            if sys.stdout is not None and sys.stdout.isatty():
                text = wrap_groups(text, shutil.get_terminal_size().columns)
            print_lines(text)


def wrap_groups(text: str, width: int) -> str:
    """Return the text as lines of at most `width` columns, if its groups allow that.

    Groups are separated by two spaces, and are not broken.

    >>> wrap_groups("1/3  box 0.1  P 0.2", 12)
    '1/3  box 0.1\\n     P 0.2'
    """
    stripped = text.lstrip()
    indent = text[: len(text) - len(stripped)]
    first, *groups = stripped.split("  ")
    lines = [indent + first]
    for group in groups:
        if len(lines[-1]) + 2 + len(group) <= width:
            lines[-1] += f"  {group}"
        else:
            lines.append(f"     {group}")
    return "\n".join(lines)


class CsvSink:
    """Writes results.csv in the run folder, one row per epoch.

    Each update rewrites the whole file.
    """

    def handle(self, event: Event) -> None:
        if isinstance(event, (RunStarted, EpochEnded)):
            write_csv(event.folder / "results.csv", list(event.rows))


class RunLog:
    """Sends each event to all sinks in order, one event at a time.

    An exception in a sink ends the run, because its output would be incomplete.

    active: False to drop all events, on other ranks than 0.
    """

    def __init__(self, *, active: bool, sinks: Sequence[Sink] | None = None) -> None:
        self.active = active
        self.sinks: list[Sink] = [TerminalSink(), CsvSink()] if sinks is None else list(sinks)
        self._lock = threading.RLock()  # a sink may log, too

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

    def image_written(self, path: Path) -> None:
        """Report an image file that was written."""
        self.send(ImageWritten(path))

    def table(self, text: str) -> None:
        """Print text that is already formatted into lines."""
        self.send(Message(text, table=True))
