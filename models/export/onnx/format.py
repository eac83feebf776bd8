"""ONNX: one file, run by onnxruntime."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.export.base import ExportFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from models.export.exported import ExportedBackend
    from models.export.source import ExportSource


class Onnx(ExportFormat):
    title = "ONNX"
    suffix = file_suffix = ".onnx"
    is_folder = False
    packages = ("onnx", "onnxscript", "onnxruntime")
    int8_packages = ()
    half_needs_gpu = False
    precision_is_fixed = True
    compared_on_device = False

    def write(self, path: Path, source: "ExportSource", calibration: "Sequence[Tensor]") -> None:
        from models.export.onnx.int8 import quantized_onnx
        from models.export.onnx.write import onnx_bytes

        if source.model.precision == "int8":
            content = quantized_onnx(source.float_onnx, calibration)
        elif source.model.precision == "fp16":
            content = onnx_bytes(source.export)
        else:
            content = source.float_onnx
        path.write_bytes(content)

    def load(
        self, path: Path, device: "torch.device", *, half: bool, threads: int
    ) -> "ExportedBackend":
        from models.export.onnx.run import load_onnx

        return load_onnx(path, device, threads=threads)
