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
        self.num_classes = detector.num_classes
        self.stride = max(detector.strides)
        self.letterbox = detector.letterbox
        self.needs_nms = detector.needs_nms
        self.dtype = detector.dtype
        self.device = next(detector.parameters()).device
        self.precision = precision
        self.packed = packed
        self.threads = threads
        self._on_cpu = self.device.type == "cpu"

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        if self.packed:
            images = images.to(self.precision)
        if not self._on_cpu:
            confidence = 0.0  # on a GPU the host would wait for the number of candidates

        with self._precision_context():
            raw = self._raw(images)
            boxes_xyxy, scores = self.detector.decode(raw, confidence)
        return Prediction(boxes_xyxy, scores, raw)

    def _precision_context(self) -> AbstractContextManager[Any]:
        if self.precision.itemsize == 2 and not self.packed:
            return autocast_for(self.precision, self.device)
        return exact_float32()

    def _raw(self, images: Tensor) -> Any:
        """Return the head's raw predictions for images, on a CPU in passes of PASS_PIXELS.

        With 16 images of 640 x 480 that takes 0.80 of the time of one pass.
        """
        most = len(images)
        if self._on_cpu:
            most = max(1, PASS_PIXELS // images[0, 0].numel())
        parts = [self.detector(part) for part in images.split(most)]
        return parts[0] if len(parts) == 1 else concatenate(parts)
