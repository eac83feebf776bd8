"""Which output file belongs to which source."""

from pathlib import Path

from utils.images.detections import Frame, ImageDetections
from utils.outputs.csv_file import AppendedRows, as_cell

COLUMNS = ("output", "source", "frame")


class SourcesFile:
    """Appends a row to a CSV file (UTF-8) for each output file that was written.

    output: a path relative to the run folder. source: the path of the image or video, or the
    address of the stream. frame: the number of the frame in its video; empty for an image and for a
    whole video. Cells are as in CsvFile. The file is created with its first row; `add` raises
    OSError if that fails.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: AppendedRows | None = None

    def add(self, output: str, source: str, number: int | None = None) -> None:
        """Append the row of one output file.

        number: of the frame that it shows, None for an image or a whole video.
        """
        if self._rows is None:
            self._rows = AppendedRows(self.path, COLUMNS)
        frame = "" if number is None else number
        self._rows.append([(as_cell(output), as_cell(source), frame)])

    def write(self, frame: Frame, detections: ImageDetections) -> None:
        """Do nothing: the outputs that write files call `add`."""

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
