"""Detectors from checkpoints, and weights carried from one detector to another."""

from pathlib import Path
from typing import Any

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
        model.load_state_dict(saved.get("ema", saved["model"]))
    except (RuntimeError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: its weights do not fit its table ({str(error).splitlines()[0]})") from error
    return model, saved


def transfer(model: nn.Module, state: dict[str, Tensor]) -> tuple[int, int]:
    """Copy every entry of `state` that `model` has under the same name and shape: (entries copied, entries it has).

    Anchors stay the model's own: they were chosen for the data at hand.
    """
    own = model.state_dict()
    fitting = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape and not k.endswith("anchors_px")}
    model.load_state_dict(fitting, strict=False)
    return len(fitting), len(own)
