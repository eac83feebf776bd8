"""Read the pickled modules in checkpoints of YOLOv5 and Ultralytics as data
(utils/files/pickled.py).

None of their code is run. L levels of the head, A anchors per level.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.weights.external import external_errors, read_state
from utils.files.pickled import (
    MAPPINGS,
    MAX_DEPTH,
    Archive,
    ClassName,
    Record,
    TensorReader,
    is_args,
    mapping_entries,
    open_limited,
)
from utils.printable import excerpt

MAX_MODULES = 20_000
MAX_VALUES = 5_000  # in a table
MAX_NAMES = 50_000

# The word that Ultralytics stores as the task of a model, and what it is in words.
TASKS = {
    "segment": "instance segmentation",
    "semantic": "semantic segmentation",
    "pose": "pose estimation",
    "obb": "oriented boxes",
    "classify": "image classification",
}
# The same of models that store no word, as YOLOv5's: the end of their head's class.
HEAD_CLASSES = {
    "Segment": "segment",
    "SemanticSegment": "semantic",
    "Pose": "pose",
    "OBB": "obb",
    "Classify": "classify",
}


@dataclass(frozen=True)
class ExternalCheckpoint:
    """The model in another project's checkpoint.

    state: tensors by their names in the file, floats as float32; anchors_px: [L, A, 2], None for a
    head without anchors; strides: pixels per cell of each level; head: class of the last layer;
    activations: the class of the activation after each convolution; bn_eps: epsilons of the
    BatchNorms.
    """

    path: Path
    state: dict[str, Tensor]
    names: list[str]
    table: dict[str, Any]
    anchors_px: Tensor | None
    strides: list[int]
    head: str
    activations: dict[str, str]
    bn_eps: frozenset[float]

    @property
    def last_layer(self) -> int:
        """The number of the head's layer."""
        return max(
            (int(key.split(".")[1]) for key in self.state if re.match(r"model\.\d+\.", key)),
            default=0,
        )


def read_external(path: Path) -> ExternalCheckpoint:
    """Return the model in a checkpoint of YOLOv5 or Ultralytics: the averaged one if there are two.

    Raises ValueError if there is no such file, if it cannot be read without running its code, or if
    the model is not for detection.
    """
    with external_errors(path), open_limited(path) as file:
        archive = Archive(file)
        module = _module(archive.unpickled())
        if module is None:
            raise ValueError("it holds no module of YOLOv5 or Ultralytics")

        modules = _walk(module)
        task = other_task(modules)
        external = None if task else _external(path, archive, modules)

    if external is None:
        raise ValueError(f"{path}: is a model for {task}; only detection models can be used")
    return external


def other_task(modules: list[tuple[str, Record]]) -> str:
    """Return what a model is for if that is not detection, in words; "" for detection or if nothing
    tells.

    modules: all of the model's, as `_walk` returns them. Only their names are compared.
    """
    word = _attributes(modules[0][1]).get("task")
    if not isinstance(word, str):
        head_class = _head(modules).kind.rpartition(".")[2].rstrip("0123456789")
        word = HEAD_CLASSES.get(head_class, "detect")
    return "" if word == "detect" else TASKS.get(word, excerpt(word))


def holds_module(path: Path) -> bool:
    """Whether a file's pickle holds another project's module, which `read_external` can read."""
    try:
        with open_limited(path) as file:
            found = _module(Archive(file).unpickled())
    except Exception:  # the caller's own reader reports what is wrong with the file
        return False
    return found is not None


def _external(
    path: Path, archive: Archive, modules: list[tuple[str, Record]]
) -> ExternalCheckpoint:
    attributes = _attributes(modules[0][1])
    reader = TensorReader(archive)
    state = read_state(_tensors(modules), reader)
    table = plain(attributes.get("yaml"), iter(range(MAX_VALUES)))
    if not isinstance(table, dict):
        raise ValueError("its model has no architecture table")
    head = _head(modules)
    strides = _strides(attributes.get("stride", _attributes(head).get("stride")), reader)
    kinds = {
        prefix[:-1]: child.kind.rpartition(".")[2]
        for prefix, child in modules
        if prefix.endswith(".act.")
    }
    eps = [_attributes(child).get("eps") for _, child in modules if "BatchNorm" in child.kind]
    return ExternalCheckpoint(
        path,
        state,
        _names(plain(attributes.get("names"), iter(range(MAX_NAMES)))),
        table,
        _anchors_px(state, strides),
        strides,
        head.kind,
        kinds,
        frozenset(value for value in eps if isinstance(value, float)),
    )


def _module(loaded: Any) -> Record | None:
    """Return a checkpoint's module: the averaged one (EMA) if there are two, as both projects
    do.
    """
    entries = loaded if isinstance(loaded, dict) else {"model": loaded}
    for key in ("ema", "model"):
        found = entries.get(key)
        if (
            isinstance(found, Record)
            and isinstance(found.state, dict)
            and "_modules" in found.state
        ):
            return found
    return None


