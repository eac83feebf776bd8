"""The entries of a checkpoint, declared once, and checked one by one when it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from torch import Tensor

from utils.files import checkpoint_file
from utils.printable import one_line

# Raise it with every change of an entry's meaning, settings included, and have `upgraded` read the
# format before. tests/training/checkpoints/test_contents.py fails if the entries or settings
# change and this does not.
FORMAT = 6
OLDEST = 3  # the oldest format that can be read


@dataclass(frozen=True)
class Description:
    """The entries of a checkpoint that are the same during the whole run."""

    table: dict[str, Any]  # the model table, resolved
    names: list[str]  # of the classes
    data: str  # path of the data YAML
    images: str  # digest of the training images' labels
    config: dict[str, Any]
    hyp: dict[str, float]
    versions: dict[str, str]


@dataclass(frozen=True)
class PendingEpoch:
    """An epoch that is trained and whose validation is not finished: values for its row of
    results.csv.
    """

    time: float  # seconds
    losses: dict[str, float]
    lr: float
    pace: str


@dataclass(frozen=True)
class Checkpoint:
    """last.pt: all that a run needs to resume after any optimizer step. Tensors and plain values
    only.

    best.pt contains the Description, `epoch`, `metrics`, `results` and, as `model`, the averaged
    weights.
    """

    description: Description
    # of RunProgress
    epoch: int  # number of trained epochs
    batch: int  # number of trained batches of the next epoch
    seconds: float  # that the next epoch has taken so far
    losses: Tensor  # [processes, terms + 1] sums over the next epoch so far, and number of batches
    best: dict[str, Any]  # EarlyStopping
    metrics: dict[str, Any]  # of the last validation
    results: list[dict[str, float]]  # rows of results.csv
    open: dict[str, Any]  # a PendingEpoch, or empty
    # of TrainState
    model: dict[str, Tensor]
    ema: dict[str, Tensor]
    ema_updates: int
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    steps: dict[str, Any]  # NonFiniteGuard
    statistics: Tensor  # [processes, numbers] BatchNorm's running statistics of model and average
    random: dict[str, Tensor]
    format: int = FORMAT

    def as_dict(self) -> dict[str, Any]:
        """The entries of the file: those of the description and the others in one dict."""
        own = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "description"
        }
        return vars(self.description) | own

    @property
    def pending(self) -> PendingEpoch | None:
        """The epoch whose validation was not finished; None if there is none."""
        return PendingEpoch(**self.open) if self.open else None


def kinds_of(record: type) -> dict[str, type]:
    """The type of each field of a dataclass, without the types inside of dicts and lists.

    >>> kinds_of(PendingEpoch)
    {'time': <class 'float'>, 'losses': <class 'dict'>, 'lr': <class 'float'>,
    'pace': <class 'str'>}
    """
    return {name: get_origin(hint) or hint for name, hint in get_type_hints(record).items()}


ENTRIES = {
    name: kind
    for name, kind in (kinds_of(Description) | kinds_of(Checkpoint)).items()
    if name != "description"
}


def read_checkpoint(path: str) -> Checkpoint:
    """Read a checkpoint file, with its tensors on the CPU.

    Raises ValueError if the file is missing, damaged, was written by another version, or contains
    no training state.
    """
    return checked_checkpoint(path, checkpoint_file.load(Path(path)))


def checked_checkpoint(path: str, saved: dict[str, Any]) -> Checkpoint:
    """The checkpoint with the entries of a file. Raises ValueError as `read_checkpoint` does."""
    if "optimizer" not in saved:
        raise ValueError(
            f"{path}: contains no training state to resume; fine-tune from it with --weights"
        )
    found = saved.get("format")
    if type(found) is not int or not OLDEST <= found <= FORMAT:
        raise ValueError(f"{path}: {written_by_another_version(found)}")
    with refuse_damaged(path):
        saved = upgraded(saved)
        for name, kind in ENTRIES.items():
            if type(saved.get(name)) is not kind:
                raise ValueError(
                    f"{name} is a {type(saved.get(name)).__name__}, expected a {kind.__name__}"
                )
        _check_progress(saved)
        if not all(
            tensor.isfinite().all() for tensor in tensors_of(saved) if tensor.is_floating_point()
        ):
            raise ValueError("not all of its numbers are finite")
        description = Description(
            **{field.name: saved[field.name] for field in fields(Description)}
        )
        own = {
            field.name: saved[field.name]
            for field in fields(Checkpoint)
            if field.name != "description"
        }
        return Checkpoint(description, **own)


def upgraded(saved: dict[str, Any]) -> dict[str, Any]:
    """Convert the entries of an older format to this format.

    In format 3, `compile` was "" where it is "off" now. Before format 5 there were no tiles, and
    before format 6 64 images per optimizer step, which are the defaults.
    """
    if saved["format"] == 3:
        config = saved["config"]
        compiled = {"compile": "off"} if config.get("compile") == "" else {}
        saved = saved | {"config": config | compiled}
    return saved | {"format": FORMAT}


def written_by_another_version(found: object) -> str:
    """The error message for a checkpoint whose format cannot be read."""
    stated = f"format {found}" if type(found) is int else "no format number"
    return (
        f"written by another version of Kestrel ({stated}; this one reads {OLDEST} to {FORMAT}): "
        "resume it with the "
        "version that wrote it, or start a new run from its weights with --weights"
    )


def _check_progress(saved: dict[str, Any]) -> None:
    """Raises ValueError for counts that contradict each other."""
    pending = saved["open"]
    kinds = {name: type(value) for name, value in pending.items()}
    if pending and (kinds != kinds_of(PendingEpoch) or saved["batch"]):
        raise ValueError("the entries of its pending epoch are incomplete")
    if (
        not 0 <= saved["epoch"] == len(saved["results"]) + bool(pending)
        or not 0 <= saved["batch"] < 1 << 40
    ):
        counts = (
            f"epochs {saved['epoch']}, batches {saved['batch']}, rows of results "
            f"{len(saved['results'])}"
        )
        raise ValueError(f"its counts contradict each other: {counts}")
    if len({tuple(row) for row in saved["results"]}) > 1:
        raise ValueError("its rows of results have different columns")


@contextmanager
def refuse_damaged(path: str) -> Iterator[None]:
    """Raise ValueError for any error in the block, which uses the entries of a checkpoint: they may
    be anything.
    """
    try:
        yield
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise ValueError(
            f"{path}: is damaged, or was written by another program ({one_line(error)})"
        ) from error


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        yield value
    for entry in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from tensors_of(entry)
