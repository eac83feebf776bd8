"""Write a detector as TorchScript: one flat function, its weights as constants, on any device."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from models.export.graph import Export, export_graph
from models.export.quiet import quiet
from utils.distributed.precision import exact_float32

METADATA = "extra/kestrel.json"  # an entry of the archive, an "extra file" in torch's words


@torch.no_grad()
def torchscript_bytes(export: Export) -> bytes:
    """Return the file's bytes. The graph takes any batch and size, whatever the metadata says."""
    graph = export_graph(export.detector, export.model.nms)
    # A trace of a convolution keeps whether TF32 is allowed, whatever is set when the file is run.
    # Quiet: of values that the trace takes as constants, and of torch.jit itself.
    with exact_float32(), quiet():
        traced = torch.jit.freeze(torch.jit.trace(graph, export.example, check_trace=False))
        follow_device(traced.graph)
        saved = io.BytesIO()
        torch.jit.save(traced, saved)

    entries = _entries(saved)
    metadata = export.model.sealed(torchscript_digest(entries))
    return packed({**entries, METADATA: metadata.to_json().encode()})


def follow_device(graph: Any) -> None:
    """Replace the device on which a function was traced by the device of its images, in place."""
    images = list(graph.inputs())[1]
    device = graph.create("prim::device", [images])
    device.output().setType(torch._C.DeviceObjType.get())
    graph.prependNode(device)
    for node in graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == "DeviceObjType":
            node.output().replaceAllUsesWith(device.output())


def _entries(saved: io.BytesIO) -> dict[str, bytes]:
    """Return the entries of an archive of torch.jit.save that torch.jit.load needs, by name.

    The other ones are a random number, and tables from lines of the code to source files of this
    machine.
    """
    entries = {}
    with zipfile.ZipFile(saved) as archive:
        for info in archive.infolist():
            name = info.filename.partition("/")[2]
            if not name.endswith(".debug_pkl") and name != ".data/serialization_id":
                entries[name] = archive.read(info)
    return entries


def packed(entries: Mapping[str, bytes]) -> bytes:
    """Return an archive of these entries, uncompressed, for torch.jit.load."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, value in entries.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), value)
    return content.getvalue()


def torchscript_digest(entries: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of the names and contents of all entries but the metadata.

    The order of the entries does not matter.
    """
    lines = []
    for name in sorted(entries):
        if name != METADATA:
            lines.append(f"{name} {hashlib.sha256(entries[name]).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
