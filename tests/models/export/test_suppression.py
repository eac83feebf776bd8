"""Non-maximum suppression in exported graphs: in torch, onnxruntime and OpenVINO the same as
models/nms.py.
"""

import cv2
import numpy as np
import pytest
import torch

from models.export.graph import non_max_suppression_graph
from models.export.metadata import Suppression
from models.nms import non_max_suppression

# images, predictions, classes, confidence, IoU, detections, agnostic, levels of the scores (for
# ties)
CASES = [
    (2, 50, 2, 0.25, 0.45, 100, False, 0),
    (3, 500, 3, 0.25, 0.45, 20, False, 20),
    (2, 3500, 80, 0.9, 0.6, 300, False, 0),
    (2, 200, 80, 0.9, 0.6, 300, True, 0),
    (1, 100, 1, 0.5, 0.3, 10, False, 5),
    (2, 100, 2, 1.0, 0.3, 10, False, 0),
    (2, 1, 1, 0.1, 0.3, 10, False, 0),
    (2, 60, 2, 0.0, 0.45, 100, False, 3),
    (2, 60, 2, 0.0, 1.0, 100, True, 1),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


def predictions(case):
    """Random boxes and scores of a case, and what models/nms.py keeps of them, as rows [B, D,
    6].
    """
    images, count, classes, confidence, iou, most, agnostic, levels = case
    generator = torch.Generator().manual_seed(0)
    low, size = (torch.rand(images, count, 2, generator=generator) * side for side in (200, 80))
    boxes, scores = (
        torch.cat([low, low + size], -1),
        torch.rand(images, count, classes, generator=generator),
    )
    if levels:
        scores = (scores * levels).round() / levels
    limits = {"confidence": confidence, "iou": iou, "max_detections": most, "agnostic": agnostic}
    kept = non_max_suppression(boxes, scores, multi_label=False, **limits)
    rows = torch.zeros(images, most, 6)
    for own, found in zip(rows, kept, strict=True):
        own[: len(found)] = found
    return boxes, scores, Suppression(**limits), rows


@each_case
def test_torch_graph_keeps_what_nms_keeps(case):
    boxes, scores, nms, expected = predictions(case)
    assert non_max_suppression_graph(boxes, scores, nms).equal(expected)


def test_cases_have_detections_and_an_empty_image():
    counts = [(predictions(case)[3][..., 4] > 0).sum(1).tolist() for case in CASES]
    assert all(counts[index] for index in (0, 1, 2, 3, 4))
    assert counts[5] == [0, 0]
    assert max(counts[2]) == 300  # the limit is reached
    assert counts[8][0] < 60  # some scores are 0, which no confidence lets pass


@pytest.fixture
def onnx_graph():
    """onnx_graph(nms, classes): the bytes of a model from boxes b and scores s to detections."""
    onnx = pytest.importorskip("onnx", reason="an optional package")
    from models.export.onnx.suppression import add_suppression

    def build(nms, classes):
        helper, shapes = (
            onnx.helper,
            {"boxes_xyxy": ["batch", "n", 4], "scores": ["batch", "n", classes]},
        )
        info = helper.make_tensor_value_info
        nodes = [helper.make_node("Identity", [name[0]], [name]) for name in shapes]
        inputs = [info(name[0], 1, shape) for name, shape in shapes.items()]
        graph = helper.make_graph(
            nodes, "g", inputs, [info(name, 1, shape) for name, shape in shapes.items()]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        add_suppression(model, nms, classes)
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()

    return build


@each_case
def test_onnx_graph_keeps_what_nms_keeps_in_onnxruntime(case, onnx_graph):
    runtime = pytest.importorskip("onnxruntime", reason="an optional package")
    boxes, scores, nms, expected = predictions(case)
    session = runtime.InferenceSession(onnx_graph(nms, case[2]), providers=["CPUExecutionProvider"])
    (found,) = session.run(["detections"], {"b": boxes.numpy(), "s": scores.numpy()})
    assert torch.from_numpy(found).equal(expected)


@pytest.mark.skipif(
    int(cv2.__version__.split(".")[0]) < 5, reason="OpenCV 4 has no NonMaxSuppression"
)
@each_case
def test_onnx_graph_keeps_what_nms_keeps_in_opencv(case, onnx_graph):
    boxes, scores, nms, expected = predictions(case)
    net = cv2.dnn.readNetFromONNX(np.frombuffer(onnx_graph(nms, case[2]), np.uint8))
    net.setInput(boxes.numpy(), "b")
    net.setInput(scores.numpy(), "s")
    assert torch.from_numpy(net.forward()).equal(expected)


@each_case
def test_onnx_graph_keeps_what_nms_keeps_in_openvino(case, onnx_graph):
    openvino = pytest.importorskip("openvino", reason="an optional package")
    from models.export.openvino.write import openvino_model

    boxes, scores, nms, expected = predictions(case)
    precise = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(
        openvino_model(onnx_graph(nms, case[2])), "CPU", precise
    )
    found = compiled({"b": boxes.numpy(), "s": scores.numpy()})[0]
    assert torch.from_numpy(found).equal(expected)
