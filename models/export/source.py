"""What the files of one detector are written from, each part computed once for all formats."""

from copy import deepcopy
from dataclasses import replace
from functools import cached_property

from models.detector import Detector
from models.export.graph import Export, halve
from models.export.metadata import ExportedModel
from models.export.onnx.write import onnx_bytes


class ExportSource:
    """A detector in eval mode, with its BatchNorm folded, and the metadata of its files.

    detector: in float32. model: its `precision` is that of the files to write.
    """

    def __init__(self, detector: Detector, model: ExportedModel) -> None:
        self.model = model
        self.reference = Export(detector, replace(model, precision="fp32"))

    @cached_property
    def export(self) -> Export:
        """The detector in the precision of the file's weights, which 8-bit files do not have."""
        detector = self.reference.detector
        if self.model.precision == "fp16":
            detector = halve(deepcopy(detector))
        return Export(detector, self.model)

    @cached_property
    def float_onnx(self) -> bytes:
        """The ONNX file in float32; 8-bit files and those of OpenVINO are made from it."""
        return onnx_bytes(self.reference)
