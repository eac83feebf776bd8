"""What the reports of benchmarks share: their flags, tables, and the machine in words."""

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import isnan
from pathlib import Path
from statistics import mean, stdev

import torch

from utils.files.writers import write_text


def add_report_flags(parser: argparse.ArgumentParser) -> None:
    """Add --about and --out."""
    machine = f"{os.cpu_count()} cores {platform.machine()}"
    parser.add_argument("--about", default=machine, help="the hardware, as text for the report")
    parser.add_argument("--out", type=Path, help="file for the report")


def file_report(lines: Sequence[str], out: Path | None) -> None:
    """Print a report, and write it to `out` if that is given."""
    text = "\n".join(lines)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, f"{text}\n")
    print(text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table.

    >>> print(table(["N", "ms"], [[1, 2.5]]))
    | N | ms |
    | --- | --- |
    | 1 | 2.5 |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(table_row(line) for line in lines)


def table_row(cells: Sequence[object]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean and, of two or more values, the standard deviation.

    It is "nan" if a value is NaN, of which Python 3.11's `stdev` has none. digits: after the point.

    >>> spread([0.25, 0.75]), spread([0.5]), spread([float("nan"), 0.5])
    ('0.500 ± 0.354', '0.500', 'nan')
    """
    text = f"{mean(values):.{digits}f}"
    has_deviation = len(values) > 1 and not any(map(isnan, values))
    return f"{text} ± {stdev(values):.{digits}f}" if has_deviation else text


def command_line() -> str:
    """The command of this process, as a block of code in a report."""
    return f"    {shlex.join(['python', *sys.argv])}"


def versions() -> str:
    return f"torch {torch.__version__}, Python {platform.python_version()}"


def processor() -> str:
    """The processor's name, or the machine type if the name is unknown."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
