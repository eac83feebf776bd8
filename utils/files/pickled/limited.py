"""Open a file that nobody vouches for: a regular one, of limited size, read in small pieces."""

import io
from pathlib import Path

MAX_FILE = 1 << 34  # bytes, as the next one; yolov5x6 with its optimizer state has 1 GB
MAX_DIRECTORY = 1 << 22


class LimitedReadFile(io.FileIO):
    """A file that refuses reads of more than MAX_DIRECTORY bytes.

    zipfile reads a zip's directory in one call.
    """

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = MAX_DIRECTORY
        if size > MAX_DIRECTORY:
            raise ValueError(f"its directory has more than {MAX_DIRECTORY} bytes")
        return super().read(size) or b""


def open_limited(path: Path) -> LimitedReadFile:
    """Open a regular file of at most MAX_FILE bytes.

    Raises OSError or ValueError for others: a pipe would block.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError("it is not a regular file")
    if size > MAX_FILE:
        raise ValueError(f"it has more than {MAX_FILE} bytes")
    return LimitedReadFile(path)
