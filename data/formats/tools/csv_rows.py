"""Rows of CSV files, each with its line, and the images that they name."""

import csv
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from data.formats.annotations import AnnotatedImage
from data.formats.text.encoding import not_utf_8
from data.formats.tools.fields import Objects
from data.labels import BadRowError
from data.report import ROW_DROPPED, Problem
from utils.printable import excerpt, printable, utf_16_hint

DELIMITERS = ",;\t"
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
SEPARATOR = re.compile(r'"?sep=([,;\t|])"?[ ,;\t]*\n', re.IGNORECASE)  # a first line of Excel
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (BOM_UTF16_LE, BOM_UTF16_BE)


class CsvRow(NamedTuple):
    """A row that is not empty, without the spaces around its values."""

    line: int  # the last one of the row, counted from 1
    values: list[str]
    has_decimal_commas: bool = False  # whether a number may be written as 1,5

    def value(self, index: int) -> str:
        """Return the value of a column. Raises BadRowError if the row is too short."""
        if index >= len(self.values):
            raise BadRowError(f"has {len(self.values)} values, must have more than {index}")
        return self.values[index]

    def number(self, index: int) -> float:
        """Return the number in a column. Raises BadRowError if it is none."""
        text = self.value(index)
        number = text.replace(",", ".") if self.has_decimal_commas else text
        if not NUMBER.fullmatch(number):
            raise BadRowError(f"'{excerpt(text)}' is not a number")
        return float(number)

    def has_numbers(self, start: int, stop: int) -> bool:
        """Whether the values of all columns from start up to stop are numbers."""
        try:
            return all(isfinite(self.number(index)) for index in range(start, stop))
        except BadRowError:
            return False


NO_ROW = CsvRow(1, [])


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

    A first line `sep=;`, as Excel writes it, says what separates them. The file is not kept in
    memory, unless it is in UTF-16. Raises ValueError with its path if it cannot be read or is not
    text in UTF-8, or in UTF-16 with its mark.
    """
    return _rows(_lines(file), printable(file))


def first_row(start: bytes) -> CsvRow:
    """Return the first row of a file that begins with these bytes, in UTF-8.

    It has no values if there is none.

    >>> first_row(b"sep=;\\r\\na;b\\r\\n").values
    ['a', 'b']
    """
    text = start.decode("utf-8-sig", "replace")
    lines = (f"{line}\n" for line in text.replace("\0", "").splitlines())
    try:
        return next(_rows(lines, ""), NO_ROW)
    except ValueError:
        return NO_ROW


def delimiter_of(line: str) -> str:
    """Return what separates the values of the first line of a file.

    >>> delimiter_of("a;b;c"), delimiter_of("a")
    (';', ',')
    """
    return max(DELIMITERS, key=line.count)


def _rows(lines: Iterator[str], file: str) -> Iterator[CsvRow]:
    """Iterate over the rows of a file with these lines; file: for messages, as it is printed."""
    # The first line with values.
    delimiter = ""
    skipped = 0
    first = ""
    for first in lines:
        separator = SEPARATOR.fullmatch(first)
        if separator and not delimiter:
            delimiter = separator[1]
        elif first.strip():
            break
        skipped += 1
    delimiter = delimiter or delimiter_of(first)
    has_decimal_commas = delimiter != ","

    reader = csv.reader(chain([first], lines), delimiter=delimiter, skipinitialspace=True)
    try:
        for values in reader:
            stripped = [value.strip() for value in values]
            if any(stripped):
                yield CsvRow(skipped + reader.line_num, stripped, has_decimal_commas)
    except csv.Error as error:
        raise ValueError(f"{file} line {skipped + reader.line_num}: {error}") from None


def _lines(file: Path) -> Iterator[str]:
    """Iterate over the lines of a text file, with any line ends.

    Raises ValueError with its path, and the line.
    """
    number = 0
    try:
        with open(file, "rb") as stream:
            for data in stream:
                if number == 0:
                    if data.startswith(UTF_16_MARKS):
                        data = _utf_16_as_utf_8(data + stream.read(), file)
                    elif hint := utf_16_hint(data):
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
        problem = "not UTF-8 text: save it as UTF-8"
        raise ValueError(f"{printable(file)} line {number + 1}: {problem}") from None


def _utf_16_as_utf_8(data: bytes, file: Path) -> bytes:
    """Return the text of a file in UTF-16 with its mark, in UTF-8. Raises ValueError."""
    try:
        return data.decode("utf-16").encode()
    except UnicodeDecodeError as error:
        raise not_utf_8(data, error, str(file)) from None
