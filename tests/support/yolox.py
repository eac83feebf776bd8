"""What YOLOX's own code computes, as stored in tests/fixtures/yolox (see the README there)."""

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.detector import Detector
from models.weights.yolox import ROWS
from tests.support.boxes import to_xyxy

FIXTURES = Path(__file__).parents[1] / "fixtures" / "yolox"
SHARED = Path(__file__).parents[3] / "shared" / "fixtures" / "yolox"  # with trained weights
GRIDS = [(52, 52), (26, 26), (13, 13)]
CLASSES = 80
HEAD_PARTS = ("stems", "cls_convs", "reg_convs", "cls_preds", "reg_preds", "obj_preds")


@dataclass
class TrainingStep:
    """Four images in training: raw outputs, and what its authors' code makes of them.

    maps: [4, H, W, 85] of each level; targets: [14, 6]; positives: the row in targets by image and
    prediction.
    """

    maps: list[Tensor]
    targets: Tensor
    positives: dict[tuple[int, int], int]


def training_step() -> TrainingStep:
    """Read the stored step. Boxes and classes of cells far from all objects are 0: they have no
    effect.
    """
    with np.load(FIXTURES / "simota.npz") as stored:
        objectness = torch.from_numpy(stored["objectness"])
        image, cell = torch.from_numpy(stored["cells"]).long().unbind(1)
        outputs = torch.zeros(*objectness.shape, 5 + CLASSES)
        outputs[image, cell, :4] = torch.from_numpy(stored["boxes"])
        outputs[image, cell, 5:] = torch.from_numpy(stored["classes"]).float()
        outputs[..., 4] = objectness
        labels = torch.from_numpy(stored["labels"])
        positives = stored["positives"].tolist()

    sizes = [height * width for height, width in GRIDS]
    levels = zip(outputs.split(sizes, 1), GRIDS, strict=True)
    maps = [level.unflatten(1, grid) for level, grid in levels]

    # A label's number counts the labels of its own image.
    first = {int(owner): row for row, owner in reversed(list(enumerate(labels[:, 0])))}
    rows = {(image, cell): first[image] + number for image, cell, number in positives}
    return TrainingStep(maps, torch.cat([labels[:, :2], to_xyxy(labels[:, 2:])], 1), rows)


def to_yolox_state(detector: Detector) -> dict[str, Tensor]:
    """Return a detector's state under the names of YOLOX's modules, for images in BGR, 0 to 255."""
    prefixes = {row: prefix for prefix, row in ROWS.items()}
    state = OrderedDict()
    for key, value in detector.state_dict().items():
        _, row, rest = key.split(".", 2)
        if row != "24":
            rest = re.sub(r"(^|\.)cv([123])\.", r"\1conv\2.", rest)
        if key == "layers.0.conv.weight":
            bgr = value.flip(1) / 255
            value = torch.cat(
                [bgr[:, :, dy::2, dx::2] for dy, dx in ((0, 0), (1, 0), (0, 1), (1, 1))], 1
            )
        state[f"{prefixes[int(row)]}.{rest}"] = value
    return state


def narrow_state(shapes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the random weights of forward_narrow.npz, drawn as its authors' code draws them.

    shapes: a state of this size, whose values do not matter.
    """
    state = {}
    generator_state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        for name in in_order_of_creation(shapes):
            out_channels, in_channels, side, _ = shapes[f"{name}.weight"].shape
            biased = f"{name}.bias" in shapes
            conv = nn.Conv2d(in_channels, out_channels, side, bias=biased)
            state |= {f"{name}.{key}": value for key, value in conv.state_dict().items()}

        norms = [key.removesuffix(".running_var") for key in shapes if "running_var" in key]
        for name in sorted(norms, key=lambda name: name.startswith("head.stems.")):  # they are last
            like = shapes[f"{name}.running_var"]
            state[f"{name}.running_mean"] = torch.empty_like(like).normal_(0, 0.1)
            state[f"{name}.running_var"] = torch.empty_like(like).uniform_(0.5, 1.5)
            state[f"{name}.weight"] = torch.empty_like(like).uniform_(0.5, 1.5)
            state[f"{name}.bias"] = torch.empty_like(like).normal_(0, 0.1)
            state[f"{name}.num_batches_tracked"] = torch.tensor(0)
    finally:
        torch.set_rng_state(generator_state)
    return {key: state[key] for key in shapes}


def in_order_of_creation(shapes: dict[str, Tensor]) -> Iterator[str]:
    """The names of the convolutions: those of the head level by level."""
    names = [key.removesuffix(".weight") for key, value in shapes.items() if value.dim() == 4]
    yield from (name for name in names if not name.startswith("head."))
    for level in range(len(GRIDS)):
        for part in HEAD_PARTS:
            yield from (name for name in names if f"{name}.".startswith(f"head.{part}.{level}."))
