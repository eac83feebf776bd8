"""How a run stands, in the metrics.json of its folder: running, finished, interrupted or failed."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.progress import RunProgress
from training.results import METRICS_FILE
from utils.files.writers import write_json
from utils.log import FINISHED, Event, LogClosed, RunEnded
from utils.terminal import FaultError

RUNNING = "running"


def write_status(folder: Path, status: str, **content: Any) -> None:
    """Write metrics.json with a status and further keys."""
    write_json(folder / METRICS_FILE, {"status": status, **content})


def is_done(folder: Path) -> bool:
    """Return whether the run in this folder is finished."""
    with suppress(OSError, ValueError, RecursionError):
        written = json.loads((folder / METRICS_FILE).read_text(encoding="utf-8"))
        return isinstance(written, dict) and written.get("status") == FINISHED
    return False


class RunStatus:
    """Sink that writes into metrics.json why a run ended before it was finished.

    A process that is killed cannot write it: its run stays "running".

    progress: of the run, whose last metrics are written, too; after the evaluation of best.pt all
    metrics are.
    """

    def __init__(self, folder: Path, progress: RunProgress) -> None:
        self.folder = folder
        self.progress = progress
        self.metrics: dict[str, Any] = {}  # of a run whose training has ended

    def handle(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self.metrics = event.metrics
        if not isinstance(event, LogClosed) or event.status == FINISHED:
            return
        if is_done(self.folder):  # Ctrl-C may come after the run's end
            return
        metrics = self.metrics or {"last": self.progress.metrics}
        with suppress(OSError, FaultError):  # the disk may be what failed
            write_status(self.folder, event.status, reason=event.reason, **metrics)
