"""The model that a run starts from: built from a table, given another model's weights, fitted to the boxes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from models import build_model
from models.detector import Detector, count_parameters
from models.weights.kestrel import load_detector
from models.weights.transfer import transfer
from utils.distributed.world import World


def start_model(
    cfg: str,
    weights: str,
    names: Sequence[str],
    *,
    anchors_per_level: int,
    fit: bool,
    box_sizes: Callable[[int], NDArray[np.float64]],
    ratio_limit: float,
    seed: int,
    world: World,
    say: Callable[[str], None],
) -> Detector:
    """The model for classes of these names, its head fitted to the data where it does not reach the boxes.

    cfg: a table, '' for that of the checkpoint, or yolov5n.yaml where there is none. weights: a checkpoint whose
    weights are taken over where they fit, '' for none. anchors_per_level: 0 for the table's own anchors. fit: whether
    the head may be fitted to the boxes; with anchors_per_level it always is. box_sizes: widths and heights of the boxes
    in pixels at the training size, [N, 2], by the model's largest stride, to a multiple of which images are rounded up.
    ratio_limit: factor between the sides of a box and an anchor, below which they match. seed: of the fitting. say: is
    given a sentence on the model, and one on what was fitted.

    Raises ValueError as build_model and load_detector do.
    """
    given, about = load_detector(Path(weights)) if weights else (None, {})
    cfg = cfg or ("" if given else "yolov5n.yaml")
    model = build_model(given.table if given and not cfg else cfg, len(names), anchors=anchors_per_level or None)
    started = "from scratch"
    if given:
        copied, of, known = transfer(model, names, given, about["names"])
        started = f"{copied} of {of} entries from {weights}, which knows {known} of the classes"
    say(f"{cfg or weights}: {count_parameters(model):,} parameters, {len(names)} classes, {started}")
    if fit or anchors_per_level:
        found = model.fit_to_boxes(
            box_sizes(max(model.strides)),
            ratio_limit=ratio_limit,
            seed=seed,
            placeholders=anchors_per_level > 0,
            broadcast=world.broadcast_object,
        )
        if found:
            say(found)
    return model


def place_model(model: Detector, dtype: torch.dtype, world: World) -> None:
    """Bring the model onto this process's device, with rank 0's weights. Raises ValueError if their models differ."""
    model.to(dtype).to(memory_format=torch.channels_last).to(world.device)
    world.require_same("the model", {k: v for k, v in model.table.items() if k not in ("source", "anchors")})
    world.broadcast_([*model.parameters(), *model.buffers()])
