"""Atomic writers for bytes, text, YAML, JSON and CSV files."""

import csv
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from utils.files.atomic import atomic_write


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` atomically: a reader sees the old file or the new one."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write `text` atomically: a reader sees the old file or the new one.

    What UTF-8 cannot encode is escaped.
    """
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def write_json(path: Path, values: Any) -> None:
    """Write plain values as JSON; nan and infinity, which JSON does not have, become null."""
    write_text(
        path, json.dumps(_without_nan(values), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(path: Path, rows: list[dict[str, float]]) -> None:
    """Write rows as CSV, numbers with 6 significant digits.

    The header is the keys of the first row.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows([{k: f"{v:.6g}" for k, v in row.items()} for row in rows])
    write_text(path, text.getvalue())
