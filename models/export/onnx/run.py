"""ONNX files, run by onnxruntime."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.export.exported import ExportedBackend
from models.export.metadata import INPUT, ExportedModel
from models.export.onnx.read import read_onnx
from utils.optional_packages import import_all_optional, import_optional
from utils.printable import one_line, printable


class OnnxBackend(ExportedBackend):
    """Runs the bytes of an ONNX file in a session, which threads may share.

    threads: as in `Backend`; all together use as many cores as torch does. Raises ValueError if the
    session cannot be created.
    """

    def __init__(
        self, content: bytes, model: ExportedModel, device: torch.device, *, threads: int = 1
    ) -> None:
        super().__init__(model, device, threads=threads)
        runtime = import_optional("onnxruntime", "an ONNX file")

        options = runtime.SessionOptions()
        # A session has one pool of threads, which all callers share and which works beside each.
        options.intra_op_num_threads = max(1, torch.get_num_threads() - threads + 1)
        # Threads that spin while they wait take the cores from letterboxing, NMS, other sessions.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3  # errors only, which are raised as well

        self._session = runtime.InferenceSession(
            content, options, providers=providers(runtime, device), enable_fallback=0
        )
        if device.type == "cuda" and "CUDAExecutionProvider" not in self._session.get_providers():
            raise ValueError(
                f"onnxruntime cannot use the device {device}, its CUDA libraries do not load"
            )
        self._outputs = list(model.outputs)

    def run(self, images: Tensor) -> Sequence[Tensor]:
        given = {INPUT: images.contiguous().cpu().numpy()}
        outputs = self._session.run(self._outputs, given)
        return [torch.from_numpy(values).to(self.device) for values in outputs]


def providers(runtime: Any, device: torch.device) -> list[Any]:
    """Return the execution providers for a device.

    Raises ValueError if this onnxruntime does not support the device.
    """
    if device.type == "cpu":
        return ["CPUExecutionProvider"]
    if device.type != "cuda" or "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise ValueError(
            f"this onnxruntime cannot use the device {device}: use --device cpu, or for an NVIDIA "
            "GPU "
            "pip install onnxruntime-gpu"
        )
    options = {
        "device_id": device.index or 0,
        # The default, EXHAUSTIVE, times all algorithms of each convolution for each new size of
        # images.
        "cudnn_conv_algo_search": "HEURISTIC",
        "use_tf32": 0,  # float32 is float32, as in the other backends
    }
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def load_onnx(path: Path, device: torch.device, *, threads: int = 1) -> OnnxBackend:
    """Return the backend of an ONNX file that Kestrel exported.

    Raises ValueError if the file is damaged, refused (`read_onnx`), or does not run.
    """
    import_all_optional(("onnx", "onnxruntime"), "an ONNX file")
    content, model = read_onnx(path)
    try:
        return OnnxBackend(content, model, device, threads=threads)
    except ValueError:
        raise
    except Exception as error:  # onnxruntime's own errors are many, and derive from Exception
        raise ValueError(
            f"{printable(path)}: onnxruntime cannot load it: {one_line(error)}"
        ) from None
