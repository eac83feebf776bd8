"""Write a detector for OpenVINO: graph (.xml), weights (.bin) and metadata.json in a folder."""

import hashlib
from pathlib import Path
from typing import Any

from models.export.metadata import KEY, ExportedModel
from utils.files.writers import write_text
from utils.optional_packages import import_optional
from utils.printable import printable

METADATA = "metadata.json"


def openvino_model(content: bytes) -> Any:
    """Return OpenVINO's model of an ONNX file's bytes.

    Raises ValueError if openvino or onnx is missing.
    """
    openvino = import_optional("openvino", "export to OpenVINO")
    onnx = import_optional("onnx", "export to OpenVINO")

    proto = onnx.ModelProto.FromString(content)
    del proto.metadata_props[:]  # OpenVINO would copy it
    model = openvino.Core().read_model(proto.SerializeToString())
    keep_order_of_ties(model)
    return model


def keep_order_of_ties(model: Any) -> None:
    """Make every TopK stable, in place: of equal scores the lower index is first, as in ONNX."""
    opset = import_optional("openvino.opset11", "export to OpenVINO")
    for node in model.get_ordered_ops():
        if node.get_type_name() != "TopK":
            continue
        values = node.input_value(0)
        count = node.input_value(1)
        given = node.get_attributes()
        settings = [given[name] for name in ("axis", "mode", "sort", "index_element_type")]
        stable = opset.topk(values, count, *settings, stable=True)
        for old, new in zip(node.outputs(), stable.outputs(), strict=True):
            old.replace(new)


def require_replaceable(folder: Path, stem: str) -> None:
    """Raise ValueError if the folder holds anything but an export, which would be lost."""
    if not folder.exists():
        return
    own = {METADATA, f"{stem}.xml", f"{stem}.bin"}
    if not folder.is_dir() or not {file.name for file in folder.iterdir()} <= own:
        raise ValueError(
            f"{printable(folder)}: exists and holds other files than an OpenVINO export; move it "
            "away"
        )


def write_openvino(folder: Path, stem: str, openvino_graph: Any, model: ExportedModel) -> None:
    """Write the folder, which does not exist; weights in 16 bits if the metadata says fp16."""
    openvino = import_optional("openvino", "export to OpenVINO")
    folder.mkdir()
    graph = folder / f"{stem}.xml"
    weights = folder / f"{stem}.bin"

    openvino_graph.set_rt_info(model.to_json(), [KEY])
    openvino.save_model(openvino_graph, str(graph), compress_to_fp16=model.precision == "fp16")

    digest = openvino_digest(graph.read_bytes(), weights.read_bytes())
    write_text(folder / METADATA, model.sealed(digest).to_json() + "\n")


def openvino_digest(graph: bytes, weights: bytes) -> str:
    """Return the SHA-256 of graph and weights."""
    both = hashlib.sha256(graph).digest() + hashlib.sha256(weights).digest()
    return hashlib.sha256(both).hexdigest()
