"""Checkpoints: tensors and plain values only, written whole and atomically, read without running anything."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from utils.files.atomic import atomic_write
from utils.files.pickled import read_plain
from utils.printable import one_line

NUMPY_CODES = "?bBhHiIlLqQefdU"  # booleans, integers, floats and texts that have an equivalent in Python


def to_plain(value: Any) -> Any:
    """`value` in tensors, numbers, strings, None, dicts and lists alone; tensors on the CPU.

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
    """Write `state` so that at every instant `path` holds the old or the new checkpoint, whole.

    Raises TypeError if something in it is neither a tensor nor plain, OSError if the disk is full, and FaultError if
    the folder no longer exists; the old checkpoint then stays.
    """
    values = to_plain(state)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        _write(values, file)
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(path.parent)


def _write(values: Any, file: BinaryIO) -> None:
    """torch.save, which hides a full disk, and Ctrl-C, behind an error of its own."""
    try:
        torch.save(values, file)
    except RuntimeError as error:
        if isinstance(error.__context__, (OSError, KeyboardInterrupt)):
            raise error.__context__ from None
        raise


def _flush_folder(folder: Path) -> None:
    """Make a file's new name survive a power failure. Only POSIX can open a folder to ask for it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network disks do not support it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: Path) -> dict[str, Any]:
    """The checkpoint's state, on the CPU.

    Raises ValueError if there is no such file, if it is damaged, or if it holds anything but tensors and plain values.
    """
    try:
        state = read_plain(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as a checkpoint: {error.strerror}") from error
    except Exception as error:  # a foreign or damaged file can make an unpickler raise nearly anything
        raise ValueError(f"{path}: is not a checkpoint of Kestrel, or is damaged ({one_line(error)})") from error
    if not isinstance(state, dict) or not {"model", "table", "names"} <= state.keys():
        raise ValueError(f"{path}: is not a checkpoint of Kestrel (no model, table and names in it)")
    return state


def newest(folder: Path, pattern: str) -> Path:
    """The most recently written file among those that match. Raises ValueError if none does."""
    found = list(folder.glob(pattern))
    if not found:
        raise ValueError(f"no {pattern} under {folder}: train first, or name a checkpoint")
    return max(found, key=lambda path: (path.stat().st_mtime_ns, path))
