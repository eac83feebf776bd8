"""Append non-maximum suppression to an ONNX graph, from standard operators only.

The same detections as models/export/graph.py: the operator NonMaxSuppression separates images and
classes itself.

B images, N predictions, K candidates, C classes, D detections per image at most, M kept boxes of
the batch.
"""

from typing import Any

import numpy as np

from models.export.metadata import NMS_OUTPUTS, RAW_OUTPUTS, Suppression
from models.nms import MAX_CANDIDATES
from utils.optional_packages import import_optional

PREFIX = "nms_"  # of all names, so that none is taken
FLOAT32 = 1  # onnx.TensorProto.FLOAT, which is not imported here


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
        node = self.helper.make_node(kind, list(inputs), names, names[0], **attributes)
        self.graph.node.append(node)
        return names

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.many(kind, *inputs, outputs=1, **attributes)[0]


def add_suppression(proto: Any, nms: Suppression, num_classes: int) -> None:
    """Replace a ModelProto's outputs boxes_xyxy and scores by detections [B, D, 6], in place."""
    graph = proto.graph
    nodes = Nodes(graph)
    boxes, score, class_id = _candidates(nodes)
    used = _kept(nodes, boxes, score, class_id, nms, num_classes)

    # Rows of candidates that are not kept become 0; D rows of zeros follow.
    rows = nodes.one("Concat", boxes, score, class_id, axis=2)  # [B, K, 6]
    rows = nodes.one("Mul", rows, used)
    padding = nodes.constant([0, 0, 0, 0, nms.max_detections, 0])
    rows = nodes.one("Pad", rows, padding)  # [B, K + D, 6]

    # The first D by score are the output.
    row_score = nodes.one("Gather", rows, nodes.constant(4), axis=2)  # [B, K + D]
    count = nodes.constant([nms.max_detections])
    _, best_first = nodes.many("TopK", row_score, count, outputs=2, axis=1)  # [B, D]
    _take(nodes, rows, best_first, output=NMS_OUTPUTS[0])

    # The graph's outputs are replaced.
    batch = graph.input[0].type.tensor_type.shape.dim[0]
    shape = [batch.dim_value or batch.dim_param, nms.max_detections, 6]
    del graph.output[:]
    graph.output.append(nodes.helper.make_tensor_value_info(NMS_OUTPUTS[0], FLOAT32, shape))


def _candidates(nodes: Nodes) -> tuple[str, str, str]:
    """Return boxes [B, K, 4], score and class [B, K, 1] of the highest scores, best first.

    Of equal scores the lower index is first.
    """
    boxes, scores = RAW_OUTPUTS
    # The best class of each prediction.
    best, index = nodes.many("TopK", scores, nodes.constant([1]), outputs=2, axis=2)  # [B, N, 1]
    class_id = nodes.one("Cast", index, to=FLOAT32)

    # K is N, or less.
    predictions = nodes.one("Gather", nodes.one("Shape", scores), nodes.constant([1]))
    count = nodes.one("Min", predictions, nodes.constant([MAX_CANDIDATES]))

    best_score = nodes.one("Squeeze", best, nodes.constant([2]))  # [B, N]
    _, order = nodes.many("TopK", best_score, count, outputs=2, axis=1)  # [B, K]
    return _take(nodes, boxes, order), _take(nodes, best, order), _take(nodes, class_id, order)


def _take(nodes: Nodes, values: str, rows: str, output: str = "") -> str:
    """Return the rows [B, R, X] of values [B, N, X] at the indices [B, R].

    output: the name of the new value; "" for any.
    """
    index = nodes.one("Unsqueeze", rows, nodes.constant([2]))  # [B, R, 1]
    sizes = nodes.one("Shape", values)
    width = nodes.one("Slice", sizes, nodes.constant([2]), nodes.constant([3]))
    shape = nodes.one("Concat", nodes.one("Shape", rows), width, axis=0)
    index = nodes.one("Expand", index, shape)  # [B, R, X]
    taken = nodes.one("GatherElements", values, index, axis=1)
    if not output:
        return taken
    nodes.graph.node[-1].output[0] = output
    return output


def _kept(
    nodes: Nodes, boxes: str, score: str, class_id: str, nms: Suppression, num_classes: int
) -> str:
    """Return 1.0 for the candidates that are kept, else 0.0: [B, K, 1].

    Args:
        nodes: of the graph.
        boxes: of the candidates, [B, K, 4].
        score: [B, K, 1].
        class_id: [B, K, 1].
        nms: the settings.
        num_classes: C.
    """
    # Scores below the confidence, and of other classes than a candidate's own, become -1.
    above = nodes.one("Greater", score, nodes.constant(nms.confidence, np.float32))
    counted = nodes.one("Where", above, score, nodes.constant(-1, np.float32))
    if not nms.agnostic:
        classes = nodes.constant(np.arange(num_classes), np.float32)
        own = nodes.one("Equal", class_id, classes)  # [B, K, C]
        counted = nodes.one("Where", own, counted, nodes.constant(-1, np.float32))

    kept = nodes.one(  # [M, 3]: image, class, candidate
        "NonMaxSuppression",
        boxes,
        nodes.one("Transpose", counted, perm=[0, 2, 1]),
        nodes.constant([nms.max_detections]),
        nodes.constant([nms.iou], np.float32),
        nodes.constant([0], np.float32),  # a score must be above it; OpenCV refuses negative ones
    )

    # Ones at the candidates that are kept, in zeros of the shape [B, K].
    index = nodes.one("Gather", kept, nodes.constant([0, 2]), axis=1)  # [M, 2]
    flat_score = nodes.one("Squeeze", score, nodes.constant([2]))
    none = nodes.one("Mul", flat_score, nodes.constant(0, np.float32))
    count = nodes.one("Slice", nodes.one("Shape", index), nodes.constant([0]), nodes.constant([1]))
    ones = nodes.one("Expand", nodes.constant([1], np.float32), count)
    used = nodes.one("ScatterND", none, index, ones)
    return nodes.one("Unsqueeze", used, nodes.constant([2]))
