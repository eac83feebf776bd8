"""The model at the start of a run: its table, trained weights, and a head fitted to the boxes."""

import statistics
from collections.abc import Callable, Sequence
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from models import build_model
from models.build import check_shapes, require_fitting_rows
from models.detector import Detector, count_detecting, count_parameters
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from models.weights.kestrel import fetch_detector, is_network, load_detector
from models.weights.network import copy_network, no_detector, read_network, require_backbone
from models.weights.pretrained import fetch_weights, source_of_missing
from models.weights.torchvision_files import torchvision_file
from models.weights.trained_settings import say_other_size
from models.weights.transfer import Copied, transfer, with_added_classes
from training.settings.recipe import TrainedWeights
from utils.distributed.world import World
from utils.images.letterbox import round_up_to_stride
from utils.log import Say
from utils.printable import counted, printable


def check_model(cfg: str, weights: str, *, download: bool) -> None:
    """Raise ValueError if the model table or the checkpoint cannot be used.

    Called before time is spent on the data set. cfg, weights, download: as for `start_model`; of
    missing weights that it would download only the name is checked.
    """
    if Path(cfg).suffix in (".pt", ".pth"):
        raise ValueError(
            f"--cfg {printable(cfg)}: give a checkpoint with --weights, and a model table with "
            "--cfg"
        )
    table: dict[str, Any] | None = None
    if cfg:
        given, scale = load_model_table(cfg)
        table = resolve(given, scale, num_classes=1)
        require_fitting_rows(table)
    if not weights:
        return

    path = Path(weights)
    if download and source_of_missing(weights):
        if torchvision_file(path.name):  # which only starts a backbone
            if table is None:
                raise no_detector(path)
            require_backbone(check_shapes(table), path)
        return
    loaded = _load_weights(path, backbone=table is not None)
    if loaded is None and table is not None:  # they are weights of a backbone
        read_network(path, require_backbone(check_shapes(table), path))


def _load_weights(path: Path, *, backbone: bool) -> tuple[Detector, dict[str, Any]] | None:
    """Return what `load_detector` returns, with its errors.

    backbone: return None for the weights of a network that classifies images: with a table they
    are those of its backbone. That is asked last, so that a checkpoint is read once.
    """
    try:
        return load_detector(path)
    except ValueError:
        if backbone and is_network(path):
            return None
        raise


def names_of_weights(weights: str, *, download: bool) -> list[str]:
    """Return the class names in a checkpoint. Arguments and errors: as for `start_model`."""
    if download:
        fetch_detector(weights)
    names: list[str] = load_detector(Path(weights))[1]["names"]
    return names


def start_model(
    cfg: str,
    weights: str,
    names: Sequence[str],
    *,
    anchors_per_level: int,
    fit: bool,
    box_sizes: Callable[[int], NDArray[np.float64]],
    image_size: int,
    stride: int = 1,
    anchor_t: float,
    seed: int,
    download: bool,
    world: World,
    say: Say,
) -> tuple[Detector, TrainedWeights | None]:
    """Return the model of a new run, and the trained weights it starts from, None for random ones.

    The head's anchors are fitted to the data if they do not match its boxes.

    Args:
        cfg: a model table; '' means the checkpoint's table, or yolov5n.yaml without a checkpoint.
        weights: a checkpoint whose weights are copied where they fit, '' for none; or, with a
            table, the weights of the network that is its backbone.
        names: of the classes.
        anchors_per_level: how many to fit to the boxes; 0 for the table's own anchors.
        fit: whether the table's own anchors may be replaced, if they do not match the boxes; those
            of `anchors_per_level` always are.
        box_sizes: takes the image size, and returns the widths and heights of the boxes at that
            size, in pixels, [N, 2].
        image_size: of --imgsz, in pixels: the training's is rounded up.
        stride: image sides must be multiples of it, too, for a teacher.
        anchor_t: a box and an anchor match if their widths and their heights differ by less than
            this factor.
        seed: for the anchor fitting.
        download: whether to fetch missing weights of models/pretrained.yaml.
        say: logs a sentence about the model, and one about the fit.

    Raises ValueError as build_model and load_detector do.
    """
    # The checkpoint whose weights are copied.
    if download:
        fetch_weights(weights)
    checkpoint: dict[str, Any] = {}
    source: Detector | None = None
    source_names: list[str] = []
    loaded = _load_weights(Path(weights), backbone=bool(cfg)) if weights else None
    of_backbone = bool(weights) and loaded is None
    if loaded:
        source, checkpoint = loaded
        source_names = checkpoint["names"]

    # The model, with random weights.
    table: str | dict[str, Any] = cfg or "yolov5n.yaml"
    if source and not cfg:
        # A training centers its images, wherever the checkpoint's images were, has one head, and
        # learns from the teacher of its own command line only.
        not_kept = ("letterbox", "class_groups", "distillation")
        table = {key: value for key, value in source.table.items() if key not in not_kept}
    model = build_model(table, len(names), anchors=anchors_per_level or None)
    image_size = round_up_to_stride(image_size, lcm(max(model.strides), stride))
    say_other_size("--weights", weights, checkpoint, image_size, say)

    # Copy the weights that fit.
    origin = "from scratch"
    trained = None
    if source:
        copied = transfer(model, names, source, source_names)
        origin, trained = _describe_transfer(model, copied, weights, len(names))
    elif of_backbone:
        origin, trained = _start_backbone(model, weights)
    parameters = parameters_text(model)
    classes = counted(len(names), "class")
    say(f"{cfg or weights or 'yolov5n.yaml'}: {parameters}, {classes}, {origin}")

    # Anchors.
    if fit or anchors_per_level:
        sentence = model.fit_to_boxes(
            box_sizes(image_size),
            anchor_t=anchor_t,
            seed=seed,
            placeholders=anchors_per_level > 0,
            broadcast=world.broadcast_object,
        )
        if sentence:
            say(sentence)
        elif anchors_per_level:
            say(f"anchors {anchors_per_level}: the head of this model has no anchors: no effect")
    return model, trained


