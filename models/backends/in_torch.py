"""A detector run by torch."""

from contextlib import nullcontext

import torch
from torch import Tensor

from models.backends import Backend, Prediction
from models.detector import Detector
from utils.distributed.precision import autocast_for


class TorchBackend(Backend):
    """Runs a detector, which is put in eval mode, where it is. precision: of the forward pass, by autocast.

    packed: the detector takes images in `precision`, without autocast (models/backends/packed.py). Boxes and scores are
    always computed in float32.
    """

    def __init__(self, detector: Detector, *, precision: torch.dtype = torch.float32, packed: bool = False) -> None:
        self.detector = detector.eval()
        self.num_classes, self.stride, self.dtype = detector.num_classes, max(detector.strides), detector.dtype
        self.device = next(detector.parameters()).device
        self.precision, self.packed, self.splits_threads = precision, packed, self.device.type == "cpu"

    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        is_cast = self.precision.itemsize == 2 and not self.packed
        with autocast_for(self.precision, self.device) if is_cast else nullcontext():
            raw = self.detector(images.to(self.precision) if self.packed else images)
            # On a GPU the host would wait for the number of candidates.
            return Prediction(*self.detector.decode(raw, confidence if self.device.type == "cpu" else 0.0), raw)
