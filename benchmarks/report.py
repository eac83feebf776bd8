"""Where a benchmark's report goes."""

from collections.abc import Sequence
from pathlib import Path

from utils.files.writers import write_text


def file_report(lines: Sequence[str], out: Path | None) -> None:
    """Print a report, and write it to a file if one is named."""
    text = "\n".join(lines)
    if out:
        write_text(out, text)
    print(text)
