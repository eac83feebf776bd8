"""Rows of CSV files, each with its line, and the images that they name."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from data.formats.annotations import AnnotatedImage
from data.formats.tools.fields import Objects
from data.labels import BadRowError
from data.report import ROW_DROPPED, Problem
from utils.printable import printable, utf_16_hint

DELIMITERS = ",;\t"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvRow(NamedTuple):
    """A row that is not empty, without the spaces around its values."""

    line: int  # the last one of the row, counted from 1
    values: list[str]

    def value(self, index: int) -> str:
        """Return the value of a column. Raises BadRowError if the row is too short."""
        if index >= len(self.values):
            raise BadRowError(f"has {len(self.values)} values, must have more than {index}")
        return self.values[index]


@dataclass
class ImagesOfRows:
    """The images that the rows of a file name, in the order of their first rows.

    column: the place of the name. size_of: returns the size of the image that a row states.
    """

    file: Path
    column: int
    size_of: Callable[[CsvRow], tuple[int, int] | None] = lambda _: None
    images: dict[str, AnnotatedImage] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)  # of rows that name no image
    _objects: dict[str, Objects] = field(default_factory=dict)

    def objects_of(self, row: CsvRow) -> Objects | None:
        """Return the objects of a row's image so far; None, with a problem, if it names none."""
        name = row.values[self.column] if self.column < len(row.values) else ""
        if not name:
            where = f"{printable(self.file)} line {row.line}"
            self.problems.append(Problem(ROW_DROPPED, where, "the row names no image"))
            return None

        if name not in self.images:
            objects = self._objects[name] = Objects()
            self.images[name] = AnnotatedImage(
                name,
                objects.annotations,
                objects.problems,
                declared_size=self.size_of(row),
                number=row.line,
            )
        return self._objects[name]


def read_csv(file: Path) -> Iterator[CsvRow]:
    """Iterate over the rows of a CSV file, separated by comma, semicolon or tab.

    The file is not kept in memory. Raises ValueError with its path if it cannot be read or is not
    UTF-8 text.
    """
    reader = csv.reader(_lines(file), delimiter=_delimiter(file), skipinitialspace=True)
    try:
        for values in reader:
            stripped = [value.strip() for value in values]
            if any(stripped):
                yield CsvRow(reader.line_num, stripped)
    except csv.Error as error:
        raise ValueError(f"{printable(file)} line {reader.line_num}: {error}") from None


def delimiter_of(line: str) -> str:
    """Return what separates the values of the first line of a file.

    >>> delimiter_of("a;b;c"), delimiter_of("a")
    (';', ',')
    """
    return max(DELIMITERS, key=line.count)


def _delimiter(file: Path) -> str:
    return delimiter_of(next(_lines(file), ""))


def _lines(file: Path) -> Iterator[str]:
    """Iterate over the lines of a UTF-8 text file, with any line ends.

    Raises ValueError with its path, and the line.
    """
    number = 0
    try:
        with open(file, "rb") as stream:
            for data in stream:
                if number == 0:
                    if hint := utf_16_hint(data):
                        raise ValueError(f"{printable(file)} line 1: not UTF-8 text{hint}")
                    data = data.removeprefix(BYTE_ORDER_MARK)

                text = data.decode().replace("\r\n", "\n").replace("\r", "\n")
                for line in text.removesuffix("\n").split("\n"):
                    number += 1
                    if "\0" in line:  # only older Pythons refuse it
                        raise ValueError(f"{printable(file)} line {number}: contains NUL")

                    yield f"{line}\n"
    except OSError as error:
        raise ValueError(f"{printable(file)} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(
            f"{printable(file)} line {number + 1}: not UTF-8 text: save it as UTF-8"
        ) from None
