"""The records of a run, in a file of its folder, from which all loggers are fed.

Loggers cannot take back what they were sent. So a record goes to them only when a checkpoint holds
the state after it: what is trained again after a crash was never sent. And since a process may be
killed after a checkpoint and before a logger has its records, they are in this file first.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.files.atomic import atomic_write
from utils.files.writers import write_text
from utils.loggers.base import EPOCH, EVALUATION, PICTURE, STEPS, ClassResult, Record

SAVED = "saved"  # the key of a line that says how many records a checkpoint covers


@dataclass
class Kept:
    """What a run that starts has of its journal. The records themselves stay in the file.

    count: records. restarts: records are taken back, or lost, that loggers may have. pictures: file
    and digest of each. evaluated: after which epochs. epochs: those that have a row. last_step: the
    highest one.
    """

    count: int = 0
    restarts: bool = False
    pictures: set[tuple[str, str]] = field(default_factory=set)
    evaluated: set[int] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)
    last_step: int = 0

    def add(self, record: Record) -> None:
        """Count a record that is kept."""
        self.count += 1
        self.last_step = max(self.last_step, record.step)
        if record.kind == PICTURE:
            self.pictures.add((record.file, record.digest))
        elif record.kind == EVALUATION:
            self.evaluated.add(record.epoch)
        elif record.kind == EPOCH:
            self.epochs.add(record.epoch)


class Journal:
    """Appends records to a file, in which there are `count` so far.

    count: records in the file. saved: those that may be sent to loggers.
    """

    def __init__(self, file: Path, count: int) -> None:
        self.file = file
        self.count = count
        self.saved = 0
        self._stream = open(file, "a", encoding="utf-8", newline="\n")  # noqa: SIM115

    def append(self, record: Record) -> None:
        """Add a record, whose number is `count`."""
        self._write(_line(record))
        self.count += 1

    def mark_saved(self, count: int) -> None:
        """State that a checkpoint covers the first `count` records."""
        self._write(json.dumps({SAVED: count}) + "\n")
        self.saved = count

    def close(self) -> None:
        self._stream.close()

    def _write(self, line: str) -> None:
        self._stream.write(line)
        self._stream.flush()  # to the system, which writes it even if this process is killed


def clear_journal(file: Path) -> Kept:
    """Empty the journal of an earlier start of a run that had no checkpoint yet."""
    restarts = file.exists() and last_saved(file) == 0
    write_text(file, "")
    return Kept(restarts=restarts)


def keep_records(file: Path, covered: int, epochs: int) -> Kept:
    """Leave those records in a journal that a run keeps which is resumed from a checkpoint.

    A journal may have millions of records: they are copied one after another.

    Args:
        file: the journal; it may be missing, or end within a line.
        covered: how many records the checkpoint covers.
        epochs: how many rows of results.csv the checkpoint has.
    """
    kept = Kept()
    beyond: list[Record] = []  # what may be kept of the rest
    saved = 0
    trained_again: int | None = None  # the first record that comes again
    with (
        atomic_write(file) as temporary,
        open(temporary, "w", encoding="utf-8", newline="\n") as copy,
    ):
        for entry in _entries(file):
            if isinstance(entry, int):
                saved = entry
            elif entry.number < covered:
                copy.write(_line(entry))
                kept.add(entry)
            elif entry.kind in (PICTURE, EVALUATION):
                beyond.append(entry)
            elif entry.kind in (STEPS, EPOCH) and trained_again is None:
                trained_again = entry.number

        # After the last checkpoint of a run come its evaluation and pictures, and nothing else.
        taken_back = trained_again is not None and trained_again < saved
        kept.restarts = taken_back or kept.count < covered  # the journal is damaged or gone
        for record in beyond:
            of_this_state = record.kind == PICTURE and record.epoch <= epochs
            is_final = record.kind == EVALUATION and record.number < saved and not kept.restarts
            if of_this_state or is_final:
                copy.write(_line(record))
                kept.add(record)
    return kept


def last_saved(file: Path) -> int:
    """Return how many records of a journal a checkpoint was said to cover, at last."""
    saved = 0
    for entry in _entries(file):
        if isinstance(entry, int):
            saved = entry
    return saved


def _entries(file: Path) -> Iterator[Record | int]:
    """Yield the records of a journal, and between them the numbers that were saved.

    They end where the file is damaged, or within a line. The file may come from somebody else.
    """
    if not file.is_file():
        return
    count = 0
    with open(file, "rb") as lines:
        for line in lines:
            try:
                entry = _checked_entry(line, count)
            except (ValueError, TypeError, RecursionError):
                return
            count += isinstance(entry, Record)
            yield entry


def _checked_entry(line: bytes, number: int) -> Record | int:
    """Return the record of a line, or how many were saved.

    Raises ValueError or TypeError if the line is damaged.
    """
    if not line.endswith(b"\n"):
        raise ValueError("the line has no end")
    values = json.loads(line)
    if not isinstance(values, dict):
        raise TypeError("not an object")
    if SAVED in values:
        saved: int = _checked(values[SAVED], int)
        return saved
    return _checked_record(values, number)


class JournalReader:
    """Reads a journal's records from the first one on, while it is written."""

    def __init__(self, file: Path) -> None:
        self._stream = open(file, encoding="utf-8")  # noqa: SIM115
        self.position = 0  # number of the next record

    def next_records(self, limit: int, most: int) -> list[Record]:
        """Return the next records up to number `limit`, at most so many. They must be there."""
        found: list[Record] = []
        while self.position < limit and len(found) < most:
            values = json.loads(self._stream.readline())
            if SAVED not in values:
                found.append(_record(values, self.position))
                self.position += 1
        return found

    def close(self) -> None:
        self._stream.close()


def _line(record: Record) -> str:
    values = vars(record) | {"classes": [vars(result) for result in record.classes]}
    del values["number"]  # of the line
    present = {name: value for name, value in values.items() if value not in ({}, "", (), [])}
    return json.dumps(present) + "\n"


def _checked_record(values: dict[str, Any], number: int) -> Record:
    """Return a record. Raises TypeError if a value is not of its type."""
    record = _record(values, number)
    for text in (record.kind, record.file, record.digest):
        _checked(text, str)
    for count in (record.step, record.epoch):
        _checked(count, int)
    for value in (record.time, *record.values.values()):
        _checked(value, int, float)
    return record


def _checked(value: Any, *kinds: type) -> Any:
    """Return the value. Raises TypeError if it is of none of these types."""
    if type(value) not in kinds:
        raise TypeError(f"{value!r} is not of {kinds}")
    return value


def _record(values: dict[str, Any], number: int) -> Record:
    classes = tuple(ClassResult(**entry) for entry in values.pop("classes", ()))
    return Record(number, **values, classes=classes)
