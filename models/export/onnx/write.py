"""Write a detector as ONNX, in one file without external data."""

import hashlib
from dataclasses import replace
from typing import Any

import torch
from torch.export import Dim

from models.export.graph import Export, RawGraph
from models.export.metadata import INPUT, KEY, MAX_BATCH, MAX_SIDE, RAW_OUTPUTS, ExportedModel
from models.export.onnx.suppression import add_suppression
from models.export.quiet import quiet
from utils.optional_packages import import_optional

MAX_BYTES = 2_000_000_000  # protobuf's limit is 2^31 - 1
LOWEST_OPSET = 17
HIGHEST_OPSET = 23


@torch.no_grad()
def onnx_bytes(export: Export) -> bytes:
    """Return the file's bytes, in the metadata's opset or the next that torch's exporter can write.

    Raises ValueError if onnx or onnxscript is missing, or the model is too large for one file.
    """
    for package in ("onnx", "onnxscript"):
        import_optional(package, "export to ONNX")
    size = sum(parameter.nbytes for parameter in export.detector.parameters())
    if size > MAX_BYTES:
        raise ValueError(
            f"the weights have {size:,} bytes, at most {MAX_BYTES:,} fit into an ONNX file"
        )

    proto = _exported(export)
    _strip(proto)
    if export.model.nms:
        add_suppression(proto, export.model.nms, len(export.model.names))

    opset = next(entry.version for entry in proto.opset_import if entry.domain == "")
    return with_metadata(proto, replace(export.model, opset=opset))


def _exported(export: Export) -> Any:
    """Return the ModelProto of torch's exporter."""
    model = export.model
    free: dict[int, Any] = {}  # the dimensions of the images that may vary
    if model.batch_size is None:
        free[0] = Dim("batch", min=1, max=MAX_BATCH)
    if model.canvas is None:
        most = MAX_SIDE // model.stride
        free[2] = model.stride * Dim("rows", min=1, max=most)
        free[3] = model.stride * Dim("columns", min=1, max=most)

    with quiet():
        program = torch.onnx.export(
            RawGraph(export.detector).eval(),
            (export.example,),
            dynamo=True,
            opset_version=model.opset,
            input_names=[INPUT],
            output_names=list(RAW_OUTPUTS),
            dynamic_shapes=(free,),
            verbose=False,
        )
    return program.model_proto  # type: ignore[union-attr]


def _strip(proto: Any) -> None:
    """Remove what the exporter notes of its source, such as paths, and name the free dimensions."""
    graph = proto.graph
    values = [*graph.input, *graph.output]
    for part in (proto, graph, *graph.node, *values, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    del graph.value_info[:]

    used = {node.domain for node in graph.node} | {""}
    unused = [entry for entry in proto.opset_import if entry.domain not in used]
    for entry in unused:
        proto.opset_import.remove(entry)

    of_images = ("batch", None, "height", "width")
    of_predictions = ("batch", "predictions", None)
    for value, names in zip(values, (of_images, of_predictions, of_predictions), strict=True):
        for dimension, name in zip(value.type.tensor_type.shape.dim, names, strict=True):
            if dimension.HasField("dim_param"):
                dimension.dim_param = name

    proto.producer_name = "Kestrel"
    graph.name = "detector"


def with_metadata(proto: Any, model: ExportedModel) -> bytes:
    """Return the bytes of a ModelProto with this metadata and the checksum of its graph."""
    complete = model.sealed(onnx_digest(proto))
    del proto.metadata_props[:]
    proto.metadata_props.add(key=KEY, value=complete.to_json())
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def onnx_digest(proto: Any) -> str:
    """Return the SHA-256 of a ModelProto without its metadata."""
    bare = type(proto)()
    bare.CopyFrom(proto)
    del bare.metadata_props[:]
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()
