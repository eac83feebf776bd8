"""Read checkpoints of YOLOX: state dicts of its authors' modules, converted to a Detector.

They are read as data (utils/files/pickled/); none of their code is run.
"""

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from models.build import check_shapes
from models.detector import Detector
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from models.weights.coco_names import default_names
from models.weights.external import (
    conversion_errors,
    external_errors,
    fill_model,
    out_channels,
    read_state,
    state_entries,
)
from utils.files.pickled import TensorReader, open_saved
from utils.printable import excerpt

STEM = "backbone.backbone.stem.conv."
BOTTLENECKS = "backbone.backbone.dark3.1.m."  # of row 4
CLASSES = "head.cls_preds.0.weight"
# the table row of each module
ROWS = {
    "backbone.backbone.stem.conv": 0,  # inside the Focus module
    "backbone.backbone.dark2.0": 1,
    "backbone.backbone.dark2.1": 2,
    "backbone.backbone.dark3.0": 3,
    "backbone.backbone.dark3.1": 4,
    "backbone.backbone.dark4.0": 5,
    "backbone.backbone.dark4.1": 6,
    "backbone.backbone.dark5.0": 7,
    "backbone.backbone.dark5.1": 8,
    "backbone.backbone.dark5.2": 9,
    "backbone.lateral_conv0": 10,
    "backbone.C3_p4": 13,
    "backbone.reduce_conv1": 14,
    "backbone.C3_p3": 17,
    "backbone.bu_conv2": 18,
    "backbone.C3_n3": 20,
    "backbone.bu_conv1": 21,
    "backbone.C3_n4": 23,
    "head": 24,
}
DEPTHS = {3: 0.33, 6: 0.67, 9: 1.0, 12: 1.33}  # depth multiple of a number of bottlenecks


def is_yolox(loaded: Any) -> bool:
    """Whether a file is a checkpoint of YOLOX, for `load_yolox`. loaded: unpickled.

    Raises ValueError if it holds no mapping.
    """
    return f"{STEM}conv.weight" in state_entries(loaded, "model")


def load_yolox(path: Path) -> tuple[Detector, list[str]]:
    """Return a detector in eval mode with the weights of a YOLOX checkpoint, and its class names.

    The names are COCO's for 80 classes, else numbers, because the file has none. Raises ValueError
    if the file cannot be read, or is not one of the models of models/yolox*.yaml in any depth and
    width.
    """
    with external_errors(path), open_saved(path) as saved:
        state = read_state(state_entries(saved.unpickled(), "model").items(), TensorReader(saved))
    with conversion_errors(path):
        model = _detector(state, path.name)
    return model, default_names(model.num_classes)


def _detector(given: dict[str, Tensor], source: str) -> Detector:
    """Return the detector with these tensors.

    Memory is allocated only after all shapes are known to fit.
    """
    state = dict(_renamed(key, value) for key, value in given.items())
    model = check_shapes(_table(given, source))
    fill_model(model, state, "a YOLOX model")
    return model


def _table(given: dict[str, Tensor], source: str) -> dict[str, Any]:
    """Return the resolved table of the model, whose depth and width show in the tensors."""
    is_separable = any(".dconv." in key for key in given)
    table, _ = load_model_table("yolox_nano" if is_separable else "yolox_s")

    # Depth shows in the number of bottlenecks of row 4, width in the channels of the first layer.
    numbers = {key.split(".")[5] for key in given if key.startswith(BOTTLENECKS)}
    bottlenecks = len(numbers)
    depth = DEPTHS.get(bottlenecks, bottlenecks / 9)
    width = out_channels(given, f"{STEM}conv.weight") / 64

    of_one_model = {key: value for key, value in table.items() if key != "scales"}
    of_one_model |= {"source": source, "depth_multiple": depth, "width_multiple": width}
    return resolve(of_one_model, None, out_channels(given, CLASSES))


def _renamed(key: str, value: Tensor) -> tuple[str, Tensor]:
    """Return a tensor's name and value in Kestrel's model.

    The first convolution runs on 12 channels: four groups of an image's channels at pixels (0, 0),
    (1, 0), (0, 1) and (1, 1) (y, x) of each 2 x 2. It becomes a 6x6 convolution of stride 2, on RGB
    in [0, 1] instead of BGR in [0, 255].
    """
    prefix = next((prefix for prefix in ROWS if key.startswith(f"{prefix}.")), None)
    if prefix is None:
        raise ValueError(f"it has a tensor {excerpt(key)}, which YOLOX's models do not have")

    row = ROWS[prefix]
    rest = key.removeprefix(f"{prefix}.")
    if prefix != "head":
        rest = re.sub(r"(^|\.)conv([123])\.", r"\1cv\2.", rest)
    if key == f"{STEM}conv.weight":
        value = _first_convolution(value)
    return f"layers.{row}.{rest}", value


def _first_convolution(weight: Tensor) -> Tensor:
    """Return the weight [D, 3, 6, 6] of the first convolution from that of YOLOX [D, 12, 3, 3].

    Raises ValueError for another shape.
    """
    if weight.shape[1:] != (12, 3, 3):
        raise ValueError(f"{STEM}conv.weight is {list(weight.shape)}, expected [D, 12, 3, 3]")
    out = weight.new_empty(weight.shape[0], 3, 6, 6)
    for group, (dy, dx) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1))):
        out[:, :, dy::2, dx::2] = weight[:, 3 * group : 3 * group + 3]
    return (out.flip(1) * 255).contiguous()
