"""Quantize exported graphs to 8-bit integers, with ranges measured on images.

The output convolutions and everything after them (decoding of boxes and scores, non-maximum
suppression) stay in float: an error of 1/256 of the range of a box is pixels.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from models.export.metadata import INPUT, KEY, read_metadata
from models.export.onnx.write import with_metadata
from models.export.quiet import quiet
from utils.optional_packages import import_optional


class _Images:
    """Calibration images as onnxruntime's quantizer reads them."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, Any] | None:
        images = next(self._batches, None)
        return None if images is None else {INPUT: images.contiguous().numpy()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.get_next, None)


def quantized_onnx(content: bytes, batches: Iterable[Tensor]) -> bytes:
    """Return the bytes of an ONNX file with 8-bit convolutions (QDQ format, a scale per channel of
    the weights).

    content: the float file. Activations are symmetric: with asymmetric ones a yolov5n lost 0.011
    mAP, not 0.003. They are unsigned, which halves the time on x86, and the weights have 7 bits,
    because processors without VNNI saturate sums of products of unsigned and signed 8-bit numbers.
    Raises ValueError if onnxruntime or onnx is missing.
    """
    onnx = import_optional("onnx", "quantization")
    with quiet():
        quantization = import_optional("onnxruntime.quantization", "quantization of an ONNX file")
    proto = onnx.ModelProto.FromString(content)
    model = next(
        read_metadata(each.value, Path()) for each in proto.metadata_props if each.key == KEY
    )
    del proto.metadata_props[:]
    with TemporaryDirectory() as folder, quiet():
        quantized = Path(folder) / "quantized.onnx"
        quantization.quantize_static(
            proto,
            quantized,
            _Images(batches),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"ActivationSymmetric": True},
            nodes_to_exclude=sorted(float_onnx_nodes(proto.graph)),
        )
        result = onnx.load(quantized, load_external_data=False)
    for entry in [entry for entry in result.opset_import if entry.domain not in ("", "ai.onnx")]:
        result.opset_import.remove(entry)
    return with_metadata(result, replace(model, precision="int8"))


def float_onnx_nodes(graph: Any) -> set[str]:
    """Return the names of the nodes that stay in float: those with no convolution after them."""
    makers = {output: node for node in graph.node for output in node.output}
    pending, found = [value.name for value in graph.output], set[str]()
    while pending:
        node = makers.get(pending.pop())
        if node is not None and node.name not in found:
            found.add(node.name)
            pending += [] if node.op_type == "Conv" else node.input
    return found


def quantized_openvino(graph: Any, batches: Sequence[Tensor]) -> Any:
    """Return OpenVINO's model with 8-bit convolutions. graph: the float model. batches: of one
    image each.

    Only convolutions are quantized, with the extreme values as ranges: a yolov5n lost 0.003 mAP. It
    lost 0.010 with the sums and products between them quantized too, and 0.015 with NNCF's default
    ranges, the means of extreme values. Raises ValueError if nncf is missing.
    """
    with quiet():
        nncf = import_optional("nncf", "quantization of an OpenVINO model")
        ranges = import_optional(
            "nncf.quantization.range_estimator", "quantization of an OpenVINO model"
        )
        names = sorted(float_openvino_nodes(graph))
        scope = nncf.IgnoredScope(
            names=names, types=["Add", "Concat", "MaxPool", "Multiply"], validate=False
        )
        minmax = ranges.RangeEstimatorParametersSet.MINMAX
        return nncf.quantize(
            graph,
            nncf.Dataset([images.contiguous().numpy() for images in batches]),
            subset_size=len(batches),
            ignored_scope=scope,
            preset=nncf.QuantizationPreset.MIXED,
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                activations_range_estimator_params=minmax
            ),
        )


def float_openvino_nodes(graph: Any) -> set[str]:
    """Return the names of the operators that stay in float: those with no convolution after
    them.
    """
    pending, found = (
        [result.input_value(0).get_node() for result in graph.get_results()],
        set[str](),
    )
    while pending:
        node = pending.pop()
        name = node.get_friendly_name()
        if node.get_type_name() not in ("Constant", "Parameter") and name not in found:
            found.add(name)
            if node.get_type_name() not in ("Convolution", "GroupConvolution"):
                pending += [value.get_node() for value in node.input_values()]
    return found
