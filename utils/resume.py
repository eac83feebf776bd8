"""Going on with a run: whose settings hold, and where in the epoch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from utils import checkpoint
from utils.config import TrainConfig
from utils.plateau import Plateau
from utils.printable import excerpt, one_line
from utils.run_state import FORMAT

# Flags that may change when a run goes on. The others are the run's own.
MAY_CHANGE = (
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
# What a checkpoint must hold, and of which kind.
STATE: dict[str, type] = {
    **dict.fromkeys(("data", "images"), str),
    **dict.fromkeys(("names", "results"), list),
    **dict.fromkeys(("table", "config", "hyp", "best", "metrics", "model", "ema", "optimizer", "scaler"), dict),
    **dict.fromkeys(("steps", "random", "open"), dict),
    **dict.fromkeys(("epoch", "batch", "ema_updates"), int),
    **dict.fromkeys(("losses", "statistics"), Tensor),
    "seconds": float,
}
# What `open` holds, where the last epoch's validation was not taken in yet.
OPEN: dict[str, type] = {"time": float, "losses": dict, "lr": float, "pace": str}


def find_last(given: str, project: Path) -> str:
    """The checkpoint that --resume names: a file, the last one of a run's folder, or "newest", of all runs.

    Raises ValueError if there is none.
    """
    if given == "newest":
        return str(checkpoint.newest(project, "**/weights/last.pt"))
    last = Path(given, "weights", "last.pt")
    if Path(given).is_dir() and not last.exists():
        raise ValueError(f"--resume {given}: there is no weights/last.pt in it; its run has not come so far")
    return str(last) if Path(given).is_dir() else given


def run_folder(last: str) -> Path:
    """The folder of the run that a checkpoint belongs to.

    Raises ValueError if the checkpoint does not lie in a run's weights folder.
    """
    weights = Path(os.path.abspath(last)).parent
    if weights.name != "weights":
        raise ValueError(f"{last}: --resume goes on in the run's own folder, RUN/weights/last.pt; it lies elsewhere")
    return weights.parent


@contextmanager
def damaged_if_it_fails(path: str) -> Iterator[None]:
    """A block that takes over what a checkpoint holds, which may be anything. Raises ValueError for all that fails."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"{path}: is damaged, or another program has written it ({one_line(error)})") from error


def require_state(path: str, saved: dict[str, Any]) -> None:
    """Raises ValueError unless a checkpoint is of this version and has all that a run goes on with, of its kind."""
    if "optimizer" not in saved:
        raise ValueError(f"{path}: holds no training state to resume; fine-tune from it with --weights")
    if type(saved.get("format")) is not int or saved["format"] != FORMAT:
        raise ValueError(f"{path}: another version of Kestrel has written it; fine-tune from it with --weights")
    with damaged_if_it_fails(path):
        for name, kind in STATE.items():
            if type(saved.get(name)) is not kind:
                raise ValueError(f"{name} is a {type(saved.get(name)).__name__}, expected a {kind.__name__}")
        opened = saved["open"]
        if opened and ({name: type(value) for name, value in opened.items()} != OPEN or saved["batch"]):
            raise ValueError("what it tells of an epoch that was being validated is not whole")
        if not 0 <= saved["epoch"] == len(saved["results"]) + bool(opened) or not 0 <= saved["batch"] < 1 << 40:
            counted = f"{saved['epoch']} epochs, {saved['batch']} batches and {len(saved['results'])} rows of results"
            raise ValueError(f"it tells of {counted}")
        if len({tuple(row) for row in saved["results"]}) > 1:
            raise ValueError("its rows of results have different columns")
        if not all(tensor.isfinite().all() for tensor in tensors_of(saved) if tensor.is_floating_point()):
            raise ValueError("not all of its numbers are finite")


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        yield value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from tensors_of(entry)


def resumed_config(cfg: TrainConfig, saved: dict[str, Any]) -> tuple[TrainConfig, list[str]]:
    """The settings to go on with: the run's own, but for what the command line gives and may change; and what to say.

    Raises ValueError if the checkpoint cannot be gone on with, or its run is done.
    """
    require_state(cfg.resume, saved)
    unknown = ", ".join(sorted(map(str, saved["config"].keys() - TrainConfig().as_dict().keys())))
    if unknown:
        raise ValueError(f"{cfg.resume}: its settings ({excerpt(unknown)}) are unknown to this version of Kestrel")
    own = TrainConfig().as_dict() | saved["config"] | {"resume": cfg.resume, "data": saved["data"]}
    own["download"] = cfg.download  # that of a checkpoint is nobody's wish
    other = {name: value for name, value in cfg.as_dict().items() if name in cfg.given and value != own[name]}
    changed = {name: value for name, value in other.items() if name in MAY_CHANGE}
    if changed.get("batch_size") == -1:
        del changed["batch_size"]
    said = [f"--resume changes {_flag(name)} from {own[name]} to {value}" for name, value in sorted(changed.items())]
    if unheard := sorted(_flag(name) for name in other.keys() - changed.keys() - {"resume", "project"}):
        said.append(f"--resume goes on with the run's own settings; of no effect: {', '.join(unheard)}")
    with damaged_if_it_fails(cfg.resume):
        values = own | changed
        new = replace(TrainConfig(**values | {"freeze": tuple(values["freeze"])}), given=cfg.given)
        plateau = plateau_of(new)
        plateau.load_state_dict(saved["best"])
        over = plateau.over()
    refuse_if_done(new, saved["epoch"], over=over)
    return new, said


def plateau_of(cfg: TrainConfig) -> Plateau:
    """When a run stops early: never, where nothing is validated that could be better."""
    return Plateau(0 if cfg.noval else cfg.patience)


def refuse_if_done(cfg: TrainConfig, behind: int, *, over: bool) -> None:
    """Raises ValueError if nothing is left to do. over: whether the run was stopped early."""
    if behind > cfg.epochs:
        raise ValueError(f"{cfg.resume}: --epochs {cfg.epochs}, but {behind} epochs are behind it")
    if (over or behind == cfg.epochs) and (run_folder(cfg.resume) / "metrics.json").exists():
        raise ValueError(
            f"{cfg.resume}: its run is done after {behind} epochs; "
            f"--epochs above that makes it longer, --patience above {cfg.patience} stops it later"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def moved_batch(batch: int, *, epoch: int, images: int, before: int, now: int) -> int:
    """How many batches of an epoch are behind a run whose batch size changes from `before` to `now` in its midst.

    Epochs are cut from one stream of samples. What does not fill a batch of the new size is trained again. No more than
    the epoch holds: there may be fewer images than there were.

    >>> moved_batch(3, epoch=0, images=100, before=16, now=8), moved_batch(3, epoch=1, images=100, before=16, now=10)
    (6, 4)
    """
    first, last = epoch * images // now, (epoch + 1) * images // now
    places = (epoch * images // before + batch) * before
    return min(batch if before == now else max(places // now - first, 0), last - first)
