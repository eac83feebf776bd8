"""TorchScript files, run by torch."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import models.nms  # noqa: F401  # registers torchvision's nms, which files may call
from models.export.exported import ExportedBackend
from models.export.metadata import ExportedModel
from models.export.torchscript.read import read_torchscript
from utils.distributed.precision import exact_float32
from utils.printable import one_line, printable


class TorchScriptBackend(ExportedBackend):
    """Runs the bytes of a TorchScript file that was checked. threads: as in `TorchBackend`."""

    def __init__(
        self, content: bytes, model: ExportedModel, device: torch.device, *, threads: int = 1
    ) -> None:
        super().__init__(model, device, threads=threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated; its files still exist
            self._module = torch.jit.load(io.BytesIO(content), map_location=device)

    @torch.no_grad()
    def run(self, images: Tensor) -> Sequence[Tensor]:
        with exact_float32():
            outputs = self._module(images)
        return outputs if isinstance(outputs, tuple) else (outputs,)


def load_torchscript(path: Path, device: torch.device, *, threads: int = 1) -> TorchScriptBackend:
    """Return the backend of a TorchScript file that Kestrel exported.

    Raises ValueError if the file is damaged, refused (`read_torchscript`), or does not load.
    """
    content, model = read_torchscript(path)
    if model.precision == "fp16" and device.type == "cpu":
        raise ValueError(
            f"{printable(path)}: was exported with --half and needs a GPU: give --device 0"
        )
    try:
        return TorchScriptBackend(content, model, device, threads=threads)
    except Exception as error:
        # torch raises RuntimeError and others for a file that does not fit its code
        raise ValueError(f"{printable(path)}: torch cannot load it: {one_line(error)}") from None
