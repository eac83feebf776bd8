"""A run's folder, its lines on the terminal, its progress bar and its results.csv. Silent where not active."""

import contextlib
import csv
import io
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from tqdm import tqdm

from utils.files import written_whole
from utils.printable import shown
from utils.terminal import show

T = TypeVar("T")


def new_run_folder(project: Path, name: str, exist_ok: bool) -> Path:
    """project/name, or the first free of name2, name3, ...: created here, so that two runs never share one.

    Raises ValueError if the folder cannot be made.
    """
    first = project / name
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        if exist_ok:
            first.mkdir(exist_ok=True)
            return first
        for number in itertools.count(1):
            folder = first if number == 1 else first.with_name(f"{first.name}{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                break
        return folder
    except OSError as error:
        raise ValueError(f"{first}: the run folder cannot be made ({error.strerror})") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole: readers see the old text or the new one. What UTF-8 has not is escaped as JSON does it."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_yaml(path: Path, values: dict[str, Any]) -> None:
    write_text(path, yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def write_json(path: Path, values: Any) -> None:
    """Write plain values as JSON, which has no word for nan and infinity: they become null."""
    write_text(path, json.dumps(_without_nan(values), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(path: Path, rows: list[dict[str, float]]) -> None:
    """Plain comma-separated rows under one header, the keys of the first row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows([{k: f"{v:.6g}" for k, v in row.items()} for row in rows])
    write_text(path, text.getvalue())


class RunLog:
    """What a run tells. Off rank 0 (`active` False) nothing is shown or written."""

    def __init__(self, *, active: bool) -> None:
        self.active = active

    def say(self, text: str) -> None:
        """Print one line, whatever a path or a name in it holds."""
        if self.active:
            show(shown(text))

    def table(self, text: str) -> None:
        """Print lines."""
        if self.active:
            show(text)

    def results(self, rows: list[dict[str, float]], folder: Path) -> None:
        """Write the folder's results.csv, a row for each epoch."""
        if self.active:
            write_csv(folder / "results.csv", rows)


class Progress(Iterable[T]):
    """Iterates over a loader, measures how long each batch was waited for, and shows a bar with `text`.

    wait_share: the share of the time since the start that went into waiting for batches.
    """

    def __init__(self, batches: Iterable[T], *, total: int, title: str, active: bool) -> None:
        self.batches = batches
        self.bar = tqdm(total=total, desc=title, disable=None if active else True, dynamic_ncols=True, leave=False)
        self.waited, self.started = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def wait_share(self) -> float:
        return self.waited / max(self.seconds, 1e-9)

    def text(self, text: str) -> None:
        """Show `text` behind the bar."""
        self.bar.set_postfix_str(text, refresh=False)

    def __iter__(self) -> Iterator[T]:
        iterator = iter(self.batches)
        with self.bar:
            while True:
                asked = time.perf_counter()
                batch = next(iterator, None)
                self.waited += time.perf_counter() - asked
                if batch is None:
                    return
                yield batch
                self.bar.update()
