"""evolve.csv: the generations of a search, a row each, from which the search continues."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from training.results import COLUMN_OF
from training.search.mutation import Generation
from training.settings.hyperparameters import Hyp
from utils.files.writers import write_text
from utils.printable import one_line, printable

KEYS = [field.name for field in fields(Hyp)]
COLUMNS = ["generation", "fitness", *COLUMN_OF.values(), *KEYS, "failure"]
MAX_BYTES = 64 * 2**20


def write_history(path: Path, generations: Sequence[Generation]) -> None:
    """Write evolve.csv atomically. Its numbers are exact, so that a search continues with them."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for generation in generations:
        measured = {
            column: repr(generation.metrics.get(name, 0.0)) for name, column in COLUMN_OF.items()
        }
        searched = {name: repr(generation.hyp[name]) for name in KEYS}
        row = {"generation": generation.number, "fitness": repr(generation.fitness)}
        writer.writerow(row | measured | searched | {"failure": printable(generation.failure)})
    write_text(path, text.getvalue())


def read_history(path: Path) -> list[Generation]:
    """Return the generations in a file of `write_history`; none if there is no file.

    Raises ValueError, with the line, if it is not such a file.
    """
    name = printable(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"{name}: larger than {MAX_BYTES:,} bytes, the limit for this file")

    rows = csv.DictReader(io.StringIO(data.decode(errors="replace"), newline=""))
    generations = []
    try:
        if rows.fieldnames != COLUMNS:
            raise ValueError(f"{name} line 1: its columns are not those of a search")
        for number, row in enumerate(rows):
            generations.append(_generation(number, row))
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name} line {rows.line_num}: {one_line(error)}") from None
    return generations


def _generation(number: int, row: dict[str, str]) -> Generation:
    """Return the generation in a row. Raises ValueError, TypeError or KeyError for another row."""
    if row["generation"] != str(number):
        raise ValueError(
            f"generation {row['generation']}, expected {number}: put the missing row back"
        )
    hyp = Hyp(**{name: float(row[name]) for name in KEYS})
    measured = {column: float(row[column]) for column in ("fitness", *COLUMN_OF.values())}
    for column, value in measured.items():
        if not math.isfinite(value):
            raise ValueError(f"{column} {value}, expected a finite number")
    metrics = {name: measured[column] for name, column in COLUMN_OF.items()}
    return Generation(number, measured["fitness"], metrics, hyp.as_dict(), row["failure"] or "")
