"""Read an ONNX file as data, and refuse whatever Kestrel's own export does not need.

onnxruntime gets the bytes that were checked, not the path, so it can open no other file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.export.metadata import KEY, ExportedModel, read_metadata
from models.export.onnx.write import onnx_digest
from utils.optional_packages import import_optional
from utils.printable import excerpt, printable

MAX_FILE = (1 << 31) - 1  # bytes, protobuf's limit


def read_onnx(path: Path) -> tuple[bytes, ExportedModel]:
    """Return the bytes of a file that Kestrel exported, and its metadata.

    Raises ValueError that names the file if it is damaged, changed, comes from another program, or
    has external data, functions, operators of other domains, or nested graphs, as loops have.
    """
    try:
        return _read(path)
    except OSError as error:
        raise ValueError(f"{printable(path)}: cannot be read: {error.strerror}") from None


def _read(path: Path) -> tuple[bytes, ExportedModel]:
    onnx = import_optional("onnx", "an ONNX file")

    # The bytes, of a file that is not too large.
    if not path.exists():
        raise ValueError(f"{printable(path)}: no such file")
    if not path.is_file():
        raise ValueError(f"{printable(path)}: is not a regular file")
    if path.stat().st_size > MAX_FILE:
        raise ValueError(f"{printable(path)}: an ONNX file has at most {MAX_FILE} bytes")
    content = path.read_bytes()
    try:
        proto = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError, which has no name that is public
        raise ValueError(
            f"{printable(path)}: is not an ONNX file or is damaged ({excerpt(str(error))})"
        ) from None

    # The metadata, which is the only one.
    texts = [entry.value for entry in proto.metadata_props if entry.key == KEY]
    if len(texts) != 1:
        raise ValueError(
            f"{printable(path)}: has no metadata of Kestrel: export the checkpoint with export.py"
        )
    if len(proto.metadata_props) > 1:
        raise ValueError(
            f"{printable(path)}: has metadata that Kestrel did not write: it was changed after the "
            "export"
        )
    model = read_metadata(texts[0], path)

    # The graph, and the checksum of all.
    reason = next(objections(proto), "")
    if not reason and model.sealed(onnx_digest(proto)) != model:
        reason = (
            "its content does not match its checksum: it is damaged, or was changed after "
            "the export"
        )
    if reason:
        raise ValueError(f"{printable(path)}: {reason}")
    return content, model


def objections(proto: Any) -> Iterator[str]:
    """Yield the reasons to refuse a ModelProto."""
    if proto.functions or proto.training_info:
        yield "it has functions or training graphs, which are not supported"
    for user in (*proto.opset_import, *proto.graph.node):
        if user.domain not in ("", "ai.onnx"):
            yield (
                f"it uses operators of the domain '{excerpt(user.domain)}', only ONNX's own "
                "are supported"
            )

    tensors = list(proto.graph.initializer)
    sparse_tensors = list(proto.graph.sparse_initializer)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                yield (
                    f"its operator {excerpt(node.op_type)} has a nested graph, which is not "
                    "supported"
                )
            tensors += attribute.tensors
            if attribute.HasField("t"):
                tensors.append(attribute.t)
            sparse_tensors += attribute.sparse_tensors
            if attribute.HasField("sparse_tensor"):
                sparse_tensors.append(attribute.sparse_tensor)

    for sparse in sparse_tensors:
        tensors += [sparse.values, sparse.indices]
    if any(tensor.external_data or tensor.data_location for tensor in tensors):
        yield "it keeps tensors in other files, which is not supported"
