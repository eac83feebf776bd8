"""Append non-maximum suppression to an ONNX graph, from standard operators only.

The same detections as models/export/graph.py: the operator NonMaxSuppression separates images and
classes itself.

B images, N predictions, K candidates, C classes, D detections per image at most, M kept boxes of
the batch.
"""

from typing import Any

import numpy as np

from models.export.graph import MAX_CANDIDATES
from models.export.metadata import NMS_OUTPUTS, RAW_OUTPUTS, Suppression
from utils.optional_packages import import_optional

PREFIX = "nms_"  # of all names, so that none is taken


class Nodes:
    """Appends nodes and constants to a graph; each method returns the names of the new values."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.count = 0
        self.helper = import_optional("onnx.helper", "export to ONNX")
        self.from_array = import_optional("onnx.numpy_helper", "export to ONNX").from_array

    def name(self) -> str:
        self.count += 1
        return f"{PREFIX}{self.count}"

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = self.name()
        self.graph.initializer.append(self.from_array(np.array(value, dtype), name))
        return name

    def many(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [self.name() for _ in range(outputs)]
        self.graph.node.append(
            self.helper.make_node(kind, list(inputs), names, names[0], **attributes)
        )
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.many(kind, *inputs, outputs=1, **attributes)[0]


def add_suppression(proto: Any, nms: Suppression, num_classes: int) -> None:
    """Replace a ModelProto's outputs boxes_xyxy and scores by detections [B, D, 6], in place."""
    graph, nodes = proto.graph, Nodes(proto.graph)
    rows = _candidates(nodes)
    used = _kept(nodes, *rows, nms, num_classes)
    detections = nodes.one("Concat", *rows, axis=2)  # [B, K, 6]
    detections = nodes.one("Mul", detections, used)
    padding = nodes.constant([0, 0, 0, 0, nms.max_detections, 0])
    detections = nodes.one("Pad", detections, padding)  # at least D rows
    score = nodes.one("Gather", detections, nodes.constant(4), axis=2)  # [B, K + D]
    best_first = nodes.many("TopK", score, nodes.constant([nms.max_detections]), outputs=2, axis=1)[
        1
    ]
    _take(nodes, detections, best_first, output=NMS_OUTPUTS[0])
    batch = graph.input[0].type.tensor_type.shape.dim[0]
    size = batch.dim_value or batch.dim_param
    del graph.output[:]
    float32 = 1
    shape = [size, nms.max_detections, 6]
    graph.output.append(nodes.helper.make_tensor_value_info(NMS_OUTPUTS[0], float32, shape))


def _candidates(nodes: Nodes) -> tuple[str, str, str]:
    """Boxes [B, K, 4], score [B, K, 1] and class [B, K, 1] of the highest scores, best first, lower
    index first.
    """
    boxes, scores = RAW_OUTPUTS
    best, index = nodes.many("TopK", scores, nodes.constant([1]), outputs=2, axis=2)  # [B, N, 1]
    class_id = nodes.one("Cast", index, to=1)
    rows = nodes.one("Gather", nodes.one("Shape", scores), nodes.constant([1]))
    count = nodes.one("Min", rows, nodes.constant([MAX_CANDIDATES]))
    order = nodes.many(
        "TopK", nodes.one("Squeeze", best, nodes.constant([2])), count, outputs=2, axis=1
    )[1]
    return _take(nodes, boxes, order), _take(nodes, best, order), _take(nodes, class_id, order)


def _take(nodes: Nodes, values: str, rows: str, output: str = "") -> str:
    """Rows [B, R, X] of values [B, N, X] at the indices [B, R]."""
    index = nodes.one("Unsqueeze", rows, nodes.constant([2]))
    width = nodes.one("Slice", nodes.one("Shape", values), nodes.constant([2]), nodes.constant([3]))
    shape = nodes.one("Concat", nodes.one("Shape", rows), width, axis=0)
    taken = nodes.one("GatherElements", values, nodes.one("Expand", index, shape), axis=1)
    if output:
        nodes.graph.node[-1].output[0] = output
    return output or taken


def _kept(
    nodes: Nodes, boxes: str, score: str, class_id: str, nms: Suppression, num_classes: int
) -> str:
    """1.0 for the candidates that are kept, else 0.0: [B, K, 1]."""
    above = nodes.one("Greater", score, nodes.constant(nms.confidence, np.float32))
    counted = nodes.one("Where", above, score, nodes.constant(-1, np.float32))
    if not nms.agnostic:
        own = nodes.one(
            "Equal", class_id, nodes.constant(np.arange(num_classes), np.float32)
        )  # [B, K, C]
        counted = nodes.one("Where", own, counted, nodes.constant(-1, np.float32))
    kept = nodes.one(  # [M, 3]: image, class, candidate
        "NonMaxSuppression",
        boxes,
        nodes.one("Transpose", counted, perm=[0, 2, 1]),
        nodes.constant([nms.max_detections]),
        nodes.constant([nms.iou], np.float32),
        nodes.constant([0], np.float32),  # a score must be above it; OpenCV refuses negative ones
    )
    index = nodes.one("Gather", kept, nodes.constant([0, 2]), axis=1)  # [M, 2]
    none = nodes.one(
        "Mul", nodes.one("Squeeze", score, nodes.constant([2])), nodes.constant(0, np.float32)
    )
    count = nodes.one("Slice", nodes.one("Shape", index), nodes.constant([0]), nodes.constant([1]))
    ones = nodes.one("Expand", nodes.constant([1], np.float32), count)
    return nodes.one("Unsqueeze", nodes.one("ScatterND", none, index, ones), nodes.constant([2]))
