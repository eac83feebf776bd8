"""Detectors from checkpoints, and weights carried from one detector to another."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from models.detector import Detector, check_shapes, misfits
from models.heads import Detect
from models.weights import is_foreign, load_foreign
from utils import checkpoint
from utils.printable import one_line


def load_detector(path: Path) -> tuple[Detector, dict[str, Any]]:
    """The detector of a checkpoint, with its averaged weights, and all else that the checkpoint holds.

    Of another project's checkpoint that is the names of the classes. Raises ValueError if the file is no checkpoint, or
    its weights do not fit its table.
    """
    try:
        saved = checkpoint.load(path)
    except ValueError:
        if not is_foreign(path):
            raise
        model, theirs = load_foreign(path)
        return model, {"names": theirs}
    model = fitting_detector(path, saved["table"], saved["ema"] if "ema" in saved else saved["model"])
    names = saved["names"]
    if not isinstance(names, list) or len(names) != model.num_classes or not all(isinstance(n, str) for n in names):
        raise ValueError(f"{path}: its names are not the names of the {model.num_classes} classes that its table has")
    return model, saved


def fitting_detector(path: Path, table: Any, state: Any) -> Detector:
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


def transfer(
    model: Detector, names: Sequence[str], given: Detector, given_names: Sequence[str]
) -> tuple[int, int, int]:
    """Copy every entry of `given` that `model` has under the same name and shape: (entries copied, entries wanted,
    classes found).

    Of the last layer the outputs of box and objectness are copied, and those of the classes that both know by name.
    Anchors are not wanted: the model's own were chosen for the data at hand.
    """
    wanted = {key: value for key, value in model.state_dict().items() if not key.endswith("anchors_px")}
    last = [key for key in wanted if key.startswith(f"layers.{len(model.layers) - 1}.")]
    state = given.state_dict()
    fitting = {k: v for k, v in state.items() if k not in last and k in wanted and v.shape == wanted[k].shape}
    model.load_state_dict(fitting, strict=False)
    found = [(own, given_names.index(name)) for own, name in enumerate(names) if name in given_names]
    outputs = [(row, row) for row in range(5)] + [(5 + own, 5 + theirs) for own, theirs in found]
    rows, their_rows = zip(*outputs, strict=True)
    copied = 0
    for key in last:
        if key in state and _alike(model.head, wanted[key], given.head, state[key]):
            model.head.by_output(wanted[key])[:, rows] = given.head.by_output(state[key])[:, their_rows]
            copied += 1
    return len(fitting) + copied, len(wanted), len(found) if copied else 0


def _alike(head: Detect, values: Tensor, other: Detect, others: Tensor) -> bool:
    """Whether two heads' weights or biases differ in their classes at most."""
    anchors = head.anchors_px.shape[1], other.anchors_px.shape[1]
    return anchors[0] == anchors[1] and values.shape[1:] == others.shape[1:]


@torch.no_grad()
def reorder_classes(model: Detector, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Put the classes of a model, `names`, in the order of `wanted`. Raises ValueError unless both hold the same."""
    if list(names) == list(wanted):
        return
    if sorted(names) != sorted(wanted) or len(set(names)) < len(names):
        raise ValueError(f"the classes are {listed(names)}, wanted are {listed(wanted)}")
    rows = [*range(5), *(5 + list(names).index(name) for name in wanted)]
    for convolution in model.head.m:
        for values in convolution.parameters():
            outputs = model.head.by_output(values)
            outputs.copy_(outputs[:, rows].clone())


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names in words.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
