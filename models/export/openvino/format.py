"""OpenVINO: a folder with graph, weights and metadata, run by OpenVINO on a CPU."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.export.base import ExportFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from models.export.exported import ExportedBackend
    from models.export.source import ExportSource


class OpenVino(ExportFormat):
    title = "OpenVINO"
    suffix = "_openvino_model"
    file_suffix = ".xml"
    is_folder = True
    packages = ("openvino", "onnx", "onnxscript")
    int8_packages = ("nncf",)
    half_needs_gpu = False
    precision_is_fixed = False
    compared_on_device = False

    def require_replaceable(self, path: Path) -> None:
        from models.export.openvino.write import require_replaceable

        require_replaceable(path, path.name.removesuffix(self.suffix))

    def write(self, path: Path, source: "ExportSource", calibration: "Sequence[Tensor]") -> None:
        from models.export.openvino.int8 import quantized_openvino
        from models.export.openvino.write import openvino_model, write_openvino

        graph = openvino_model(source.float_onnx)
        if source.model.precision == "int8":
            graph = quantized_openvino(graph, calibration)
        write_openvino(path, path.name.removesuffix(self.suffix), graph, source.model)

    def load(
        self, path: Path, device: "torch.device", *, half: bool, threads: int
    ) -> "ExportedBackend":
        from models.export.openvino.run import load_openvino

        return load_openvino(path, device, half=half, threads=threads)
