"""Write the files of an export beside its checkpoint, each atomically."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from models.detector import Detector
from models.export import Export
from models.export.graph import halve
from models.export.int8 import quantized_onnx, quantized_openvino
from models.export.metadata import ExportedModel
from models.export.to_onnx import onnx_bytes
from models.export.to_openvino import SUFFIX, openvino_model, write_openvino
from models.export.to_torchscript import torchscript_bytes
from utils.files.atomic import atomic_write

SUFFIXES = {"torchscript": ".torchscript", "onnx": ".onnx", "openvino": SUFFIX}


class Writer:
    """Writes the files of one detector. model: the metadata; its precision decides what is written."""

    def __init__(self, detector: Detector, model: ExportedModel) -> None:
        self.model = model
        self.reference = Export(detector, replace(model, precision="fp32"))

    def write(self, name: str, weights: Path, calibration: Sequence[Tensor] = ()) -> Path:
        """Write the format `name` (a key of SUFFIXES) beside the checkpoint `weights`; return the path.

        calibration: batches of one image, for int8. Raises ValueError if a package is missing, and OSError.
        """
        stem = weights.stem + ("_int8" if self.model.precision == "int8" else "")
        path = weights.with_name(stem + SUFFIXES[name])
        if name == "openvino":
            graph = openvino_model(self._float_onnx)
            if self.model.precision == "int8":
                graph = quantized_openvino(graph, calibration)
            write_openvino(path, stem, graph, self.model)
            return path
        content = torchscript_bytes(self._export) if name == "torchscript" else self._onnx(calibration)
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        return path

    @cached_property
    def _export(self) -> Export:
        """The detector in the precision of the file's weights; 8-bit files are made from a float file."""
        half = self.model.precision == "fp16"
        detector = self.reference.detector
        return Export(halve(deepcopy(detector)), self.model) if half else replace(self.reference, model=self.model)

    @cached_property
    def _float_onnx(self) -> bytes:
        return onnx_bytes(self.reference)

    def _onnx(self, calibration: Sequence[Tensor]) -> bytes:
        if self.model.precision == "fp16":
            return onnx_bytes(self._export)
        return quantized_onnx(self._float_onnx, calibration) if self.model.precision == "int8" else self._float_onnx
