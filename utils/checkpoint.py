"""Checkpoints: tensors and plain values only, written whole and atomically, read without running anything."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch


def plain(value: Any) -> Any:
    """`value` in tensors, numbers, strings, None, dicts and lists alone; tensors on the CPU.

    Raises TypeError for anything else.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    for kind in (int, float, str):  # subclasses, such as torch's version string
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` so that at every instant `path` holds the old or the new checkpoint, whole."""
    temporary = path.with_name(f"{path.name}.tmp.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(plain(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> dict[str, Any]:
    """The checkpoint's state, on the CPU.

    Raises ValueError if there is no such file, or if it holds anything but tensors and plain values.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such checkpoint") from error
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path}: is not a checkpoint of Kestrel ({reason[:200]})") from error
    if not isinstance(state, dict) or not {"model", "table", "names"} <= state.keys():
        raise ValueError(f"{path}: is not a checkpoint of Kestrel (no model, table and names in it)")
    return state


def newest(folder: Path, pattern: str) -> Path:
    """The file most lately written among those that match. Raises ValueError if none does."""
    found = sorted(folder.glob(pattern), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ValueError(f"no {pattern} under {folder}: train first, or name a checkpoint")
    return found[-1]
