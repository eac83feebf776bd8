"""Checkpoints as RTMDet's authors save them, with random weights."""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.detector import Detector
from models.weights.rtmdet import FIRST, _name_in_first_level, _renamed

FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures" / "rtmdet"
DEPTHS = {
    "tiny": (1, 1),
    "s": (1, 2),
    "m": (2, 4),
    "l": (3, 6),
}  # blocks of stages 1 and 4; 2 and 3


def rtmdet_shapes(width: int, few: int, many: int, classes: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of an RTMDet, in the order of its authors' files.

    width: channels of the stem's last convolution. few, many: blocks of stages 1 and 4 and of the
    neck; of stages 2 and 3.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in _shapes(width, few, many, classes):
        shapes[name] = shape
    return shapes


def _shapes(width: int, few: int, many: int, classes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    half = width // 2
    yield from conv("backbone.stem.0", 3, half, 3)
    yield from conv("backbone.stem.1", half, half, 3)
    yield from conv("backbone.stem.2", half, width, 3)

    inside = width
    for stage, blocks in enumerate((few, many, many, few), 1):
        outside = 2 * inside
        name = f"backbone.stage{stage}"
        yield from conv(f"{name}.0", inside, outside, 3)
        last = 1
        if stage == 4:
            yield from conv(f"{name}.1.conv1", outside, outside // 2, 1)
            yield from conv(f"{name}.1.conv2", 2 * outside, outside, 1)
            last = 2
        yield from csp(f"{name}.{last}", outside, outside, blocks, attention=True)
        inside = outside

    c3, c4, c5 = 4 * width, 8 * width, 16 * width
    yield from conv("neck.reduce_layers.0", c5, c4, 1)
    yield from conv("neck.reduce_layers.1", c4, c3, 1)
    yield from csp("neck.top_down_blocks.0", 2 * c4, c4, few)
    yield from csp("neck.top_down_blocks.1", 2 * c3, c3, few)
    yield from conv("neck.downsamples.0", c3, c3, 3)
    yield from conv("neck.downsamples.1", c4, c4, 3)
    yield from csp("neck.bottom_up_blocks.0", 2 * c3, c4, few)
    yield from csp("neck.bottom_up_blocks.1", 2 * c4, c5, few)
    for level, channels in enumerate((c3, c4, c5)):
        yield from conv(f"neck.out_convs.{level}", channels, c3, 3)

    for branch in ("cls_convs", "reg_convs"):
        for level in range(3):
            for number in range(2):
                yield from conv(f"bbox_head.{branch}.{level}.{number}", c3, c3, 3)
    for branch, outputs in (("rtm_cls", classes), ("rtm_reg", 4)):
        for level in range(3):
            yield f"bbox_head.{branch}.{level}.weight", (outputs, c3, 1, 1)
            yield f"bbox_head.{branch}.{level}.bias", (outputs,)


def conv(name: str, inside: int, outside: int, side: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Iterate over the tensors of a convolution and its BatchNorm."""
    yield f"{name}.conv.weight", (outside, inside, side, side)
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.bn.{part}", (outside,)
    yield f"{name}.bn.num_batches_tracked", ()


def csp(
    name: str, inside: int, outside: int, blocks: int, attention: bool = False
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Iterate over the tensors of a CSP layer."""
    half = outside // 2
    yield from conv(f"{name}.main_conv", inside, half, 1)
    yield from conv(f"{name}.short_conv", inside, half, 1)
    yield from conv(f"{name}.final_conv", 2 * half, outside, 1)
    for number in range(blocks):
        block = f"{name}.blocks.{number}"
        yield from conv(f"{block}.conv1", half, half, 3)
        yield from conv(f"{block}.conv2.depthwise_conv", 1, half, 5)
        yield from conv(f"{block}.conv2.pointwise_conv", half, half, 1)
    if attention:
        yield f"{name}.attention.fc.weight", (2 * half, 2 * half, 1, 1)
        yield f"{name}.attention.fc.bias", (2 * half,)


def rtmdet_state(
    width: int = 4, few: int = 1, many: int = 1, classes: int = 2, seed: int = 0
) -> dict[str, Tensor]:
    """Return random tensors of an RTMDet; the levels of the head share their convolutions."""
    generator = torch.Generator().manual_seed(seed)
    state = OrderedDict()
    for key, shape in rtmdet_shapes(width, few, many, classes).items():
        branch, _, rest = key.partition("_convs.")
        if key.startswith("bbox_head.") and rest[:2] in ("1.", "2.") and "conv." in rest:
            state[key] = state[f"{branch}_convs.0.{rest[2:]}"]
        elif key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(7)
        else:
            state[key] = torch.rand(shape, generator=generator) * 0.2 + 0.1
    return state


def to_authors_state(detector: Detector) -> dict[str, Tensor]:
    """Return a detector's state under the names of its authors' files, for images in BGR."""
    own = detector.state_dict()
    width = own["layers.3.conv.weight"].shape[0]
    few, many = (len(detector.layers[row].m) for row in (5, 7))

    classes = detector.num_classes
    state = OrderedDict()
    for key in rtmdet_shapes(width, few, many, classes):
        state[key] = own[_renamed(_name_in_first_level(key))]
    state[FIRST] = state[FIRST].flip(1)
    return state


class HistoryBuffer:
    """Stands for mmengine's class of this name: its state holds methods, pickled by getattr."""

    def __init__(self) -> None:
        self.methods = {"mean": self.mean}

    def mean(self) -> float:
        """Return nothing of interest."""
        return 0.0


def save_rtmdet(path: Path, state: Any, *, zipped: bool = True, **others: Any) -> Path:
    """Write a checkpoint as mmengine does, with an optimizer and a message hub."""
    raw = {f"module.{key}": value + 1 for key, value in state.items()}
    content = {
        "meta": {"epoch": 300, "cfg": "model = dict(type='RTMDet')\n"},
        "state_dict": state,
        "message_hub": {"log_scalars": {"train/loss": HistoryBuffer()}},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.004}]},
        "param_schedulers": [{"base_values": [0.004], "_global_step": 1}],
        "ema_state_dict": {"steps": torch.tensor(5)} | raw,
    }
    torch.save(content | others, path, _use_new_zipfile_serialization=zipped)
    return path
