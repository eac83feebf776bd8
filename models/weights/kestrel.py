"""Detectors from checkpoints that this project wrote; those of other projects are passed on to their own readers."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.detector import Detector, check_shapes, misfits
from models.weights.yolov5 import is_foreign, load_foreign
from utils.files import checkpoint_file
from utils.printable import one_line

WHERE_WEIGHTS_COME_FROM = (
    "Weights come from a training run (runs/train/exp/weights/best.pt), or are a file that you have downloaded, for "
    "example from YOLOv5's releases: nothing is downloaded unasked"
)


def load_detector(path: Path) -> tuple[Detector, dict[str, Any]]:
    """The detector of a checkpoint, with its averaged weights, and all else that the checkpoint holds.

    Of another project's checkpoint that is the names of the classes. Raises ValueError if the file does not exist, is
    no checkpoint, or holds weights that do not fit its table.
    """
    if not path.exists():
        raise ValueError(f"{path}: cannot be read as a checkpoint: No such file. {WHERE_WEIGHTS_COME_FROM}")
    try:
        saved = checkpoint_file.load(path)
    except ValueError:
        if not is_foreign(path):
            raise
        model, theirs = load_foreign(path)
        return model, {"names": theirs}
    model = detector_from_state(path, saved["table"], saved["ema"] if "ema" in saved else saved["model"])
    names = saved["names"]
    if not isinstance(names, list) or len(names) != model.num_classes or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{path}: its names are not the names of the {model.num_classes} classes that its table has")
    return model, saved


def detector_from_state(path: Path, table: Any, state: Any) -> Detector:
    """The detector of a checkpoint's table with a state of it. Raises ValueError if they do not fit.

    Nothing is allocated for the model before its shapes are found to be those of the state.
    """
    try:
        if unfit := misfits(check_shapes(table), state):
            raise ValueError(f"{len(unfit)} of its tensors, such as {unfit[0]}")
        model = Detector(table)
        model.load_state_dict(state)
    except (ValueError, RuntimeError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{path}: its weights do not fit its table ({one_line(error)})") from error
    return model


def digest(model: nn.Module) -> str:
    """A word that tells whether two machines have loaded the same weights."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:8]
