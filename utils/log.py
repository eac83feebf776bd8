"""What a run tells, as events that are sent to sinks: the terminal, results.csv, and whatever logger is added.

A logger is a class with a method `handle(event)`, passed to RunLog beside the sinks that are there. It hears of
events on rank 0 alone.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from utils.files.writers import write_csv
from utils.printable import printable
from utils.terminal import print_lines

Row = dict[str, float]
Say = Callable[[str], None]  # tells the user a line


@dataclass(frozen=True)
class Message:
    """Text for a person. table: lines laid out already; else one line, in which control characters are escaped."""

    text: str
    table: bool = False


@dataclass(frozen=True)
class RunStarted:
    """Training is about to begin or continue. rows: of results.csv, of a resumed run the epochs before."""

    folder: Path
    config: dict[str, Any]
    hyp: dict[str, float]
    rows: Sequence[Row]


@dataclass(frozen=True)
class EpochEnded:
    """An epoch is trained, and validated if it was to be. row: its losses, metrics and learning rate, nan where there
    are none; the last of `rows`. text: the same in a line.
    """

    folder: Path
    row: Row
    rows: Sequence[Row]
    text: str


@dataclass(frozen=True)
class ImageWritten:
    """A picture lies in the run's folder. Sent from another thread while the run trains."""

    path: Path


@dataclass(frozen=True)
class RunEnded:
    """The run is done. metrics: as in metrics.json."""

    folder: Path
    metrics: dict[str, Any]


Event = Message | RunStarted | EpochEnded | ImageWritten | RunEnded


class Sink(Protocol):
    """Whoever wants to hear of a run."""

    def handle(self, event: Event) -> None: ...


class TerminalSink:
    """Prints messages and a line for each epoch."""

    def handle(self, event: Event) -> None:
        if isinstance(event, Message):
            print_lines(event.text if event.table else printable(event.text))
        elif isinstance(event, EpochEnded):
            print_lines(printable(event.text))


class CsvSink:
    """Keeps results.csv in the run's folder: a row for each epoch, written whole each time."""

    def handle(self, event: Event) -> None:
        if isinstance(event, (RunStarted, EpochEnded)):
            write_csv(event.folder / "results.csv", list(event.rows))


class RunLog:
    """Sends events to sinks, in their order and one event at a time. Off rank 0 (`active` False) nobody hears of them.

    An error of a sink ends the run: what it was to keep would be missing.
    """

    def __init__(self, *, active: bool, sinks: Sequence[Sink] | None = None) -> None:
        self.active = active
        self.sinks: list[Sink] = [TerminalSink(), CsvSink()] if sinks is None else list(sinks)
        self._lock = threading.Lock()

    def send(self, event: Event) -> None:
        """Have all sinks handle an event."""
        if self.active:
            with self._lock:
                for sink in self.sinks:
                    sink.handle(event)

    def say(self, *lines: str) -> None:
        """Print lines, each on one line whatever a path or a name in it holds."""
        for line in lines:
            self.send(Message(line))

    def image_written(self, path: Path) -> None:
        """Tell of a picture."""
        self.send(ImageWritten(path))

    def table(self, text: str) -> None:
        """Print lines."""
        self.send(Message(text, table=True))
