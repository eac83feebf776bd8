"""Read checkpoints of RTMDet: state dicts of its authors' modules, converted to a Detector.

They are read as data (utils/files/pickled/); none of their code is run. mmengine saves `state_dict`
(the averaged weights), `meta` (the configuration as text, class names) and much that is not read,
such as `ema_state_dict`, which holds the weights that are not averaged.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
from models.weights.pretrained import require_named_digest
from utils.files.pickled import (
    TensorReader,
    are_same_tensor,
    entries_if_mapping,
    open_saved,
)
from utils.printable import excerpt, printable

FIRST = "backbone.stem.0.conv.weight"
WIDTH = "backbone.stem.2.conv.weight"
SECOND_STAGE = "backbone.stage2.1.blocks."
CLASSES = "bbox_head.rtm_cls.0.weight"
# every RTMDet has them, and so have models of other tasks on its backbone
BACKBONE = (FIRST, "backbone.stage1.1.main_conv.conv.weight")

# the table row of each module
ROWS = {
    "backbone.stem.0": 1,
    "backbone.stem.1": 2,
    "backbone.stem.2": 3,
    "backbone.stage1.0": 4,
    "backbone.stage1.1": 5,
    "backbone.stage2.0": 6,
    "backbone.stage2.1": 7,
    "backbone.stage3.0": 8,
    "backbone.stage3.1": 9,
    "backbone.stage4.0": 10,
    "backbone.stage4.1": 11,
    "backbone.stage4.2": 12,
    "neck.reduce_layers.0": 13,
    "neck.top_down_blocks.0": 16,
    "neck.reduce_layers.1": 17,
    "neck.top_down_blocks.1": 20,
    "neck.downsamples.0": 21,
    "neck.bottom_up_blocks.0": 23,
    "neck.downsamples.1": 24,
    "neck.bottom_up_blocks.1": 26,
    "neck.out_convs.0": 27,
    "neck.out_convs.1": 28,
    "neck.out_convs.2": 29,
    "bbox_head": 30,
}
# the parts of a module
PARTS = {
    "main_conv": "cv1",
    "short_conv": "cv2",
    "final_conv": "cv3",
    "blocks": "m",
    "conv1": "cv1",
    "conv2": "cv2",
    "depthwise_conv": "dconv",
    "pointwise_conv": "pconv",
}
# the parts of the head: the branch, and what of it
HEAD_PARTS = {
    "cls_convs": ("classes", ""),
    "reg_convs": ("sides", ""),
    "rtm_cls": ("classes", "outputs"),
    "rtm_reg": ("sides", "outputs"),
}
# The convolutions that all levels share are saved under the name of each level. Group 1 and 3 name
# them without the level.
SHARED = re.compile(r"(bbox_head\.(?:cls|reg)_convs)\.([12])\.(\d+\.conv\.weight)")

# What tensors with these names belong to, and why it is refused.
OTHER_MODELS = {
    "bbox_head.rtm_kernel.": "is a model for instance segmentation; only detection models",
    "bbox_head.rtm_ang.": "is a model for oriented boxes; only detection models",
    "backbone.stage5.": "is a P6 model of RTMDet; only models of three levels",
    "bbox_head.rtm_obj.": "is an RTMDet with an objectness output; only models without one",
}

# Channels of the first convolution of tiny, s; m, l; and blocks of the second stage of tiny, s; m,
# l, x: whether the distances are exponential.
EXPONENTIAL_BY_WIDTH = {12: False, 16: False, 24: True, 32: True}
EXPONENTIAL_BY_BLOCKS = {1: False, 2: False, 4: True, 6: True, 8: True}
DEPTHS = {1: 0.167, 2: 0.33, 4: 0.67, 6: 1.0, 8: 1.33}  # of blocks of the second stage
EXPONENTIAL = re.compile(r"\bexp_on_reg['\"]?\s{0,9}[=:]\s{0,9}(True|False)\b")
MAX_CONFIG = 1 << 20  # letters
MAX_LETTERS = 1000  # of a class name


class Contents(NamedTuple):
    """What is read of a file: its tensors, and the configuration as text."""

    state: dict[str, Tensor]
    config: str


def is_rtmdet(loaded: Any) -> bool:
    """Whether a file is a checkpoint with RTMDet's backbone, for `load_rtmdet`. loaded: unpickled.

    True also for models of other tasks, which `load_rtmdet` refuses with the reason. Raises
    ValueError if it holds no mapping.
    """
    entries = state_entries(loaded, "state_dict")
    return all(key in entries for key in BACKBONE)


def load_rtmdet(path: Path) -> tuple[Detector, list[str]]:
    """Return a detector in eval mode with the weights of an RTMDet, and its class names.

    The names are those of the data set in `meta`; else COCO's for 80 classes, else numbers.

    Whether its distances are exponential is written in the configuration, as exp_on_reg, which is
    searched and not run. A file without it is taken for one of the published sizes by its depth,
    which its width must not contradict: linear in tiny and s, exponential in m, l and x.

    Raises ValueError if the file cannot be read, or its name states another digest; if it is not
    one of the models of models/rtmdet*.yaml, scaled in depth and width; if nothing tells what its
    distances are.
    """
    require_named_digest(path)
    with external_errors(path), open_saved(path) as saved:
        loaded = saved.unpickled()
        entries = state_entries(loaded, "state_dict")
        problem = _why_refused(entries)
        meta = entries_if_mapping(entries_if_mapping(loaded).get("meta"))
        state = {}
        if not problem:
            state = read_state(_without_repeats(entries).items(), TensorReader(saved))
    if problem:
        raise ValueError(f"{printable(path)}: {problem}")

    data = entries_if_mapping(meta.get("dataset_meta"))
    names = data.get("classes", data.get("CLASSES"))
    config = meta.get("cfg")
    with conversion_errors(path):
        text = config if isinstance(config, str) else ""
        model = _detector(Contents(state, text), path.name)
        return model, _class_names(names, model.num_classes)


def _why_refused(entries: Mapping[Any, Any]) -> str:
    """Return why a file with RTMDet's backbone is none of its detectors, "" if it may be one."""
    names = [key for key in entries if isinstance(key, str)]
    for prefix, reason in OTHER_MODELS.items():
        if any(name.startswith(prefix) for name in names):
            return f"{reason} can be used"

    for part in ("neck.", "bbox_head."):
        if not any(name.startswith(part) for name in names):
            return (
                f"is not a detector, it has no tensors {part}*: files of a backbone that was "
                "trained to classify images cannot be used"
            )
    return ""


