"""Finding one's own run again after a launcher has started the processes anew (`--max-restarts`, elastic launches).

The command line of every life is the same, so it cannot say which run to go on with. What the lives have in common is a
launcher process, one at least: a run folder keeps the marks of the launchers that its processes came from.
"""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from utils.distributed.world import World

MARKS = "launchers.json"


@dataclass(frozen=True)
class PreviousAttempt:
    """What an earlier life of this launch has left; `run` is "" if there was none, or none that came so far."""

    marks: list[str]  # of the launchers of all processes
    run: str
    checkpoint: str  # "" if it ended before the first
    done: bool


def find_previous_attempt(project: Path, world: World) -> PreviousAttempt:
    """The run under `project` that this launch has begun before.

    Raises ValueError, in all processes, if not all machines see the same.
    """
    marks = world.all_gather_object(launcher_mark(os.environ))
    run = find_own_run(project, marks, done=was_restarted(os.environ))
    last = Path(run) / "weights" / "last.pt"
    checkpoint = str(last) if run and last.exists() else ""
    seen = world.all_gather_object([run, checkpoint])
    if any(view != seen[0] for view in seen):
        named = max(run for run, _ in seen)
        raise ValueError(f"{named}: not all machines see it; to be restarted, put --project on a disk that they share")
    return PreviousAttempt(marks, run, checkpoint, world.broadcast_object(bool(run) and is_done(Path(run))))


def launcher_mark(environment: Mapping[str, str]) -> str:
    """Host, process number and start of the launcher that may start this process again, and its launch; or ""."""
    launch = environment.get("TORCHELASTIC_RUN_ID")
    if launch is None:
        return ""
    parent, started = os.getppid(), ""
    with suppress(OSError, IndexError):  # the number alone may come again
        stat = Path(f"/proc/{parent}/stat").read_text()
        started = stat.rpartition(")")[2].split()[19]
    return f"{socket.gethostname()} {parent} {started} {launch}"


def was_restarted(environment: Mapping[str, str]) -> bool:
    """Whether the launcher has started processes before these."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def find_own_run(project: Path, marks: list[str], *, done: bool = False) -> str:
    """The folder under `project` of the newest run that one of these launchers has started; "" if none.

    done: a run that is done counts too: a process may die in leaving, and the launcher start all of them again.
    """
    for file in sorted(project.glob(f"*/{MARKS}"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(OSError, ValueError):
            kept = json.loads(file.read_text())
            ours = isinstance(kept, list) and any(mark in kept for mark in marks if mark)
            if ours and (done or not is_done(file.parent)):
                return str(file.parent)
    return ""


def is_done(run: Path) -> bool:
    """Whether a run has come to its end."""
    return (run / "metrics.json").exists()
