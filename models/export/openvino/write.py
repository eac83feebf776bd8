"""Write a detector for OpenVINO: a folder with the graph (.xml), the weights (.bin) and
metadata.json.
"""

import hashlib
from pathlib import Path
from typing import Any

from models.export.metadata import KEY, ExportedModel
from utils.files.writers import write_text
from utils.optional_packages import import_optional
from utils.printable import printable

METADATA = "metadata.json"
SUFFIX = "_openvino_model"  # of the folder's name


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
    """Make every TopK stable, in place: of equal scores the lower index is first, as ONNX
    specifies.
    """
    opset = import_optional("openvino.opset11", "export to OpenVINO")
    for node in model.get_ordered_ops():
        if node.get_type_name() == "TopK":
            given = node.get_attributes()
            how = [given[name] for name in ("axis", "mode", "sort", "index_element_type")]
            stable = opset.topk(node.input_value(0), node.input_value(1), *how, stable=True)
            for old, new in zip(node.outputs(), stable.outputs(), strict=True):
                old.replace(new)


def require_replaceable(folder: Path) -> None:
    """Raise ValueError if the folder exists and holds anything but an export, which would be
    lost.
    """
    stem = folder.name.removesuffix(SUFFIX)
    own = {METADATA, f"{stem}.xml", f"{stem}.bin"}
    if folder.exists() and (
        not folder.is_dir() or not {file.name for file in folder.iterdir()} <= own
    ):
        raise ValueError(
            f"{printable(folder)}: exists and holds other files than an OpenVINO export; move it "
            "away"
        )


def write_openvino(folder: Path, stem: str, openvino_graph: Any, model: ExportedModel) -> None:
    """Write the folder, which does not exist; weights in 16 bits if the metadata's precision is
    fp16.
    """
    openvino = import_optional("openvino", "export to OpenVINO")
    openvino_graph.set_rt_info(model.to_json(), [KEY])
    folder.mkdir()
    graph = folder / f"{stem}.xml"
    openvino.save_model(openvino_graph, str(graph), compress_to_fp16=model.precision == "fp16")
    digest = openvino_digest(graph.read_bytes(), graph.with_suffix(".bin").read_bytes())
    write_text(folder / METADATA, model.sealed(digest).to_json() + "\n")


def openvino_digest(graph: bytes, weights: bytes) -> str:
    """Return the SHA-256 of graph and weights."""
    return hashlib.sha256(
        hashlib.sha256(graph).digest() + hashlib.sha256(weights).digest()
    ).hexdigest()
