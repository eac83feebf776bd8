"""A detector run by torch.

B images of H x W pixels.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from models.backends.base import Backend, Prediction
from models.detector import Detector
from utils.distributed.precision import autocast_for, exact_float32
from utils.nested import concatenate

# of all images in a forward pass on a CPU; the maps of yolov5n then stay in its caches
PASS_PIXELS = 1_250_000


class TorchBackend(Backend):
    """Runs a detector, which is put in eval mode, where it is.

    precision: of the forward pass, by autocast; float32 is computed without TF32. packed: the
    detector takes images in `precision`, without autocast (models/backends/packed.py). Boxes and
    scores are always computed in float32. threads: as in `Backend`; each of them calls
    torch.set_num_threads.
    """

    def __init__(
        self,
        detector: Detector,
        *,
        precision: torch.dtype = torch.float32,
        packed: bool = False,
        threads: int = 1,
    ) -> None:
        self.detector = detector.eval()
        self.num_classes, self.stride, self.dtype = (
            detector.num_classes,
            max(detector.strides),
            detector.dtype,
        )
        self.needs_nms = detector.needs_nms
        self.device = next(detector.parameters()).device
        self.precision, self.packed = precision, packed
        self._on_cpu = self.device.type == "cpu"
        self.threads = threads

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        with self._precision_context():
            raw = self._raw(images.to(self.precision) if self.packed else images)
            # On a GPU the host would wait for the number of candidates.
            return Prediction(*self.detector.decode(raw, confidence if self._on_cpu else 0.0), raw)

    def _precision_context(self) -> AbstractContextManager[Any]:
        if self.precision.itemsize == 2 and not self.packed:
            return autocast_for(self.precision, self.device)
        return exact_float32()

    def _raw(self, images: Tensor) -> Any:
        """Return the head's raw predictions for images [B, 3, H, W], on a CPU in passes of
        PASS_PIXELS.

        With 16 images of 640 x 480 that takes 0.80 of the time of one pass.
        """
        most = max(1, PASS_PIXELS // images[0, 0].numel()) if self._on_cpu else len(images)
        parts = [self.detector(part) for part in images.split(most)]
        return parts[0] if len(parts) == 1 else concatenate(parts)
