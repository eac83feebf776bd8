"""Read checkpoints of YOLOv9 in the layout of its MIT-licensed code, converted to a Detector.

A published file is one mapping from names such as `0.conv.weight` to tensors, in float16. Lightning
saves a `state_dict` with every tensor twice, raw and averaged. Both are read as data
(utils/files/pickled); none of their code is run.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from models.blocks import Layer
from models.build import check_shapes
from models.detector import Detector
from models.tables.find import load_model_table
from models.tables.resolve import resolve
from models.tables.rows import without_auxiliary
from models.weights.coco_names import default_names
from models.weights.external import (
    conversion_errors,
    external_errors,
    fill_model,
    out_channels,
    read_state,
)
from utils.files.pickled import TensorReader, mapping_entries, open_saved
from utils.printable import excerpt

# prefixes of the tensors in a file of Lightning: averaged, and raw
AVERAGED = "ema.model."
RAW = "model.model."
HEAD = 22  # the layer of the head, in all sizes
CLASSES = f"{HEAD}.heads.0.class_conv.2.weight"
FIRST = "0.conv.weight"
AUXILIARY_HEADS = {"yolov9s": 30, "yolov9m": 38, "yolov9c": 38}
# names of tensors that only one table has
ONLY_IN_C = "3.conv1.conv.weight"
ONLY_IN_M = "2.conv2.0.conv1.conv.weight"
NAME = re.compile(r"(\d{1,3})\.(.+)")
HEAD_NAME = re.compile(r"heads\.(\d)\.(anchor_conv|class_conv)\.(\d\..+)")
BRANCHES = {"anchor_conv": "sides", "class_conv": "classes"}
BINS = re.compile(r"heads\.\d\.anc2vec\.anc2vec\.weight")
POOL = {"conv1": "cv1", "conv5": "cv2"}  # the convolutions of SPPF

# The auxiliary branch of m and c: layers whose channels are split between several rows.
SPLIT = {23: (23,), 24: (24, 25), 25: (26, 27, 28)}
ROWS_MORE = 3  # than layers, after those


def is_yolov9(loaded: Any) -> bool:
    """Whether a file is a checkpoint of YOLOv9 in this layout, for `load_yolov9`.

    loaded: unpickled. Raises ValueError if it holds no mapping.
    """
    entries = _entries(loaded)
    return CLASSES in entries and FIRST in entries


def load_yolov9(path: Path) -> tuple[Detector, list[str]]:
    """Return a detector in eval mode with the weights of a YOLOv9, and its class names.

    The names are COCO's for 80 classes, else numbers, because the file has none. The auxiliary
    branch is read if the file has it. Raises ValueError if the file cannot be read, or is not one
    of the models of models/yolov9*.yaml in any width.
    """
    with external_errors(path), open_saved(path) as saved:
        state = read_state(_entries(saved.unpickled()).items(), TensorReader(saved))
    with conversion_errors(path):
        model = _detector(state, path.name)
    return model, default_names(model.num_classes)


def _entries(loaded: Any) -> dict[Any, Any]:
    """Return the records of a file's tensors by their names in a published file.

    Of a file of Lightning: of its averaged weights, or of the raw ones if it has no others.
    """
    outer = mapping_entries(loaded)
    if "state_dict" not in outer:
        return outer

    state = mapping_entries(outer["state_dict"])
    for prefix in (AVERAGED, RAW):
        entries = {}
        for key, value in state.items():
            if isinstance(key, str) and key.startswith(prefix):
                entries[key.removeprefix(prefix)] = value
        if entries:
            return entries
    return state


def _detector(given: dict[str, Tensor], source: str) -> Detector:
    """Return the detector with these tensors.

    Memory is allocated only after all shapes are known to fit.
    """
    model = check_shapes(_table(given, source))
    state: dict[str, Tensor] = {}
    for key, value in given.items():
        state |= renamed(key, value, model)

    fill_model(model, state, "a YOLOv9 model")
    return model


def _table(given: Mapping[str, Tensor], source: str) -> dict[str, Any]:
    """Return the resolved table of the model, whose size and width show in the tensors."""
    name = "yolov9s"
    if ONLY_IN_C in given:
        name = "yolov9c"
    elif ONLY_IN_M in given:
        name = "yolov9m"
    table, _ = load_model_table(name)

    has_auxiliary = any(_layer_and_rest(key)[0] > HEAD for key in given)
    if not has_auxiliary:
        table = without_auxiliary(table)
    of_one_model = {key: value for key, value in table.items() if key != "scales"}
    first_channels = table["backbone"][0][3][0]
    of_one_model |= {
        "source": source,
        "depth_multiple": 1.0,
        "width_multiple": out_channels(given, FIRST) / first_channels,
        "channel_multiple": 1,
    }

    # The heads, of which the second one may have a class branch of another width.
    for part, layer in (("head", HEAD), ("auxiliary", AUXILIARY_HEADS[name])):
        if part in of_one_model:
            *rows, (sources, number, module, _) = of_one_model[part]
            args = ["nc", *_bins_and_class_channels(given, layer)]
            of_one_model[part] = [*rows, [sources, number, module, args]]
    return resolve(of_one_model, None, out_channels(given, CLASSES))


def _bins_and_class_channels(given: Mapping[str, Tensor], layer: int) -> Sequence[int]:
    """Return the bins of a head, and the channels of its class branch, which no rule tells."""
    bins = out_channels(given, f"{layer}.heads.0.anchor_conv.2.weight") // 4
    return bins, out_channels(given, f"{layer}.heads.0.class_conv.0.conv.weight")


def _layer_and_rest(key: str) -> tuple[int, str]:
    """Return the layer of a tensor, and its name in there.

    Raises ValueError for a name that does not start with a number.
    """
    parts = NAME.fullmatch(key)
    if parts is None:
        raise ValueError(f"it has a tensor {excerpt(key)}, which YOLOv9's models do not have")
    return int(parts[1]), parts[2]


def renamed(key: str, value: Tensor, model: Detector) -> dict[str, Tensor]:
    """Return a tensor by its name in `model`: none of a constant, several of one that is split.

    Raises ValueError for a constant with other values.
    """
    layer, rest = _layer_and_rest(key)
    if BINS.fullmatch(rest):
        if value.flatten().tolist() != list(range(value.numel())):
            raise ValueError(f"its {key} is not 0 to {value.numel() - 1}")
        return {}

    rows: tuple[int, ...] = (layer,)
    has_second_backbone = any(row.module == "CBFuse" for row in model.rows)
    if has_second_backbone and layer > HEAD:
        rows = SPLIT.get(layer, (layer + ROWS_MORE,))
    if any(row >= len(model.rows) for row in rows):
        raise ValueError(f"it has a tensor {excerpt(key)}, which YOLOv9's models do not have")

    in_head = HEAD_NAME.fullmatch(rest)
    if in_head is not None:
        level, branch, layer_of_branch = in_head.groups()
        rest = f"branches.{BRANCHES[branch]}.{level}.{layer_of_branch}"
    elif model.rows[rows[0]].module == "SPPF":
        first, _, others = rest.partition(".")
        rest = f"{POOL.get(first, first)}.{others}"

    if len(rows) == 1:
        return {f"layers.{rows[0]}.{rest}": value}
    sizes = [cast(Layer, model.layers[row]).out_channels for row in rows]
    parts = value.split(sizes)
    return {f"layers.{row}.{rest}": part.clone() for row, part in zip(rows, parts, strict=True)}
