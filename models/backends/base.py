"""The interface of a detector that is ready to predict, whatever runs it.

B images of H x W pixels, N predictions per image, C classes.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.images.letterbox import Letterbox


class Prediction(NamedTuple):
    """Boxes and scores before non-maximum suppression."""

    boxes_xyxy: Tensor  # [B, N, 4] float32, in pixels of the input
    scores: Tensor  # [B, N, C] float32, in [0, 1]
    raw: Any = None  # what the loss of the model takes; None if there is none


class Backend(ABC):
    """A detector that is ready to predict. Several threads may call `predict` at the same time.

    num_classes: C. stride: H and W must be multiples of it. device, dtype: of the images it takes.
    canvas: the only (H, W) it takes, or None for any. letterbox: where the images lie on it.
    precision: that it computes in.

    min_confidence: it returns no scores at or below this, because it has filtered its predictions
    itself. max_detections: it returns at most this many for an image, for the same reason; None if
    it returns all. needs_nms: whether several predictions find the same object.

    breaks_after_fork: the name of a runtime that a forked child process cannot use, even with one
    thread; "" if there is none. threads: how many threads should call `predict` at the same time,
    each with an equal share of the CPU's cores; one that uses all cores is slower.
    """

    num_classes: int
    stride: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    canvas: tuple[int, int] | None = None
    letterbox: Letterbox = "center"
    min_confidence: float = 0.0
    max_detections: int | None = None
    needs_nms: bool = True
    breaks_after_fork: str = ""
    precision: torch.dtype = torch.float32
    threads: int = 1

    def nms_iou(self, wanted: float) -> float:
        """Return the threshold of suppression; 1, which suppresses nothing, if none is needed."""
        return wanted if self.needs_nms else 1.0

    @abstractmethod
    def predict(self, images: Tensor, confidence: float = 0.0) -> Prediction:
        """Return boxes and scores for images [B, 3, H, W], RGB in [0, 1], B of at least 1.

        Predictions without a score above `confidence` may be left out, as the caller does not want
        them.
        """
