"""Resuming a run: from which checkpoint, with whose settings, and where in the epoch."""

import os
from dataclasses import replace
from pathlib import Path

from utils.files import checkpoint_file
from utils.printable import excerpt
from utils.training.checkpoints.contents import Checkpoint, refuse_damaged
from utils.training.config import TrainConfig
from utils.training.early_stopping import EarlyStopping

# Flags that may change when a run is resumed. The others are the run's own.
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
    "cache",
    "compile",
    "cache_dir",
)


def find_last(given: str, project: Path) -> str:
    """The checkpoint that --resume names: a file, the last one of a run's folder, or "newest", of all runs.

    Raises ValueError if there is none.
    """
    if given == "newest":
        return str(checkpoint_file.newest(project, "**/weights/last.pt"))
    last = Path(given, "weights", "last.pt")
    if Path(given).is_dir() and not last.exists():
        raise ValueError(f"--resume {given}: there is no weights/last.pt in it; its run has saved nothing yet")
    return str(last) if Path(given).is_dir() else given


def run_folder(last: str) -> Path:
    """The folder of the run that a checkpoint belongs to.

    Raises ValueError if the checkpoint does not lie in a run's weights folder.
    """
    weights = Path(os.path.abspath(last)).parent
    if weights.name != "weights":
        raise ValueError(f"{last}: --resume continues in the run's own folder, RUN/weights/last.pt; it lies elsewhere")
    return weights.parent


def resumed_config(cfg: TrainConfig, saved: Checkpoint) -> tuple[TrainConfig, list[str]]:
    """The settings to resume with: the run's own, but for what the command line gives and may change; and what to log.

    Raises ValueError if the run cannot be resumed with them, or is done.
    """
    described = saved.description
    unknown = ", ".join(sorted(map(str, described.config.keys() - TrainConfig().as_dict().keys())))
    if unknown:
        raise ValueError(f"{cfg.resume}: its settings ({excerpt(unknown)}) are unknown to this version of Kestrel")
    own = TrainConfig().as_dict() | described.config | {"resume": cfg.resume, "data": described.data}
    own["download"] = cfg.download  # a checkpoint asks for no download
    other = {name: value for name, value in cfg.as_dict().items() if name in cfg.given and value != own[name]}
    changed = {name: value for name, value in other.items() if name in CHANGEABLE}
    if changed.get("batch_size") == -1:
        del changed["batch_size"]
    lines = [f"--resume changes {_flag(name)} from {own[name]} to {value}" for name, value in sorted(changed.items())]
    if ignored := sorted(_flag(name) for name in other.keys() - changed.keys() - {"resume", "project"}):
        lines.append(f"--resume keeps the run's own settings; of no effect: {', '.join(ignored)}")
    with refuse_damaged(cfg.resume):
        values = own | changed
        new = replace(TrainConfig(**values | {"freeze": tuple(values["freeze"])}), given=cfg.given)
        stopping = EarlyStopping(new.learning()["patience"])
        stopping.load_state_dict(saved.best)
        stopped = stopping.should_stop()
    _refuse_if_done(new, saved.epoch, stopped=stopped)
    return new, lines


def _refuse_if_done(cfg: TrainConfig, trained: int, *, stopped: bool) -> None:
    """Raises ValueError if nothing is left to do. stopped: whether the run was stopped early."""
    if trained > cfg.epochs:
        raise ValueError(f"{cfg.resume}: --epochs {cfg.epochs}, but {trained} epochs are trained")
    if (stopped or trained == cfg.epochs) and (run_folder(cfg.resume) / "metrics.json").exists():
        raise ValueError(
            f"{cfg.resume}: its run is done after {trained} epochs; "
            f"--epochs above that makes it longer, --patience above {cfg.patience} stops it later"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def batch_after_resize(batch: int, *, epoch: int, images: int, before: int, now: int) -> int:
    """How many batches of an epoch are trained in a run whose batch size changes from `before` to `now` within it.

    Epochs are cut from one stream of samples. What does not fill a batch of the new size is trained again. No more than
    the epoch holds: there may be fewer images than there were.

    >>> batch_after_resize(3, epoch=0, images=100, before=16, now=8)
    6
    >>> batch_after_resize(3, epoch=1, images=100, before=16, now=10)
    4
    """
    first, last = epoch * images // now, (epoch + 1) * images // now
    places = (epoch * images // before + batch) * before
    return min(batch if before == now else max(places // now - first, 0), last - first)
