"""Find the run to continue after a launcher has restarted the processes.

Launchers do so with `--max-restarts`, and in elastic launches. The command line of every attempt is
the same, so it cannot say which run to continue. But all attempts have at least one launcher
process in common: a run folder stores the marks of the launchers that started its processes.
"""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from training.checkpoints.status import is_done
from utils.distributed.world import World
from utils.files.folders import newest_first

MARKS = "launchers.json"


@dataclass(frozen=True)
class PreviousAttempt:
    """The run of an earlier attempt of this launch.

    marks: of the launchers of all processes. run: "" if there was no earlier attempt, or it created
    no run folder. checkpoint: "" if the attempt ended before the first one.
    """

    marks: list[str] = field(default_factory=list)
    run: str = ""
    checkpoint: str = ""
    done: bool = False


def find_previous_attempt(project: Path, world: World) -> PreviousAttempt:
    """Return the run under `project` that an earlier attempt of this launch began.

    Raises ValueError, on all processes, if not all machines see the same run.
    """
    marks = world.all_gather_object(launcher_mark(os.environ))
    run = find_own_run(project, marks, done=was_restarted(os.environ))
    last = Path(run) / "weights" / "last.pt"
    checkpoint = str(last) if run and last.exists() else ""

    seen = world.all_gather_object([run, checkpoint])  # what each process sees
    if any(view != seen[0] for view in seen):
        named = max(run for run, _ in seen)
        raise ValueError(
            f"{named}: not all machines see it; restarts need --project on a shared disk"
        )

    done = world.broadcast_object(bool(run) and is_done(Path(run)))
    return PreviousAttempt(marks, run, checkpoint, done)


def launcher_mark(environment: Mapping[str, str]) -> str:
    """Return a text that is the launcher's that may restart this process; "" without a launcher.

    It is made of host, process id, start time and launch id.
    """
    launch = environment.get("TORCHELASTIC_RUN_ID")
    if launch is None:
        return ""

    # The start time tells apart processes with the same id.
    parent = os.getppid()
    started = ""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{parent}/stat").read_text()
        # Field 22: the 20th after the name, which is in parentheses.
        started = stat.rpartition(")")[2].split()[19]
    return f"{socket.gethostname()} {parent} {started} {launch}"


def was_restarted(environment: Mapping[str, str]) -> bool:
    """Return whether the launcher started earlier processes before these."""
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def find_own_run(project: Path, marks: list[str], *, done: bool = False) -> str:
    """Return the folder under `project` of the newest run that one of these launchers started.

    "" if there is none. marks: of the launchers. done: also runs that are done, since a process may
    crash at exit, after which the launcher restarts all of them.
    """
    marks = [mark for mark in marks if mark]
    for file in newest_first(project, f"*/{MARKS}"):
        run = file.parent
        with suppress(OSError, ValueError, RecursionError):
            stored = json.loads(file.read_text())
            is_ours = isinstance(stored, list) and any(mark in stored for mark in marks)
            if is_ours and (done or not is_done(run)):
                return str(run)
    return ""
