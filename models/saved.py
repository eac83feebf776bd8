"""Detectors from checkpoints, and weights carried from one detector to another."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.detector import Detector
from utils import checkpoint


def load_detector(path: Path) -> tuple[Detector, dict[str, Any]]:
    """The detector of a checkpoint, with its averaged weights, and all else that the checkpoint holds.

    Raises ValueError if the file is no checkpoint of Kestrel or its weights do not fit its table.
    """
    saved = checkpoint.load(path)
    try:
        model = Detector(saved["table"])
        model.load_state_dict(saved["ema"] if "ema" in saved else saved["model"])
    except (ValueError, RuntimeError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path}: its weights do not fit its table ({str(error).splitlines()[0]})") from error
    names = saved["names"]
    if not isinstance(names, list) or len(names) != model.num_classes or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{path}: its names are not the names of the {model.num_classes} classes that its table has")
    return model, saved


def digest(model: nn.Module) -> str:
    """A word that tells whether two machines have loaded the same weights."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:8]


def transfer(model: nn.Module, state: dict[str, Tensor]) -> tuple[int, int]:
    """Copy every entry of `state` that `model` has under the same name and shape: (entries copied, entries wanted).

    Anchors are not wanted: the model's own were chosen for the data at hand.
    """
    wanted = {key: value for key, value in model.state_dict().items() if not key.endswith("anchors_px")}
    fitting = {k: v for k, v in state.items() if k in wanted and v.shape == wanted[k].shape}
    model.load_state_dict(fitting, strict=False)
    return len(fitting), len(wanted)
