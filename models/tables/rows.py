"""The rows of a table: [from, number, module, args], with their form checked, and scaled."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from models.tables.values import is_whole
from utils.printable import excerpt, one_line

MAX_NUMBER = 1000  # limit for the rows, the layers, the anchor sizes, and the `number` of a row
MAX_CHANNELS = 1_000_000
CHANNEL_MULTIPLE = 8  # of scaled channels, by default
IMAGES = "images"  # in `from`
SCALE = "{scale}"  # in an argument: the name of the scale


class TableRow(NamedTuple):
    """One row of a table; `sources` are absolute positions of the inputs, -1 for the images."""

    where: str
    position: int
    sources: tuple[int, ...]
    number: int
    module: str
    args: list[Any]

    def error(self, message: object) -> ValueError:
        """Return a ValueError that names this row."""
        return ValueError(f"{self.where}: {one_line(message)}")


def all_rows(table: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a table as they are: backbone, head, and auxiliary if it has any."""
    return [*table["backbone"], *table["head"], *(table.get("auxiliary") or [])]


def without_auxiliary(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table without its auxiliary rows: that of the model that detects."""
    return {key: value for key, value in table.items() if key != "auxiliary"}


def with_scale(rows: Sequence[Any], scale: str | None) -> list[Any]:
    """Return rows, not checked yet, with the scale's name for {scale} in their text arguments.

    >>> with_scale([[-1, 1, "TorchvisionBackbone", ["resnet{scale}", [8, 16, 32]]]], "18")
    [[-1, 1, 'TorchvisionBackbone', ['resnet18', [8, 16, 32]]]]
    """
    filled = []
    for row in rows:
        has_args = isinstance(row, (list, tuple)) and row and isinstance(row[-1], (list, tuple))
        if scale is not None and has_args:
            args = [arg.replace(SCALE, scale) if isinstance(arg, str) else arg for arg in row[-1]]
            row = [*row[:-1], args]
        filled.append(row)
    return filled


def parse_rows(table: Mapping[str, Any]) -> list[TableRow]:
    """Return the rows of a resolved table, as `all_rows`, with `from` as absolute indices.

    Raises: ValueError that names the row if it is malformed or its `from` is out of range.
    """
    parsed = []
    for index, row in enumerate(all_rows(table)):
        where = f"{table['source']} row {index}"
        parsed.append(parse_row(row, index, where))
    return parsed


def parse_row(row: Any, index: int, where: str) -> TableRow:
    """Return one row, with its form checked.

    Raises: ValueError for anything but [from, number, module, args], and for a `from` that is not
    above this row.
    """
    if not isinstance(row, (list, tuple)) or len(row) != 4:
        raise ValueError(f"{where}: must be [from, number, module, args], got {reprlib.repr(row)}")
    given, number, module, args = row
    where = f"{where} {format_row(row)}"

    # A negative `from` counts back from this row; the images are in front of row 0.
    sources = list(given) if isinstance(given, (list, tuple)) else [given]
    sources = [-1 - index if source == IMAGES else source for source in sources]
    if not sources or not all(is_whole(source) for source in sources):
        raise ValueError(f"{where}: `from` must be a row's index or a list of them")

    if not is_whole(number, 1) or number > MAX_NUMBER:
        raise ValueError(f"{where}: `number` must be a whole number, 1 to {MAX_NUMBER}")

    if not isinstance(module, str) or not isinstance(args, (list, tuple)):
        raise ValueError(f"{where}: `module` must be a name and `args` a list")

    absolute = []
    for source in sources:
        absolute.append(source + index if source < 0 else source)
    if not all(-1 <= source < index for source in absolute):
        allowed = f"0 to {index - 1}, or count back from it"
        raise ValueError(f"{where}: `from` must name rows above this one, {allowed}")

    return TableRow(
        where=where,
        position=index,
        sources=tuple(absolute),
        number=number,
        module=module,
        args=list(args),
    )


def format_row(row: Sequence[Any]) -> str:
    """Return a row as text in YAML's form, with long values shortened.

    >>> format_row([-1, 6, "C3", [256]])
    '[-1, 6, C3, [256]]'
    """
    shortened = []
    for value in row:
        shortened.append(excerpt(value) if isinstance(value, str) else reprlib.repr(value))
    return f"[{', '.join(shortened)}]"


def scale_channels(
    channels: int, width: float, most: int | None = None, multiple: int = CHANNEL_MULTIPLE
) -> int:
    """Return `channels`, limited to `most`, times `width`, rounded up to a multiple of `multiple`.

    >>> scale_channels(64, 0.25), scale_channels(64, 0.3), scale_channels(1024, 0.75, 768)
    (16, 24, 576)
    >>> scale_channels(32, 0.375, multiple=1)
    12
    """
    limited = min(channels, most or channels)
    return math.ceil(limited * width / multiple) * multiple


def scale_number(number: int, depth: float) -> int:
    """Return how often a row of `number` repeats at `depth`; a `number` of 1 stays 1.

    >>> [scale_number(9, depth) for depth in (0.33, 0.67, 1.33)], scale_number(1, 1.67)
    ([3, 6, 12], 1)
    """
    if number == 1:
        return 1
    return max(round(number * depth), 1)
