"""Read the pickled modules in checkpoints of YOLOv5 and Ultralytics as data.

None of their code is run (utils/files/pickled/). L levels of the head, A anchors per level.
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
    MAX_DEPTH,
    ClassName,
    PickledObject,
    SavedFile,
    TensorReader,
    is_args,
    mapping_entries,
    open_saved,
    without_subclass,
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
        numbered = [key for key in self.state if re.match(r"model\.\d+\.", key)]
        return max((int(key.split(".")[1]) for key in numbered), default=0)


def read_external(path: Path) -> ExternalCheckpoint:
    """Return the model in a checkpoint of YOLOv5 or Ultralytics: the averaged one if there are two.

    Raises ValueError if there is no such file, if it cannot be read without running its code, or if
    the model is not for detection.
    """
    with external_errors(path), open_saved(path) as saved:
        module = _module(saved.unpickled())
        if module is None:
            raise ValueError("it holds no module of YOLOv5 or Ultralytics")

        modules = _walk(module)
        task = other_task(modules)
        external = None if task else _external(path, saved, modules)

    if external is None:
        raise ValueError(f"{path}: is a model for {task}; only detection models can be used")
    return external


def other_task(modules: list[tuple[str, PickledObject]]) -> str:
    """Return what a model is for, in words; "" for detection or if nothing tells.

    modules: all of the model's, as `_walk` returns them. Only their names are compared.
    """
    word = _attributes(modules[0][1]).get("task")
    if not isinstance(word, str):
        head_class = _head(modules).kind.rpartition(".")[2].rstrip("0123456789")
        word = HEAD_CLASSES.get(head_class, "detect")
    if word == "detect":
        return ""
    return TASKS.get(word, excerpt(word))


def holds_module(loaded: Any) -> bool:
    """Whether a file holds another project's module, for `read_external`. loaded: unpickled."""
    return _module(loaded) is not None


def _external(
    path: Path, saved: SavedFile, modules: list[tuple[str, PickledObject]]
) -> ExternalCheckpoint:
    """Return what is read of a checkpoint. modules: all of its model's, as `_walk` returns them."""
    attributes = _attributes(modules[0][1])
    reader = TensorReader(saved)
    state = read_state(_tensors(modules), reader)

    table = plain(attributes.get("yaml"), iter(range(MAX_VALUES)))
    if table is None:
        raise ValueError(
            f"it holds a whole module, of class {excerpt(modules[0][1].kind)}, without a table of "
            "its layers: save its state_dict() instead"
        )
    if not isinstance(table, dict):
        raise ValueError("its model has no architecture table")

    # The head's strides stand in the model, or in the head.
    head = _head(modules)
    strides = _strides(attributes.get("stride", _attributes(head).get("stride")), reader)

    activations = {}
    bn_eps = set()
    for prefix, child in modules:
        if prefix.endswith(".act."):
            activations[prefix[:-1]] = child.kind.rpartition(".")[2]
        if "BatchNorm" in child.kind:
            eps = _attributes(child).get("eps")
            if isinstance(eps, float):
                bn_eps.add(eps)

    return ExternalCheckpoint(
        path=path,
        state=state,
        names=_names(plain(attributes.get("names"), iter(range(MAX_NAMES)))),
        table=table,
        anchors_px=_anchors_px(state, strides),
        strides=strides,
        head=head.kind,
        activations=activations,
        bn_eps=frozenset(bn_eps),
    )


def _module(loaded: Any) -> PickledObject | None:
    """Return a checkpoint's module, None if it has none.

    The averaged one (EMA) if there are two, as both projects do.
    """
    entries = loaded if isinstance(loaded, dict) else {"model": loaded}
    for key in ("ema", "model"):
        entry = entries.get(key)
        if not isinstance(entry, PickledObject) or not isinstance(entry.state, dict):
            continue
        if "_modules" in entry.state:
            return entry
    return None


def _head(modules: list[tuple[str, PickledObject]]) -> PickledObject:
    """Return the last layer of a model; the model itself if it has no numbered layers."""
    layers = [child for prefix, child in modules if re.fullmatch(r"model\.\d+\.", prefix)]
    return layers[-1] if layers else modules[0][1]


def _attributes(module: Any) -> dict[Any, Any]:
    """Return the attributes of a module. Raises ValueError for what is no module."""
    if not isinstance(module, PickledObject) or not isinstance(module.state, dict):
        raise ValueError("an entry that should be a module is not one")
    return module.state


def _walk(root: PickledObject) -> list[tuple[str, PickledObject]]:
    """Return every module with the prefix of its tensors' names, parents first.

    A shared module appears repeatedly.
    """
    return list(_walk_from("", root, 0, budget=iter(range(MAX_MODULES))))


