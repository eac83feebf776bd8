"""Detections as a table for spreadsheet programs."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from utils.files.atomic import name_os_errors
from utils.images.detections import Frame, ImageDetections

COLUMNS = ("image", "frame", "class", "name", "confidence", "x1", "y1", "x2", "y2", "source")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class AppendedRows:
    """A new CSV file (UTF-8), to which whole rows are appended, in one write for each call.

    A process that is killed leaves whole rows, but for the last one: Linux writes memory page by
    page, and a kill may come between two pages. Raises OSError if the file cannot be created.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        with name_os_errors(path):
            self._stream = path.open("wb", buffering=0)
        self.append([columns])

    def append(self, rows: Sequence[Sequence[object]]) -> None:
        """Append whole rows.

        On a full disk, where only a part may be written, that part is removed.
        """
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        content = text.getvalue().encode("utf-8", "backslashreplace")
        with name_os_errors(self.path):
            start = self._stream.tell()
            try:
                while content:
                    content = content[self._stream.write(content) :]
            except OSError:
                self._stream.seek(start)
                self._stream.truncate()
                raise

    def close(self) -> None:
        with name_os_errors(self.path):
            self._stream.close()


class CsvFile:
    """Appends a row for each detection to a new CSV file (UTF-8), one write for each frame.

    frame is empty for images. The box is in pixels. source is the path of the image or video, or
    the address of the stream. Text that a spreadsheet program would run as a formula, such as a
    class named `=1+1`, gets an apostrophe in front. Raises OSError if the file cannot be created.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.names = [as_cell(str(name)) for name in names]
        self._rows = AppendedRows(path, COLUMNS)

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        image = as_cell(frame.name)
        number = "" if frame.number is None else frame.number
        source = as_cell(frame.path)

        rows = []
        columns = zip(
            detections.class_ids.tolist(),
            detections.scores.tolist(),
            detections.boxes_xyxy.tolist(),
            strict=True,
        )
        for class_id, score, box in columns:
            values = [f"{value:.6g}" for value in (score, *box)]
            rows.append((image, number, class_id, self._name(class_id), *values, source))
        self._rows.append(rows)

    def close(self) -> None:
        self._rows.close()

    def _name(self, class_id: int) -> str:
        return self.names[class_id] if 0 <= class_id < len(self.names) else str(class_id)


def as_cell(text: str) -> str:
    """Return text that no spreadsheet program runs as a formula.

    >>> as_cell("=1+1"), as_cell("a=b")
    ("'=1+1", 'a=b')
    """
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
