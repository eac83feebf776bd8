"""How a run stands, in the metrics.json of its folder: running, finished, interrupted or failed."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from training.progress import RunProgress
from utils.files.writers import write_json
from utils.printable import one_line
from utils.terminal import FaultError

METRICS = "metrics.json"
RUNNING = "running"
FINISHED = "finished"
INTERRUPTED = "interrupted"
FAILED = "failed"


def write_status(folder: Path, status: str, **content: Any) -> None:
    """Write metrics.json with a status and further keys."""
    write_json(folder / METRICS, {"status": status, **content})


def is_done(folder: Path) -> bool:
    """Return whether the run in this folder is finished."""
    with suppress(OSError, ValueError):
        written = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        return isinstance(written, dict) and written.get("status") == FINISHED
    return False


@contextmanager
def recorded_end(folder: Path, progress: RunProgress, *, active: bool) -> Iterator[None]:
    """Write into metrics.json why the block ended, if by a signal or an error, which is raised on.

    A process that is killed cannot write it: its run stays "running".

    progress: of the run, whose last metrics are written too. active: False on other ranks than 0.
    """
    try:
        yield
    except BaseException as error:
        if active:
            by_signal = isinstance(error, (KeyboardInterrupt, SystemExit))
            status = INTERRUPTED if by_signal else FAILED
            with suppress(OSError, FaultError):  # the disk may be what failed
                write_status(folder, status, reason=reason_of(error), last=progress.metrics)
        raise


def reason_of(error: BaseException) -> str:
    """Return why a run ended, on one line: the name of the signal, or the error's message.

    >>> reason_of(SystemExit(143)), reason_of(KeyboardInterrupt()), reason_of(ValueError("no disk"))
    ('SIGTERM', 'SIGINT', 'no disk')
    """
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        return signal.Signals(error.code - 128).name
    if isinstance(error, KeyboardInterrupt) and not str(error):
        return signal.SIGINT.name
    return one_line(error) or type(error).__name__