def _walk_from(
    prefix: str, module: PickledObject, depth: int, budget: Iterator[int]
) -> Iterator[tuple[str, PickledObject]]:
    """Iterate over a module and all modules in it.

    budget: an iterator with one item for each entry allowed, those without a module too.
    """
    if depth > MAX_DEPTH:
        raise ValueError("its modules are nested too deeply")
    yield prefix, module

    children = mapping_entries(_attributes(module).get("_modules", {}))
    for name, child in children.items():
        if next(budget, None) is None:
            raise ValueError(f"it has more than {MAX_MODULES:,} modules")
        if child is not None:
            yield from _walk_from(f"{prefix}{_checked_name(name)}.", child, depth + 1, budget)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or len(name) > 100:
        raise ValueError("the name of a module or tensor is not text of at most 100 characters")
    return name


def _tensors(modules: list[tuple[str, PickledObject]]) -> Iterator[tuple[str, Any]]:
    """Iterate over the names and records of all tensors; None for those that are not saved."""
    for prefix, module in modules:
        attributes = _attributes(module)
        not_saved = _members(attributes.get("_non_persistent_buffers_set"))

        parameters = mapping_entries(attributes.get("_parameters", {}))
        for name, value in parameters.items():
            yield prefix + _checked_name(name), value

        buffers = mapping_entries(attributes.get("_buffers", {}))
        for name, value in buffers.items():
            yield prefix + _checked_name(name), None if name in not_saved else value


def _members(value: Any) -> list[Any]:
    """Return the strings in a set; none for None: modules of torch before 1.5 have no such set."""
    if isinstance(value, PickledObject):
        value = value.args[0] if is_args(value.args, 1) else []
    if value is not None and (not isinstance(value, list) or len(value) > 100):
        raise ValueError("one of its modules is damaged")
    return [member for member in value or () if isinstance(member, str)]


def plain(value: Any, budget: Iterator[int], depth: int = 0) -> Any:
    """Return a value as lists, dicts and plain values; other objects become their class names.

    budget: an iterator with one item for each value allowed. Raises ValueError for more values or
    for deep nesting.

    >>> plain({"head": (1, PickledObject("torch.nn.SiLU", ()))}, iter(range(9)))
    {'head': [1, 'torch.nn.SiLU']}
    >>> plain([0] * 9, iter(range(9)))
    Traceback (most recent call last):
    ValueError: its table or names are too large
    """
    if depth > MAX_DEPTH or next(budget, None) is None:
        raise ValueError("its table or names are too large")

    value = without_subclass(value)
    if isinstance(value, dict):
        return {key: plain(member, budget, depth + 1) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member, budget, depth + 1) for member in value]

    if isinstance(value, PickledObject):
        return value.kind
    if isinstance(value, ClassName):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def _names(value: Any) -> list[str]:
    """Return the class names from a list, or from a dict with class numbers as keys.

    >>> _names({1: "b", 0: "a"}), _names(["a", 7]), _names(None)
    (['a', 'b'], ['a', '7'], [])
    """
    if isinstance(value, dict):
        if set(value) != set(range(len(value))):
            raise ValueError("its class names are not numbered from 0")
        value = [value[number] for number in range(len(value))]

    if value is None:
        return []
    if not isinstance(value, list) or any(isinstance(name, dict | list) for name in value):
        raise ValueError("its class names are not a list of names")
    return [str(name) for name in value]


def _strides(value: Any, reader: TensorReader) -> list[int]:
    """Return the strides in a tensor's record, none for None."""
    if value is None:
        return []
    strides = reader.tensor(value).flatten().tolist()
    are_whole = all(1 <= stride <= 1024 and stride == int(stride) for stride in strides)
    if len(strides) > 16 or not are_whole:
        raise ValueError("its strides are not at most 16 whole numbers from 1 to 1024")
    return [int(stride) for stride in strides]


def _anchors_px(state: dict[str, Tensor], strides: list[int]) -> Tensor | None:
    """Return the anchors [L, A, 2] in pixels; YOLOv5 stores them in units of the strides."""
    keys = [key for key in state if re.fullmatch(r"model\.\d+\.anchors", key)]
    if not keys:
        return None

    anchors = state[keys[0]]
    has_shape = anchors.ndim == 3 and anchors.shape[::2] == (len(strides), 2)
    if len(keys) > 1 or not has_shape:
        raise ValueError("its anchors do not have the shape [levels, anchors, 2]")
    stride = torch.tensor(strides, dtype=torch.float32)
    return anchors * stride.view(-1, 1, 1)
