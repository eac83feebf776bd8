"""TorchScript: one file, run by torch on any device."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from models.export.base import ExportFormat

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from models.export.exported import ExportedBackend
    from models.export.source import ExportSource


class TorchScript(ExportFormat):
    title = "TorchScript"
    suffix = file_suffix = ".torchscript"
    is_folder = False
    packages = ()
    int8_packages = None
    half_needs_gpu = True
    precision_is_fixed = True
    compared_on_device = True

    def write(self, path: Path, source: "ExportSource", calibration: "Sequence[Tensor]") -> None:
        from models.export.torchscript.write import torchscript_bytes

        path.write_bytes(torchscript_bytes(source.export))

    def load(
        self, path: Path, device: "torch.device", *, half: bool, threads: int
    ) -> "ExportedBackend":
        from models.export.torchscript.run import load_torchscript

        return load_torchscript(path, device, threads=threads)
