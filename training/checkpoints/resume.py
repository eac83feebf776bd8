"""Resuming a run: from which checkpoint, with which settings, and at which batch of the epoch."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.checkpoints.contents import Checkpoint, refuse_damaged
from training.checkpoints.status import is_done
from training.early_stopping import EarlyStopping
from training.settings.config import LISTS, TrainConfig, flag
from utils.files.folders import data_of_run, newest_first
from utils.log import Say
from utils.printable import counted, excerpt

SETTINGS = "args.yaml"  # in a run's folder, written when the run begins

# Flags that may change when a run is resumed. The others keep the run's values.
CHANGEABLE = (
    "epochs",
    "batch_size",
    "patience",
    "workers",
    "save_minutes",
    "save_period",
    "nosave",
    "noval",
    "val_period",
    "noplots",
    "data",
    "teacher",
    "cache",
    "compile",
    "cache_dir",
    "loggers",
    "entity",
)

# Flags that say what --data is. They change with it, and only with it.
OF_DATA = ("data", "names", "merge", "data_weights")


def find_last(given: str, project: Path, say: Say) -> str:
    """Return the checkpoint that --resume names.

    Raises ValueError if there is none.

    Args:
        given: a file, a run folder (its last.pt), or "newest" (the newest of all runs).
        project: the folder of all runs.
        say: logs a line if a newer run has saved nothing.
    """
    if given == "newest":
        return str(_newest_last(project, say))
    if not Path(given).is_dir():
        return given
    last = Path(given, "weights", "last.pt")
    if not last.exists():
        raise ValueError(
            f"--resume {given}: there is no weights/last.pt in it; its run has saved nothing yet"
        )
    return str(last)


def _newest_last(project: Path, say: Say) -> Path:
    """Return the newest last.pt of all runs under `project`. say, errors: as for `find_last`."""
    checkpoints = newest_first(project, "**/weights/last.pt")
    if not checkpoints:
        why = "there is no run with a weights/last.pt"
        unsaved = newest_unsaved(project, 0)
        if unsaved:
            why = f"{unsaved} has saved nothing yet"
        raise ValueError(
            f"--resume finds nothing to continue under {project}: {why}; "
            "train first, or name a checkpoint"
        )

    last = checkpoints[0]
    unsaved = newest_unsaved(project, last.stat().st_mtime_ns)
    if unsaved:
        continued = run_folder(str(last))
        say(f"{unsaved} is newer, but it has saved nothing: --resume continues {continued}")
    return last


def newest_unsaved(project: Path, since_ns: int) -> str:
    """Return the folder under `project` of the newest run that has saved nothing.

    "" if all of them began before `since_ns`, in nanoseconds as st_mtime_ns.
    """
    began: dict[str, int] = {}
    for settings in project.glob(f"**/{SETTINGS}"):
        with suppress(OSError):  # a link that leads nowhere
            if not (settings.parent / "weights" / "last.pt").exists():
                began[str(settings.parent)] = settings.stat().st_mtime_ns

    newest = max(began, key=lambda folder: began[folder], default="")
    return newest if newest and began[newest] > since_ns else ""


def run_folder(last: str) -> Path:
    """Return the folder of the run that a checkpoint belongs to.

    Raises ValueError if the checkpoint is not in a run's weights folder.
    """
    weights = Path(os.path.abspath(last)).parent
    if weights.name != "weights":
        raise ValueError(
            f"{last}: is not in RUN/weights/, and --resume continues in the run's own folder"
        )
    return weights.parent


def resumed_config(cfg: TrainConfig, saved: Checkpoint) -> tuple[TrainConfig, list[str]]:
    """Return the settings to resume with, and lines for the log.

    These are the run's own settings, except the flags of CHANGEABLE that the command line gives.
    Raises ValueError if the run cannot be resumed with them, or is done.
    """
    # The run's own settings.
    defaults = TrainConfig().as_dict()
    stored = saved.description.config
    unknown = ", ".join(sorted(map(str, stored.keys() - defaults.keys())))
    if unknown:
        raise ValueError(
            f"{cfg.resume}: its settings ({excerpt(unknown)}) are unknown to this version of "
            "Kestrel"
        )
    own = defaults | stored
    own["resume"] = cfg.resume
    own["data"] = [data_of_run(Path(cfg.resume), saved.description.data)]
    own["download"] = cfg.download  # never from a checkpoint

    # Those that the command line changes, and those that it cannot change.
    given = {name: value for name, value in cfg.as_dict().items() if name in cfg.given}
    changeable = set(CHANGEABLE)
    if given.get("data", own["data"]) != own["data"]:
        changeable |= set(OF_DATA)
    changed: dict[str, Any] = {}
    ignored = []
    for name, value in sorted(given.items()):
        if value == own[name]:
            continue
        to_be_measured = name == "batch_size" and value == -1
        if name in changeable and not to_be_measured:
            changed[name] = value
        elif name != "project":
            ignored.append(flag(name))

    lines = [
        f"--resume changes {flag(name)} from {_words(own[name])} to {_words(value)}"
        for name, value in changed.items()
    ]
    if ignored:
        lines.append(
            "--resume keeps the run's own settings; these flags have no effect: "
            f"{', '.join(sorted(ignored))}"
        )

    with refuse_damaged(cfg.resume):
        values = own | changed
        for name in LISTS:
            values[name] = tuple(values[name])
        new = replace(TrainConfig(**values), given=cfg.given)
        stopping = EarlyStopping(new.stopping_patience)
        stopping.load_state_dict(saved.best)
        stopped = stopping.should_stop()
    _refuse_if_done(new, saved.epoch, stopped=stopped)
    return new, lines


def _words(value: object) -> str:
    """Return the value of a flag as it is typed, "none" for an empty list."""
    return (" ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _refuse_if_done(cfg: TrainConfig, trained: int, *, stopped: bool) -> None:
    """Raise ValueError if nothing is left to train.

    trained: epochs. stopped: whether the run stopped early.
    """
    if trained > cfg.epochs:
        raise ValueError(
            f"{cfg.resume}: --epochs {cfg.epochs}, but the run has trained "
            f"{counted(trained, 'epoch')}"
        )
    ended = stopped or trained == cfg.epochs
    if ended and is_done(run_folder(cfg.resume)):
        raise ValueError(
            f"{cfg.resume}: its run is done after {counted(trained, 'epoch')}; "
            "to continue it, raise --epochs or, if it stopped early, --patience above "
            f"{cfg.patience}"
        )


def batch_after_resize(batch: int, *, first: int, end: int, before: int, now: int) -> int:
    """Return how many batches of an epoch are trained after the batch size changes within it.

    Epochs are consecutive parts of one stream of samples. Samples that do not fill a batch of the
    new size are trained again. The result is at most the batches of the epoch, since there may be
    fewer images than before.

    Args:
        batch: how many batches of the old size are trained.
        first: the number of samples in all epochs before.
        end: that with this epoch.
        before: the old batch size.
        now: the new batch size.

    >>> batch_after_resize(3, first=0, end=100, before=16, now=8)
    6
    >>> batch_after_resize(3, first=100, end=200, before=16, now=10)
    4
    """
    first_batch = first // now
    batches_of_epoch = end // now - first_batch

    trained = batch
    if before != now:
        samples = (first // before + batch) * before
        trained = max(samples // now - first_batch, 0)
    return min(trained, batches_of_epoch)
