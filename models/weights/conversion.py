"""Convert the pickled modules in checkpoints of YOLOv5 and Ultralytics to a Detector."""

import reprlib
from pathlib import Path
from typing import Any

from models.build import check_shapes
from models.detector import Detector
from models.tables.resolve import resolve
from models.weights import ultralytics, yolov5
from models.weights.external import conversion_errors, fill_model
from models.weights.pickled_module import ExternalCheckpoint, read_external

ORIGINS = (yolov5, ultralytics)  # each with owns(), table_entries() and renamed()


def load_module(path: Path) -> tuple[Detector, list[str]]:
    """Return a detector with the weights of another project's checkpoint, and its class names.

    It is in eval mode.

    Raises ValueError as read_external does, and if the model is not of a kind that Kestrel has.
    """
    external = read_external(path)
    with conversion_errors(path):
        return as_detector(external), external.names


def as_detector(external: ExternalCheckpoint) -> Detector:
    """Return the detector of the table, in eval mode, with the tensors of `external`.

    Memory for the model is allocated only after its shapes are known to equal those in the file.

    Raises ValueError if its head is none that Kestrel has, or its tensors or activations do not fit
    its table.
    """
    if external.bn_eps - {1e-3}:
        raise ValueError("the eps of its BatchNorm is not 0.001")
    classes = external.table.get("nc")
    if classes != len(external.names):
        given = reprlib.repr(classes)
        raise ValueError(f"it has {len(external.names)} class names for {given} classes")

    # An empty model of its table, to compare with.
    origin = _origin(external)
    entries: dict[str, Any] = {"source": external.path.name}
    entries |= origin.table_entries(external)
    channels = external.table.get("ch", 3)
    resolved = resolve(entries, None, classes, channels=channels, anchors=entries.get("anchors"))
    model = check_shapes(resolved)
    if list(model.strides) != external.strides:
        raise ValueError(
            f"its strides are {external.strides}, but those of its table are {list(model.strides)}"
        )

    # Its tensors under our names.
    head = external.last_layer
    state = {}
    for key, tensor in external.state.items():
        name = origin.renamed(key, head)
        if name:
            state[name] = tensor
    if external.anchors_px is not None:
        state[f"layers.{head}.anchors_px"] = external.anchors_px

    fill_model(model, state, "its table")

    # The same activations.
    for key, kind in external.activations.items():
        activation = model.get_submodule(origin.renamed(key, head))
        expected = type(activation).__name__
        if kind != expected:
            raise ValueError(f"its activation {key} is {kind}; only {expected} is supported there")
    return model


def _origin(external: ExternalCheckpoint) -> Any:
    """Return the module of ORIGINS that can convert a checkpoint.

    Raises ValueError if there is none.
    """
    for origin in ORIGINS:
        if origin.owns(external):
            return origin
    raise ValueError(
        f"its head {external.head} is not supported: neither YOLOv5's Detect, nor one of distances"
    )