def extended_model(
    weights: str, names: Sequence[str], *, anchors_per_level: int, image_size: int, say: Say
) -> tuple[Detector, TrainedWeights | None]:
    """Return the model of a checkpoint with a head for the new classes, and what it starts from.

    Anchors, and where images lie on their canvases, are the checkpoint's, so that its old classes
    are found as before.

    weights: the checkpoint. names: the checkpoint's, then the new ones. anchors_per_level,
    image_size: as for `start_model`. say: logs a sentence about the model, and what is trained.
    """
    if anchors_per_level:
        say(f"anchors {anchors_per_level}: no effect: --add-classes keeps those of {weights}")
    old, checkpoint = load_detector(Path(weights))
    image_size = round_up_to_stride(image_size, max(old.strides))
    say_other_size("--weights", weights, checkpoint, image_size, say)
    old_count = len(checkpoint["names"])
    model = with_added_classes(old, len(names) - old_count)

    old_classes = counted(old_count, "old class")
    new_classes = counted(len(names) - old_count, "new one")
    old_parameters = count_detecting(old)
    trained = count_parameters(model) - old_parameters
    say(
        f"{weights}: {parameters_text(model)}, {old_classes} + {new_classes}; trained are the "
        f"{trained:,} of the new head, {old_parameters:,} are frozen"
    )
    rms = weight_rms(model)
    return model, TrainedWeights(rms, all_classes=False) if rms else None


def _describe_transfer(
    model: Detector, copied: Copied, weights: str, num_classes: int
) -> tuple[str, TrainedWeights | None]:
    """Return what was copied as text, and the trained weights; None if they count as untrained."""
    classes = f"{copied.classes} of {counted(num_classes, 'class')}"
    origin = f"{copied.tensors} of {copied.total} tensors and {classes} copied from {weights}"
    if copied.share <= 0.5:
        few = f"{copied.share:.0%} of the weights are too few to count as trained"
        return f"{origin}; {few}", None

    rms = weight_rms(model)
    if rms == 0:
        zero = "they do not count as trained, because most convolutions are 0"
        return f"{origin}; {zero}", None
    return origin, TrainedWeights(rms, all_classes=copied.classes == num_classes)


def _start_backbone(model: Detector, weights: str) -> tuple[str, TrainedWeights | None]:
    """Copy the weights of a model's backbone; return that as text, and the trained weights.

    They count as trained, however large the rest of the model is: its share would not tell how
    much of what the backbone has learned a high learning rate destroys.
    """
    copied = copy_network(model, Path(weights))
    name = copied.layer.name
    origin = f"{counted(copied.tensors, 'tensor')} of the backbone {name} copied from {weights}"
    rms = weight_rms(copied.layer)
    if rms == 0:
        return f"{origin}; the rest random", None
    return (
        f"{origin}; the rest random",
        TrainedWeights(rms, all_classes=False, backbone_only=True),
    )


def parameters_text(model: Detector) -> str:
    """Return the number of parameters as text, and of those that only training needs."""
    total = count_parameters(model)
    auxiliary = sum(count_parameters(layer) for layer in model.auxiliary_layers)
    text = f"{total:,} parameters"
    if auxiliary:
        text += f" ({auxiliary:,} of them in the auxiliary branch)"
    return text


def weight_rms(model: nn.Module) -> float:
    """Return the median over the convolutions of their weights' root mean square; 0 without any.

    In float64, so that all machines of a run round it alike.
    """
    of_layers = []
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            weight = layer.weight.detach().double()
            of_layers.append(weight.square().mean().sqrt().item())
    return statistics.median(of_layers) if of_layers else 0.0


def place_model(model: Detector, dtype: torch.dtype, world: World) -> None:
    """Move the model to this process's device, with rank 0's weights.

    Raises ValueError if the models of the processes differ.
    """
    model.to(dtype).to(memory_format=torch.channels_last).to(world.device)

    # The file's name may differ between machines. Fitted anchors need no comparison: they are a
    # buffer of the head, and so replaced by rank 0's.
    not_compared = {"source", *model.head.table_entries()}
    compared = {key: value for key, value in model.table.items() if key not in not_compared}
    world.require_same("the model", compared)
    world.broadcast_([*model.parameters(), *model.buffers()])
