"""A detector run by torch."""

from contextlib import nullcontext

import torch
from torch import Tensor

from models.backends import Backend, Prediction
from models.detector import Detector
from utils.distributed.precision import autocast_for


class TorchBackend(Backend):
    """Runs a detector, which is put in eval mode, where it is. precision: of the forward pass, by autocast.

    Boxes and scores are always computed in float32.
    """

    def __init__(self, detector: Detector, *, precision: torch.dtype = torch.float32) -> None:
        self.detector = detector.eval()
        self.num_classes, self.stride, self.dtype = detector.num_classes, max(detector.strides), detector.dtype
        self.device = next(detector.parameters()).device
        self.precision = precision

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        with autocast_for(self.precision, self.device) if self.precision.itemsize == 2 else nullcontext():
            raw = self.detector(images)
            # On a GPU the host would wait for the number of candidates.
            return Prediction(*self.detector.decode(raw, confidence if self.device.type == "cpu" else 0.0), raw)
