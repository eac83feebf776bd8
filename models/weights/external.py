"""What the readers of other projects' checkpoints share: errors, and tensors as a state."""

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.files.pickled import TensorReader
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
