"""Write a detector as TorchScript: one flat function and its weights as constants, on no particular device."""

import io
from typing import Any

import torch

from models.export import Export
from models.export.graph import export_graph
from models.export.quiet import quiet

METADATA = "kestrel.json"  # the archive's extra file


@torch.no_grad()
def torchscript_bytes(export: Export) -> bytes:
    """Return the file's bytes. The graph takes any batch and size, whatever the metadata says."""
    graph = export_graph(export.detector, export.model.nms)
    with quiet():  # of values that the trace takes as constants, and of torch.jit itself
        traced = torch.jit.freeze(torch.jit.trace(graph, export.example, check_trace=False))
        follow_device(traced.graph)
        content = io.BytesIO()
        torch.jit.save(traced, content, _extra_files={METADATA: export.model.to_json()})
    return content.getvalue()


def follow_device(graph: Any) -> None:
    """Replace the device on which a function was traced by the device of its images, in place."""
    images = list(graph.inputs())[1]
    device = graph.create("prim::device", [images])
    device.output().setType(torch._C.DeviceObjType.get())
    graph.prependNode(device)
    for node in graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == "DeviceObjType":
            node.output().replaceAllUsesWith(device.output())
