"""Convert the pickled modules in checkpoints of YOLOv5 and Ultralytics to a Detector."""

import reprlib
from pathlib import Path
from typing import Any

from models.detector import Detector, check_shapes, mismatched_tensors
from models.table import resolve
from models.weights import ultralytics, yolov5
from models.weights.external import conversion_errors
from models.weights.pickled_module import ExternalCheckpoint, read_external

ORIGINS = (yolov5, ultralytics)  # each with owns(), table_entries() and renamed()


def load_module(path: Path) -> tuple[Detector, list[str]]:
    """Return a detector in eval mode with the weights of another project's checkpoint, and its
    class names.

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
    classes, head = external.table.get("nc"), external.last_layer
    if classes != len(external.names):
        raise ValueError(
            f"it has {len(external.names)} class names for {reprlib.repr(classes)} classes"
        )
    origin = next((origin for origin in ORIGINS if origin.owns(external)), None)
    if origin is None:
        raise ValueError(
            f"its head {external.head} is not supported: neither YOLOv5's Detect, nor one of "
            "distances"
        )
    entries: dict[str, Any] = {"source": external.path.name} | origin.table_entries(external)
    channels, anchors = external.table.get("ch", 3), entries.get("anchors")
    model = check_shapes(resolve(entries, None, classes, channels=channels, anchors=anchors))
    if list(model.strides) != external.strides:
        raise ValueError(
            f"its strides are {external.strides}, but those of its table are {list(model.strides)}"
        )
    names = {key: origin.renamed(key, head) for key in (*external.state, *external.activations)}
    state = {
        name: external.state[key] for key, name in names.items() if name and key in external.state
    }
    if external.anchors_px is not None:
        state[f"layers.{head}.anchors_px"] = external.anchors_px
    if unfit := mismatched_tensors(model, state, types=True):
        raise ValueError(f"{len(unfit)} of its tensors do not fit its table, such as {unfit[0]}")
    for key, kind in external.activations.items():
        expected = type(model.get_submodule(names[key])).__name__
        if kind != expected:
            raise ValueError(f"its activation {key} is {kind}; only {expected} is supported there")
    model.load_state_dict(state, assign=True)
    return model
