"""The diagnosis as text for the terminal."""

import math
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from textwrap import wrap

from data.check.findings import LEVELS, Diagnosis, Example, Finding, Table
from utils.printable import counted

SHOWN = 3  # places of each finding
LONGEST_NUMBER = 30  # characters of a cell; longer ones are text
MOST_CLASSES = 40  # rows of a table; the JSON file and the page have all


def lines_of(diagnosis: Diagnosis, shown: int = SHOWN) -> Iterator[str]:
    """Yield the lines of a diagnosis: tables, findings, suggestions.

    shown: the number of places that are listed for each finding.
    """
    for table in diagnosis.tables:
        yield from _table_lines(table)
        yield ""

    if diagnosis.findings and diagnosis.folder:
        yield f"Paths are those in {diagnosis.folder}"
        yield ""
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 120))
    for finding in diagnosis.by_level():
        yield from _finding_lines(diagnosis, finding, shown, width)
        yield ""
    if not diagnosis.findings:
        yield "nothing found"
        yield ""

    for suggestion in diagnosis.suggestions:
        flag = (
            f"{suggestion.flag} {suggestion.value}" if suggestion.value else f"no {suggestion.flag}"
        )
        yield from _wrapped(f"suggested: {flag}: {suggestion.reason}", width, "  ")


def summary(diagnosis: Diagnosis) -> str:
    """Return one line: how many findings there are of each level.

    >>> summary(Diagnosis("data.yaml", {"train": 3}, 640))
    '3 images: 0 errors, 0 warnings, 0 notes'
    """
    levels = [finding.level for finding in diagnosis.findings]
    parts = [counted(levels.count(level), level) for level in LEVELS]
    return f"{counted(sum(diagnosis.splits.values()), 'image')}: {', '.join(parts)}"


def _finding_lines(diagnosis: Diagnosis, finding: Finding, shown: int, width: int) -> Iterator[str]:
    yield from _wrapped(f"{finding.level}: {finding.heading}", width, "  ")
    for example in islice(finding.examples, shown):
        yield f"    {diagnosis.short(_example_text(example))}"
    more = finding.count - min(shown, len(finding.examples))
    if more > 0 and shown:
        yield f"    and {more:,} more"
    yield from _wrapped(f"  -> {finding.advice}", width, "     ")


def _example_text(example: Example) -> str:
    score = f"{floor_2(example.score):.2f}  " if example.score is not None else ""
    return f"{score}{example.where}: {example.what}"


def floor_2(value: float) -> float:
    """Return a value with two digits, rounded down: 1.00 would be certain.

    >>> floor_2(0.9999)
    0.99
    """
    return math.floor(value * 100) / 100


def _wrapped(text: str, width: int, indent: str) -> Iterator[str]:
    yield from wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table_lines(table: Table) -> Iterator[str]:
    """Yield a table in columns: text to the left, numbers to the right."""
    rows = table.rows[:MOST_CLASSES]
    widths = [max(map(len, column)) for column in zip(table.header, *rows, strict=True)]
    yield f"{table.title}"
    for row in (table.header, *rows):
        cells = [_cell(row, widths, place) for place in range(len(row))]
        yield f"  {'  '.join(cells)}".rstrip()
    if len(table.rows) > len(rows):
        yield f"  and {len(table.rows) - len(rows):,} more"
    if table.note:
        yield from wrap(table.note, 100, initial_indent="  ", subsequent_indent="  ")


def _cell(row: Sequence[str], widths: Sequence[int], place: int) -> str:
    """Return a cell as wide as its column: the first one and long ones begin at the left."""
    is_text = place == 0 or widths[place] > LONGEST_NUMBER
    return row[place].ljust(widths[place]) if is_text else row[place].rjust(widths[place])
