"""The entries of a checkpoint, declared once, and checked one by one when it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from torch import Tensor

from utils.files import checkpoint_file
from utils.printable import one_line

# The number of this format. Nothing has been released: from the first release on, it rises with
# every change of an entry's meaning, settings included, and older formats are converted and read.
# tests/training/checkpoints/test_contents.py fails if the entries or settings change and this does
# not.
FORMAT = 3
# What formats do not have that came before: entries that were added after each of them.
ADDED: dict[int, dict[str, Any]] = {
    1: {"recorded": 0},
    2: {"draws": "", "class_weights_file": ""},
}
MAX_BATCHES = 1 << 40  # of an epoch; larger numbers are damage


@dataclass(frozen=True)
class Description:
    """The entries of a checkpoint that are the same during the whole run."""

    table: dict[str, Any]  # the model table, resolved
    names: list[str]  # of the classes
    data: str  # path of the data YAML
    images: str  # digest of the training images' labels
    draws: str  # digest of how often an epoch draws each; "" in checkpoints of older formats
    class_weights_file: str  # of --class-weights, "" if it names none
    config: dict[str, Any]
    hyp: dict[str, float]
    versions: dict[str, str]


@dataclass(frozen=True)
class PendingEpoch:
    """An epoch that is trained, but not yet validated: values for its row of results.csv."""

    time: float  # seconds
    losses: dict[str, float]
    lr: float
    pace: str


@dataclass(frozen=True)
class Checkpoint:
    """last.pt: all that a run needs to resume after any optimizer step.

    It holds tensors and plain values only. best.pt contains the Description, `epoch`, `metrics`,
    `results` and, as `model`, the averaged weights.
    """

    description: Description

    # of RunProgress
    epoch: int  # number of trained epochs
    batch: int  # number of trained batches of the next epoch
    seconds: float  # how long the next epoch has taken so far
    losses: Tensor  # [processes, terms + 1] sums over the next epoch so far, and number of batches
    best: dict[str, Any]  # EarlyStopping
    metrics: dict[str, Any]  # of the last validation
    results: list[dict[str, float]]  # rows of results.csv
    pending: dict[str, Any]  # a PendingEpoch, or empty
    recorded: int  # records of the loggers' journal so far

    # of TrainState
    model: dict[str, Tensor]
    ema: dict[str, Tensor]
    ema_updates: int
    optimizer: dict[str, Any]
    scaler: dict[str, Any]
    guard: dict[str, Any]  # NonFiniteGuard
    statistics: Tensor  # [processes, numbers] BatchNorm's running statistics of model and average
    random: dict[str, Tensor]

    format: int = FORMAT

    def as_dict(self) -> dict[str, Any]:
        """Return the entries of the file: those of the description and the others in one dict."""
        own = {name: getattr(self, name) for name in OWN_ENTRIES}
        return vars(self.description) | own

    def pending_epoch(self) -> PendingEpoch | None:
        """Return the epoch whose validation was not finished; None if there is none."""
        return PendingEpoch(**self.pending) if self.pending else None


def kinds_of(record: type) -> dict[str, type]:
    """Return the type of each field of a dataclass, without the types inside of dicts and lists.

    >>> kinds_of(PendingEpoch)
    {'time': <class 'float'>, 'losses': <class 'dict'>, 'lr': <class 'float'>,
    'pace': <class 'str'>}
    """
    return {name: get_origin(hint) or hint for name, hint in get_type_hints(record).items()}


DESCRIPTION_ENTRIES = [field.name for field in fields(Description)]
OWN_ENTRIES = [field.name for field in fields(Checkpoint) if field.name != "description"]
_KINDS = kinds_of(Description) | kinds_of(Checkpoint)
ENTRIES = {name: _KINDS[name] for name in [*DESCRIPTION_ENTRIES, *OWN_ENTRIES]}


def read_checkpoint(path: str) -> Checkpoint:
    """Return the checkpoint in a file, with its tensors on the CPU.

    Raises ValueError if the file is missing, damaged, was written by another version, or contains
    no training state.
    """
    return checked_checkpoint(path, checkpoint_file.load(Path(path)))


def checked_checkpoint(path: str, saved: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint with the entries of a file.

    Raises ValueError as `read_checkpoint` does.
    """
    if "optimizer" not in saved:
        raise ValueError(
            f"{path}: contains no training state to resume; fine-tune from it with --weights"
        )
    file_format = saved.get("format")
    if type(file_format) is int and file_format in ADDED:
        saved = {**saved, "format": FORMAT}
        for older, entries in ADDED.items():
            if file_format <= older:
                saved |= entries
        file_format = FORMAT
    if type(file_format) is not int or file_format != FORMAT:
        raise ValueError(f"{path}: {written_by_another_version(file_format)}")

    with refuse_damaged(path):
        for name, kind in ENTRIES.items():
            entry = saved.get(name)
            if type(entry) is not kind:
                raise ValueError(f"{name} is a {type(entry).__name__}, expected a {kind.__name__}")
        _check_progress(saved)
        for tensor in tensors_of(saved):
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise ValueError("not all of its numbers are finite")

        description = Description(**{name: saved[name] for name in DESCRIPTION_ENTRIES})
        return Checkpoint(description, **{name: saved[name] for name in OWN_ENTRIES})


def written_by_another_version(file_format: object) -> str:
    """Return the error message for a checkpoint whose format cannot be read."""
    stated = f"format {file_format}" if type(file_format) is int else "no format number"
    return (
        f"written by another version of Kestrel ({stated}; this one reads {FORMAT}): resume it "
        "with the version that wrote it, or start a new run from its weights with --weights"
    )


def _check_progress(saved: dict[str, Any]) -> None:
    """Raise ValueError for counts that contradict each other."""
    pending = saved["pending"]
    if pending:
        kinds = {name: type(value) for name, value in pending.items()}
        if kinds != kinds_of(PendingEpoch) or saved["batch"]:
            raise ValueError("the entries of its pending epoch are incomplete")

    epoch = saved["epoch"]
    batch = saved["batch"]
    rows = len(saved["results"])
    epochs_agree = epoch >= 0 and epoch == rows + bool(pending)
    if saved["recorded"] < 0:
        raise ValueError(f"it covers {saved['recorded']} records")
    if not epochs_agree or not 0 <= batch < MAX_BATCHES:
        counts = f"epochs {epoch}, batches {batch}, rows of results {rows}"
        raise ValueError(f"its counts contradict each other: {counts}")

    columns = {tuple(row) for row in saved["results"]}
    if len(columns) > 1:
        raise ValueError("its rows of results have different columns")


@contextmanager
def refuse_damaged(path: str) -> Iterator[None]:
    """Raise ValueError for any error in the block, which uses the entries of a checkpoint.

    In a damaged file they may have any type and value, so that any of these errors may come.
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
    """Yield all tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from tensors_of(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from tensors_of(entry)
