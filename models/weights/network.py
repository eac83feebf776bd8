"""Weights of a network that classifies images, for the backbone of a table.

They are the state dicts of torchvision's and timm's own modules, read as data
(utils/files/pickled/).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from models.blocks import Backbone
from models.detector import Detector
from models.tables.find import model_names
from models.weights.external import external_errors, read_state, without_ddp
from models.weights.pretrained import require_named_digest
from models.weights.torchvision_files import torchvision_file
from utils.files.pickled import TensorReader, entries_if_mapping, is_tensor, open_saved
from utils.printable import counted, excerpt, printable

# entries of training checkpoints that hold the state
HOLDERS = ("state_dict", "model_state_dict", "model")
COUNTER = "num_batches_tracked"  # of BatchNorm; files of torch before 1.0 have none
PAGE = "docs/backbones.md"


class CopiedBackbone(NamedTuple):
    """The backbone whose weights were copied, and the number of its tensors."""

    layer: Backbone
    tensors: int


def holds_network(loaded: Any) -> bool:
    """Whether a file is a state dict, tensors by their names, and not a checkpoint of Kestrel.

    loaded: unpickled.
    """
    entries = _entries(loaded)
    is_own = "table" in entries_if_mapping(loaded)
    return bool(entries) and not is_own and all(map(is_tensor, entries.values()))


def copy_network(model: Detector, path: Path) -> CopiedBackbone:
    """Copy the weights of a network into the backbone of a model that is a table of it.

    Its classifier, and stages that the backbone does not have, are left out.

    Raises ValueError if the file cannot be read, or its name states another digest; if the table
    has no such backbone, or the network is another one.
    """
    layer = require_backbone(model, path)
    state = read_network(path, layer)
    layer.body.load_state_dict(state, strict=False)
    return CopiedBackbone(layer, len(state))


def require_backbone(model: Detector, path: Path) -> Backbone:
    """Return the backbone of a model. Raises ValueError if it has none of another library."""
    for layer in model.layers:
        if isinstance(layer, Backbone):
            return layer
    source = model.table["source"]
    raise ValueError(
        f"{printable(path)}: {_what(path)}, but {source} has no row for it: {_advice(path)}"
    )


def read_network(path: Path, layer: Backbone) -> dict[str, Tensor]:
    """Return the tensors of a file that `layer` has, under its own names.

    layer: on any device. Raises ValueError as `copy_network` does.
    """
    require_named_digest(path)
    published = layer.published_shapes()
    own_names = layer.own_names(published)
    nameless = layer.body.state_dict().keys() - set(own_names.values())
    if nameless:
        raise ValueError(
            f"{printable(path)}: weights of {layer.name} of {layer.library} cannot be read: "
            f"{counted(len(nameless), 'tensor')} of its backbone have other names in a file, such "
            f"as {min(nameless)}"
        )

    state = {}
    with external_errors(path), open_saved(path) as saved:
        entries = _entries(saved.unpickled())
        unknown = [key for key in entries if key not in published]
        if not unknown:
            state = read_state(entries.items(), TensorReader(saved))

    if unknown:
        problem = f"that has no tensor {excerpt(str(unknown[0]))}"
    else:
        problem = _why_another(state, own_names, layer)
    if problem:
        hint = f"; {_advice(path)}" if _published_as(path) else ""
        raise ValueError(
            f"{printable(path)}: is no file of {layer.name} of {layer.library}: {problem}{hint}"
        )
    return {own_names[key]: value for key, value in state.items() if key in own_names}


def no_detector(path: Path) -> ValueError:
    """Return the error for a file of a network where a detector is needed."""
    return ValueError(f"{printable(path)}: {_what(path)} and is no detector: {_advice(path)}")


def _entries(loaded: Any) -> dict[Any, Any]:
    """Return the records of a state dict, or of one in a training checkpoint.

    Their names are without the prefix of DDP.
    """
    state = entries_if_mapping(loaded)
    for holder in HOLDERS:
        inner = entries_if_mapping(state.get(holder))
        if inner:
            state = inner
            break
    return without_ddp(state)


def _why_another(state: Mapping[str, Tensor], own_names: Mapping[str, str], layer: Backbone) -> str:
    """Return why the tensors of a file are those of another network, "" if they are not.

    own_names: of the backbone's tensors, by their names in the file.
    """
    wanted = layer.body.state_dict()
    for key, own in own_names.items():
        shape = wanted[own].shape
        if key in state and state[key].shape != shape:
            return f"{key} is {list(state[key].shape)}, not {list(shape)}"
        if key not in state and not key.endswith(COUNTER):
            return f"the tensor {key} is missing"
    return ""


def _published_as(path: Path) -> str:
    """Return the name of the network of which torchvision publishes a file of this name, or ""."""
    known = torchvision_file(path.name)
    return known.network if known else ""


def _what(path: Path) -> str:
    network = _published_as(path)
    if network:
        return f"is a file of {network}, which classifies images"
    return "holds tensors by their names, as of a network that classifies images"


def _advice(path: Path) -> str:
    """Return which table takes the file."""
    network = _published_as(path)
    if network in model_names():
        return f"train.py takes it with --cfg {network}.yaml"
    name = network or "NAME"
    row = f"[-1, 1, TorchvisionBackbone, [{name}, [8, 16, 32]]]"
    return f"train.py takes it with --cfg and a table that has the row {row} ({PAGE})"
