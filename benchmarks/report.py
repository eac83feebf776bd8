"""Output of a benchmark's report."""

from collections.abc import Sequence
from pathlib import Path

from utils.files.writers import write_text


def file_report(lines: Sequence[str], out: Path | None) -> None:
    """Print a report, and write it to `out` if that is given."""
    text = "\n".join(lines)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, f"{text}\n")
    print(text)
