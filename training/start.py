"""The model at the start of a run: built from a table, with weights from a checkpoint, its head
fitted to the boxes.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models import build_model
from models.detector import Detector, check_shapes, count_parameters
from models.table import load_model_table, resolve
from models.weights.kestrel import load_detector
from models.weights.pretrained import fetch_weights, source_of_missing
from models.weights.transfer import transfer
from training.settings.recipe import TrainedWeights
from utils.distributed.world import World
from utils.printable import counted, printable


def check_model(cfg: str, weights: str, *, download: bool) -> None:
    """Raise ValueError if the model or the checkpoint cannot be used, before time is spent on the
    data set.

    cfg, weights, download: as for `start_model`; missing weights that it would fetch are not
    checked.
    """
    if Path(cfg).suffix in (".pt", ".pth"):
        raise ValueError(
            f"--cfg {printable(cfg)}: give a checkpoint with --weights, and a model table with "
            "--cfg"
        )
    if cfg:
        table, scale = load_model_table(cfg)
        check_shapes(resolve(table, scale, num_classes=1))
    if weights and not (download and source_of_missing(weights)):
        load_detector(Path(weights))


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
    download: bool,
    world: World,
    say: Callable[[str], None],
) -> tuple[Detector, TrainedWeights | None]:
    """Return the model for the classes `names`, and the trained weights that it starts from, None
    for random ones.

    The head is fitted to the data if its anchors do not match the boxes.

    cfg: a model table; '' means the checkpoint's table, or yolov5n.yaml without a checkpoint.
    weights: a checkpoint whose weights are copied where they fit, '' for none. anchors_per_level: 0
    for the table's own anchors. fit: whether the head may be fitted to the boxes; with
    anchors_per_level it always is. box_sizes: takes the model's largest stride, to a multiple of
    which images are rounded up, and returns the widths and heights of the boxes in pixels at the
    training size, [N, 2]. ratio_limit: a box and an anchor match if their widths and their heights
    differ by less than this factor. seed: for the anchor fitting. download: whether to fetch
    missing weights of models/pretrained.yaml. say: logs a sentence about the model, and one about
    the fit.

    Raises ValueError as build_model and load_detector do.
    """
    if download:
        fetch_weights(weights)
    source, checkpoint = load_detector(Path(weights)) if weights else (None, {})
    cfg = cfg or ("" if source else "yolov5n.yaml")
    model = build_model(
        source.table if source and not cfg else cfg, len(names), anchors=anchors_per_level or None
    )
    origin, trained = "from scratch", None
    if source:
        copied = transfer(model, names, source, checkpoint["names"])
        classes = f"{copied.classes} of {counted(len(names), 'class')}"
        origin = f"{copied.tensors} of {copied.total} tensors and {classes} copied from {weights}"
        rms = weight_rms(model)
        if copied.share <= 0.5:
            origin += f"; {copied.share:.0%} of the weights are too few to count as trained"
        elif rms == 0:
            origin += "; they do not count as trained, because most convolutions are 0"
        else:
            trained = TrainedWeights(rms, all_classes=copied.classes == len(names))
    say(
        f"{cfg or weights}: {count_parameters(model):,} parameters, "
        f"{counted(len(names), 'class')}, {origin}"
    )
    if fit or anchors_per_level:
        sentence = model.fit_to_boxes(
            box_sizes(max(model.strides)),
            ratio_limit=ratio_limit,
            seed=seed,
            placeholders=anchors_per_level > 0,
            broadcast=world.broadcast_object,
        )
        if sentence is None and anchors_per_level:
            sentence = (
                f"anchors {anchors_per_level}: the head of this model has no anchors: no effect"
            )
        if sentence:
            say(sentence)
    return model, trained


def weight_rms(model: nn.Module) -> float:
    """Return the median over the convolutions of their weights' root mean square; 0 without
    convolutions.

    In float64, so that all machines of a run round it alike.
    """
    weights = [
        layer.weight.detach().double() for layer in model.modules() if isinstance(layer, nn.Conv2d)
    ]
    return statistics.median([weight.square().mean().sqrt().item() for weight in weights] or [0.0])


def place_model(model: Detector, dtype: torch.dtype, world: World) -> None:
    """Move the model to this process's device, with rank 0's weights. Raises ValueError if the
    models differ.
    """
    model.to(dtype).to(memory_format=torch.channels_last).to(world.device)
    fitted = {"source", *model.head.table_entries()}  # rank 0's are broadcast
    world.require_same("the model", {k: v for k, v in model.table.items() if k not in fitted})
    world.broadcast_([*model.parameters(), *model.buffers()])