def _head(modules: list[tuple[str, Record]]) -> Record:
    """Return the last layer of a model; the model itself if it has no numbered layers."""
    layers = [child for prefix, child in modules if re.fullmatch(r"model\.\d+\.", prefix)]
    return layers[-1] if layers else modules[0][1]


def _attributes(module: Any) -> dict[Any, Any]:
    if not isinstance(module, Record) or not isinstance(module.state, dict):
        raise ValueError("an entry that should be a module is not one")
    return module.state


def _walk(root: Record) -> list[tuple[str, Record]]:
    """Return every module with the prefix of its tensors' names, parents first; a shared module
    appears repeatedly.
    """
    found: list[tuple[str, Record]] = []
    for prefix, module in _walk_from("", root, 0):
        found.append((prefix, module))
        if len(found) > MAX_MODULES:
            raise ValueError(f"it has more than {MAX_MODULES} modules")
    return found


def _walk_from(prefix: str, module: Record, depth: int) -> Iterator[tuple[str, Record]]:
    if depth > MAX_DEPTH:
        raise ValueError("its modules are nested too deeply")
    yield prefix, module
    for name, child in mapping_entries(_attributes(module).get("_modules", {})).items():
        if child is not None:
            yield from _walk_from(f"{prefix}{_checked_name(name)}.", child, depth + 1)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > 100:
        raise ValueError("the name of a module or tensor is not text of at most 100 characters")
    return name


def _tensors(modules: list[tuple[str, Record]]) -> Iterator[tuple[str, Any]]:
    for prefix, module in modules:
        attributes = _attributes(module)
        not_saved = _members(attributes.get("_non_persistent_buffers_set"))
        for name, value in mapping_entries(attributes.get("_parameters", {})).items():
            yield prefix + _checked_name(name), value
        for name, value in mapping_entries(attributes.get("_buffers", {})).items():
            yield prefix + _checked_name(name), None if name in not_saved else value


def _members(value: Any) -> list[Any]:
    """Return the strings in a set; empty for None: modules saved before torch 1.5 have no such
    set.
    """
    if isinstance(value, Record):
        value = value.args[0] if is_args(value.args, 1) else []
    if value is not None and (not isinstance(value, list) or len(value) > 100):
        raise ValueError("one of its modules is damaged")
    return [member for member in value or () if isinstance(member, str)]


def plain(value: Any, budget: Iterator[int], depth: int = 0) -> Any:
    """Return a value as lists, dicts and plain values; other objects become their class names.

    budget: an iterator with one item for each value allowed. Raises ValueError for more values or
    for deep nesting.

    >>> plain({"head": (1, Record("torch.nn.SiLU", ()))}, iter(range(9)))
    {'head': [1, 'torch.nn.SiLU']}
    >>> plain([0] * 9, iter(range(9)))
    Traceback (most recent call last):
    ValueError: its table or names are too large
    """
    if depth > MAX_DEPTH or next(budget, None) is None:
        raise ValueError("its table or names are too large")
    if isinstance(value, Record) and value.kind in MAPPINGS:
        value = value.items
    if isinstance(value, dict):
        return {key: plain(member, budget, depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member, budget, depth + 1) for member in value]
    if isinstance(value, Record | ClassName):
        return value.kind if isinstance(value, Record) else value.name
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else type(value).__name__
    )


def _names(value: Any) -> list[str]:
    """Return the class names from a list, or from a dict with class numbers as keys.

    >>> _names({1: "b", 0: "a"}), _names(["a", 7]), _names(None)
    (['a', 'b'], ['a', '7'], [])
    """
    if isinstance(value, dict):
        if set(value) != set(range(len(value))):
            raise ValueError("its class names are not numbered from 0")
        value = [value[number] for number in range(len(value))]
    if not isinstance(value, list | None) or any(
        isinstance(name, dict | list) for name in value or ()
    ):
        raise ValueError("its class names are not a list of names")
    return [str(name) for name in value or ()]


def _strides(value: Any, reader: TensorReader) -> list[int]:
    if value is None:
        return []
    strides = reader.tensor(value).flatten().tolist()
    if len(strides) > 16 or not all(
        1 <= stride <= 1024 and stride == int(stride) for stride in strides
    ):
        raise ValueError("its strides are not at most 16 whole numbers from 1 to 1024")
    return [int(stride) for stride in strides]


def _anchors_px(state: dict[str, Tensor], strides: list[int]) -> Tensor | None:
    """Return the anchors [L, A, 2] in pixels; YOLOv5 stores them in units of the strides."""
    keys = [key for key in state if re.fullmatch(r"model\.\d+\.anchors", key)]
    if not keys:
        return None
    anchors = state[keys[0]]
    if (
        len(keys) > 1
        or anchors.ndim != 3
        or anchors.shape[0] != len(strides)
        or anchors.shape[2] != 2
    ):
        raise ValueError("its anchors do not have the shape [levels, anchors, 2]")
    return anchors * torch.tensor(strides, dtype=torch.float32).view(-1, 1, 1)
