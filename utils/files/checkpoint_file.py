"""Checkpoint files: tensors and plain values only, written atomically, executing nothing."""

import hashlib
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from utils.files.atomic import atomic_write
from utils.files.folders import newest_first
from utils.files.pickled import read_plain
from utils.files.stand_ins import require_no_stand_in
from utils.printable import one_line

# dtypes with an equivalent in Python: booleans, integers, floats and text
NUMPY_CODES = "?bBhHiIlLqQefdU"


def to_plain(value: Any) -> Any:
    """Convert `value` to tensors on the CPU, numbers, strings, bytes, None, dicts and lists.

    Raises TypeError for anything else.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.char in NUMPY_CODES:
        return value.tolist()
    if isinstance(value, dict):
        return {to_plain(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if value is None or type(value) in (bool, bytes):
        return value
    for kind in (int, float, str):  # subclasses too, such as torch's version string
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path` atomically: it is always the whole old or the whole new checkpoint.

    Raises TypeError if `state` contains anything that `to_plain` refuses, OSError if the disk is
    full, and FaultError if the folder no longer exists; the old checkpoint then stays.
    """
    values = to_plain(state)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        _write(values, file)
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(path.parent)


def _write(values: Any, file: BinaryIO) -> None:
    """Call torch.save, and raise the full disk or Ctrl-C that its RuntimeError hides."""
    try:
        torch.save(values, file)
    except RuntimeError as error:
        if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
            raise error.__context__ from None
        raise


def _flush_folder(folder: Path) -> None:
    """fsync a folder, so that a renamed file survives a power failure.

    Only POSIX can open folders.
    """
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems do not support it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path) -> dict[str, Any]:
    """Return the state saved in a checkpoint, with tensors on the CPU.

    Raises ValueError if the file does not exist, is damaged, holds anything but tensors and plain
    values, or is not a checkpoint of Kestrel.
    """
    require_no_stand_in(path, str(path))
    try:
        state = read_plain(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as a checkpoint: {error.strerror}") from error
    except Exception as error:  # a foreign or damaged file can cause errors of nearly any type
        raise ValueError(
            f"{path}: is not a checkpoint of Kestrel, or is damaged ({one_line(error)})"
        ) from error
    if not isinstance(state, dict) or not {"model", "table", "names"} <= state.keys():
        raise ValueError(
            f"{path}: is not a checkpoint of Kestrel (model, table or names are missing)"
        )
    return state


def epoch_of(state: Mapping[str, Any]) -> int:
    """Return the epoch of a checkpoint's entries, counted from 1; 0 if they do not say it.

    >>> epoch_of({"epoch": 3}), epoch_of({}), epoch_of({"epoch": ["3"]})
    (3, 0, 0)
    """
    epoch = state.get("epoch")
    return epoch if type(epoch) is int else 0


def digest_of_checkpoint(path: Path) -> str:
    """Return text that differs between checkpoints of different contents.

    It is made from the checksums that the file stores, without reading the tensors.
    """
    with zipfile.ZipFile(path) as archive:
        checksums = [(entry.filename.partition("/")[2], entry.CRC) for entry in archive.infolist()]
    entries = sorted(checksums)
    return hashlib.sha256(repr(entries).encode()).hexdigest()


def newest(folder: Path, pattern: str) -> Path:
    """Return the newest file in `folder` that matches `pattern`; ValueError if none does."""
    files = newest_first(folder, pattern)
    if not files:
        name = pattern.removeprefix("**/")
        raise ValueError(f"there is no {name} under {folder}: train first, or name a checkpoint")
    return files[0]
