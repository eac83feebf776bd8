"""The records of a run, in a file of its folder, from which all loggers are fed.

Loggers cannot take back what they were sent. So a record goes to them only when a checkpoint holds
the state after it: what is trained again after a crash was never sent. And since a process may be
killed after a checkpoint and before a logger has its records, they are in this file first.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from utils.files.writers import write_text
from utils.loggers.base import EPOCH, EVALUATION, PICTURE, STEPS, ClassResult, Record

SAVED = "saved"  # the key of a line that says how many records a checkpoint covers


@dataclass(frozen=True)
class Kept:
    """What a resumed run keeps of its journal.

    restarts: records are taken back, or lost, that loggers may have.
    """

    records: list[Record]
    restarts: bool


class Journal:
    """Appends records to a file.

    count: records in the file. saved: those that may be sent to loggers.
    """

    def __init__(self, file: Path, records: list[Record]) -> None:
        self.file = file
        self.count = len(records)
        self.saved = 0

        lines = [_line(record) for record in records]
        write_text(file, "".join(lines))
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


def kept_of(file: Path, covered: int, epochs: int) -> Kept:
    """Return what a run keeps that is resumed from a checkpoint.

    Args:
        file: the journal; it may be missing, or end within a line.
        covered: how many records the checkpoint covers.
        epochs: how many rows of results.csv the checkpoint has.
    """
    records, saved = read_journal(file)
    kept = records[:covered]
    beyond = records[covered:]

    # After the last checkpoint of a run come its evaluation and pictures, and nothing else.
    trained_again = [record for record in beyond if record.kind in (STEPS, EPOCH)]
    taken_back = any(record.number < saved for record in trained_again)
    restarts = taken_back or len(records) < covered  # the journal is damaged or gone
    for record in beyond:
        of_this_state = record.kind == PICTURE and record.epoch <= epochs
        is_final = record.kind == EVALUATION and record.number < saved and not restarts
        if of_this_state or is_final:
            kept.append(record)

    numbered = [replace(record, number=number) for number, record in enumerate(kept)]
    return Kept(numbered, restarts)


def read_journal(file: Path) -> tuple[list[Record], int]:
    """Return the records of a journal, and how many of them a checkpoint was said to cover.

    They end where the file is damaged, or within a line. The file may come from somebody else.
    """
    records: list[Record] = []
    saved = 0
    if not file.is_file():
        return records, saved
    with open(file, "rb") as lines, suppress(ValueError, TypeError, RecursionError):
        for line in lines:  # until one is damaged
            values = json.loads(line) if line.endswith(b"\n") else None
            if not isinstance(values, dict):
                break
            if SAVED in values:
                saved = _checked(values[SAVED], int)
            else:
                records.append(_checked_record(values, len(records)))
    return records, saved


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
