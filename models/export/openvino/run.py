"""OpenVINO folders, run by OpenVINO on a CPU."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.export.exported import ExportedBackend
from models.export.openvino.read import OpenVinoFiles, read_openvino
from utils.optional_packages import import_optional
from utils.printable import one_line, printable


class OpenVinoBackend(ExportedBackend):
    """Runs a graph on as many cores as torch uses. half: compute in 16 bits if the processor can.

    threads: as in `Backend`. Raises ValueError if the graph cannot be compiled.
    """

    # With several streams it waits for threads that only the parent process has.
    breaks_after_fork = "OpenVINO"

    def __init__(
        self, files: OpenVinoFiles, device: torch.device, *, half: bool = False, threads: int = 1
    ) -> None:
        super().__init__(files.model, device, threads=threads)
        runtime = import_optional("openvino", "an OpenVINO model")

        # OpenVINO's first conversion of an array deadlocks if two threads make it at once, so this
        # thread makes it.
        _ = runtime.Tensor(np.zeros(1, np.float32), shared_memory=True).data

        core = runtime.Core()
        graph = core.read_model(model=files.graph, weights=files.weights)
        self._compiled = core.compile_model(graph, "CPU", settings(threads, half=half))
        self._idle: deque[Any] = deque()  # infer requests: a request serves one thread at a time

    def run(self, images: Tensor) -> Sequence[Tensor]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()

        # The copy to NCHW takes 6 % of yolov5n's time; a graph that takes NHWC was slower by 29 %.
        given = images.contiguous().cpu().numpy()
        request.infer([given], share_inputs=True, share_outputs=True)
        outputs = []
        for index in range(len(self.model.outputs)):
            values = request.get_output_tensor(index).data.copy()
            outputs.append(torch.from_numpy(values))

        self._idle.append(request)
        return outputs


def settings(threads: int, *, half: bool) -> dict[str, Any]:
    """Return OpenVINO's settings for this many threads that call at the same time."""
    chosen: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": max(threads, torch.get_num_threads()),
        "NUM_STREAMS": threads,
    }
    if not half:
        # OpenVINO's default is bfloat16 where the processor has it: scores change by up to 0.01.
        chosen["INFERENCE_PRECISION_HINT"] = "f32"
    return chosen


def load_openvino(
    path: Path, device: torch.device, *, half: bool = False, threads: int = 1
) -> OpenVinoBackend:
    """Return the backend of an OpenVINO folder that Kestrel exported.

    path: the folder, or the .xml file in it. Raises ValueError if a file is damaged, refused
    (`read_openvino`), does not run, or the device is not a CPU.
    """
    if device.type != "cpu":
        raise ValueError(f"{printable(path)}: OpenVINO runs on the CPU here: use --device cpu")
    files = read_openvino(path)
    try:
        return OpenVinoBackend(files, device, half=half, threads=threads)
    except ValueError:
        raise
    except Exception as error:  # OpenVINO raises RuntimeError and types of its own
        raise ValueError(f"{printable(path)}: OpenVINO cannot load it: {one_line(error)}") from None