def _without_repeats(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the entries without further names of tensors that the levels of the head share.

    If a file holds them as several tensors, they are kept, to be compared.
    """
    kept = {}
    for key, value in entries.items():
        first = _name_in_first_level(key) if isinstance(key, str) else key
        if first == key or not are_same_tensor(value, entries.get(first)):
            kept[key] = value
    return kept


def _name_in_first_level(key: str) -> str:
    """Return the name that a shared convolution has in the first level; other names unchanged.

    >>> _name_in_first_level("bbox_head.cls_convs.2.1.conv.weight")
    'bbox_head.cls_convs.0.1.conv.weight'
    """
    shared = SHARED.fullmatch(key)
    return f"{shared[1]}.0.{shared[3]}" if shared else key


def _detector(given: Contents, source: str) -> Detector:
    """Return the detector with these tensors.

    Memory is allocated only after all shapes are known to fit.
    """
    model = check_shapes(_table(given, source))
    state = _renamed_state(given.state)
    fill_model(model, state, "an RTMDet model")
    return model


def _renamed_state(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under Kestrel's names, for RGB instead of BGR.

    Raises ValueError if the levels of the head have different convolutions.
    """
    state = {}
    for key, value in given.items():
        first = _name_in_first_level(key)
        if key == FIRST:
            value = value.flip(1).contiguous()
        if first == key:
            state[_renamed(key)] = value
            continue

        shared = given.get(first)
        if shared is None or not value.equal(shared):
            raise ValueError(
                f"{first} and {key} differ, but the levels of its head must share convolutions"
            )
    return state


def _table(given: Contents, source: str) -> dict[str, Any]:
    """Return the resolved table of the model, whose depth and width show in the tensors."""
    state = given.state
    blocks = _second_stage_blocks(state)
    channels = out_channels(state, WIDTH)
    classes = out_channels(state, CLASSES)

    is_exponential = _is_exponential(given)
    table, _ = load_model_table("rtmdet_m" if is_exponential else "rtmdet_tiny")
    of_one_model = {key: value for key, value in table.items() if key != "scales"}
    of_one_model |= {
        "source": source,
        "depth_multiple": DEPTHS.get(blocks, blocks / 6),
        "width_multiple": channels / 64,
        "letterbox": "top_left",  # as its authors trained and validated it
    }
    return resolve(of_one_model, None, classes)


def _second_stage_blocks(state: Mapping[str, Tensor]) -> int:
    """Return the number of blocks in the second stage; published sizes have 1 to 8."""
    numbers = {key.split(".")[4] for key in state if key.startswith(SECOND_STAGE)}
    return len(numbers)


def _is_exponential(given: Contents) -> bool:
    """Return whether distances are exponential.

    Raises ValueError if neither the configuration nor width and depth tell.
    """
    text = given.config[:MAX_CONFIG]
    stated = {found[1] == "True" for found in EXPONENTIAL.finditer(text)}
    if len(stated) == 1:
        return stated.pop()

    channels = out_channels(given.state, FIRST)
    blocks = _second_stage_blocks(given.state)
    by_depth = EXPONENTIAL_BY_BLOCKS.get(blocks)
    by_width = EXPONENTIAL_BY_WIDTH.get(channels, by_depth)
    if by_depth is None or by_width is not by_depth:
        raise ValueError(
            f"a first convolution of {channels} channels and {blocks} blocks in the second stage "
            "are no published size, and its configuration does not state exp_on_reg=True or False"
        )
    return by_depth


def _class_names(given: Any, count: int) -> list[str]:
    """Return the class names that `meta` has for `count` classes, default names if it has none.

    Raises ValueError for another number of names, or names that are not printable text.
    """
    if given is None:
        return default_names(count)
    if not isinstance(given, list | tuple) or len(given) != count:
        size = len(given) if isinstance(given, list | tuple) else "no list of"
        raise ValueError(f"its dataset_meta has {size} class names for {count} classes")

    for name in given:
        # not shown: a few bytes of a pickle can stand for terabytes of text
        if not isinstance(name, str):
            raise ValueError("its dataset_meta has a class name that is no text")
        if not 0 < len(name) <= MAX_LETTERS or not name.isprintable():
            raise ValueError(f"the class name {excerpt(name)} is not printable text")
    return list(given)


def _renamed(key: str) -> str:
    """Return the name in Kestrel's model of a tensor.

    Raises ValueError for a name that RTMDet's models do not have.

    >>> _renamed("backbone.stage1.1.blocks.0.conv2.depthwise_conv.bn.bias")
    'layers.5.m.0.cv2.dconv.bn.bias'
    >>> _renamed("bbox_head.cls_convs.2.1.bn.bias"), _renamed("bbox_head.rtm_reg.1.weight")
    ('layers.30.classes.norms.2.1.bias', 'layers.30.sides.outputs.1.weight')
    """
    prefix = next((prefix for prefix in ROWS if key.startswith(f"{prefix}.")), None)
    if prefix is None:
        raise ValueError(f"it has a tensor {excerpt(key)}, which RTMDet's models do not have")

    rest = key.removeprefix(f"{prefix}.").split(".")
    if prefix == "bbox_head":
        renamed = _renamed_in_head(key, rest)
    else:
        renamed = ".".join(PARTS.get(part, part) for part in rest)
    return f"layers.{ROWS[prefix]}.{renamed}"


def _renamed_in_head(key: str, parts: list[str]) -> str:
    """Return the name of a tensor in the head. parts: its name in the head of the file."""
    branch, kind = HEAD_PARTS.get(parts[0], ("", ""))
    if branch and kind and len(parts) == 3:  # rtm_cls.LEVEL.weight
        return f"{branch}.{kind}.{parts[1]}.{parts[2]}"

    if branch and not kind and len(parts) == 5:  # cls_convs.LEVEL.NUMBER.bn.weight
        _, level, number, part, name = parts
        if part == "bn":
            return f"{branch}.norms.{level}.{number}.{name}"
        if part == "conv" and level == "0":
            return f"{branch}.convs.{number}.{name}"
    raise ValueError(f"it has a tensor {excerpt(key)}, which RTMDet's models do not have")
