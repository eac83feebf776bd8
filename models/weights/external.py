"""What the readers of other projects' checkpoints share: errors, tensors as a state, the model."""

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.build import mismatched_tensors
from models.detector import Detector
from utils.files.pickled import TensorReader, mapping_entries, open_saved
from utils.printable import excerpt, one_line

MAX_TENSORS = 5_000
# What building a model raises for a table or tensors that do not fit, of whatever type they are.
WRONG_CONTENT = (
    ValueError,
    RuntimeError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
)


@contextmanager
def external_errors(path: Path) -> Iterator[None]:
    """Raise ValueError with the path, and the reason if known, for any error of reading a file."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as a checkpoint: {error.strerror}") from error
    except Exception as error:  # a damaged file can make its readers raise nearly anything
        reason = "it is damaged"
        if isinstance(error, ValueError | zipfile.BadZipFile):
            reason = one_line(error)
        raise ValueError(
            f"{path}: is not a checkpoint that can be read without running it ({reason})"
        ) from error


@contextmanager
def conversion_errors(path: Path) -> Iterator[None]:
    """Raise ValueError with the path and the reason for errors of building a model from a file."""
    try:
        yield
    except WRONG_CONTENT as error:
        raise ValueError(f"{path}: its model cannot be converted ({one_line(error)})") from error


def read_state(named: Iterable[tuple[Any, Any]], reader: TensorReader) -> dict[str, Tensor]:
    """Return tensors by their names, floats as float32, contiguous.

    named: names and records; None is left out.

    Raises ValueError for too many tensors, a name that is not text, no values, values that are not
    finite, or a negative variance.
    """
    state: dict[str, Tensor] = {}
    for count, (key, value) in enumerate(named):
        if count == MAX_TENSORS:
            raise ValueError(f"it has more than {MAX_TENSORS} tensors")
        if value is None:
            continue

        tensor = reader.tensor(value)
        # its other sides cost nothing in the file, but could ask for any amount of memory
        if not tensor.numel():
            raise ValueError(f"{excerpt(str(key))} has no values")
        if not isinstance(key, str):
            raise ValueError(f"the name {excerpt(str(key))} of a tensor is not text")

        dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
        values = tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)
        if not values.isfinite().all():
            raise ValueError(f"{excerpt(key)} has values that are not finite")
        if key.endswith("running_var") and (values < 0).any():
            raise ValueError(f"{excerpt(key)} has negative values")
        state[key] = values
    return state


def unpickled_or_none(path: Path) -> Any:
    """Return what a file holds, as data; None if it cannot be read: its reader says why."""
    try:
        with open_saved(path) as saved:
            return saved.unpickled()
    except Exception:  # a damaged file can raise nearly anything
        return None


def state_entries(loaded: Any, key: str) -> dict[Any, Any]:
    """Return the records of the state in a checkpoint, or of a file that is a state.

    Their names are without the prefix of DDP. key: of the state in a checkpoint. Raises ValueError
    if there is no mapping.
    """
    outer = mapping_entries(loaded)
    return without_ddp(mapping_entries(outer.get(key, loaded)))


def without_ddp(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a state without the prefix of DDP before its names."""
    entries = {}
    for name, value in state.items():
        bare_name = name.removeprefix("module.") if isinstance(name, str) else name
        entries[bare_name] = value
    return entries


def out_channels(state: Mapping[str, Tensor], key: str) -> int:
    """Return the output channels of a convolution. Raises ValueError if it is missing."""
    weight = state.get(key)
    if weight is None or weight.ndim != 4:
        raise ValueError(f"it has no convolution {key}")
    return weight.shape[0]


def fill_model(model: Detector, state: Mapping[str, Tensor], fitting: str) -> None:
    """Give a model on the meta device its tensors, named as in its state dict.

    Memory is needed only for tensors that are known to fit. fitting: what they have to fit, in
    words. Raises ValueError if names, shapes or types differ.
    """
    unfit = mismatched_tensors(model, state)
    if unfit:
        raise ValueError(f"{len(unfit)} of its tensors do not fit {fitting}, such as {unfit[0]}")
    model.load_state_dict(state, assign=True)
